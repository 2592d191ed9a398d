#!/bin/sh
# Provides `prometheus` and `promtool` in a directory, for the tests: `fetch.sh DIRECTORY`. Links those that are
# installed; otherwise unpacks Debian's package there, which requires no root and starts no service.
set -eu

mkdir -p "$1"
if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
    ln -sf "$(command -v prometheus)" "$(command -v promtool)" "$1"
    exit
fi
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || {
    echo "error: there is no apt-get; install Prometheus (prometheus, promtool) to run its tests"
    exit 1
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get -qq download prometheus 2>/dev/null || {
    # Images usually contain no package lists; only root may fetch them.
    [ "$(id -u)" = 0 ] || { echo "error: apt-get finds no prometheus; run: sudo apt-get update"; exit 1; }
    apt-get -qq update
    apt-get -qq download prometheus
}
dpkg-deb -x prometheus_*.deb .
mv usr/bin/prometheus usr/bin/promtool "$1"
