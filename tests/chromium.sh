#!/bin/sh
# Sees to `chromium` and `chromedriver` for the tests of the worker's page: takes those that are installed; else installs
# Debian's packages, which only root may.
set -eu

command -v chromedriver >/dev/null && exit
command -v apt-get >/dev/null || {
    echo "error: there is no apt-get; install Chromium and chromedriver to run the tests of the page"
    exit 1
}
[ "$(id -u)" = 0 ] || {
    echo "error: not root; run: sudo apt-get install chromium chromium-driver"
    exit 1
}
export DEBIAN_FRONTEND=noninteractive
set -- --yes --no-install-recommends chromium chromium-driver fonts-dejavu-core
# An image has no lists of packages, as a rule.
apt-cache show chromium-driver >/dev/null 2>&1 || timeout 60 apt-get -qq update
# More than 100 MB: a slow mirror shall not hold up the other tests. An installation is never cut off.
timeout 120 apt-get -qq install --download-only "$@"
apt-get -qq install "$@"
