#!/bin/sh
# A Debian with another version of Python, in a folder: python_chroot.sh VERSION FOLDER
#
# FOLDER/run COMMAND... runs a command in there, in the same working folder, with this checkout, the cache folder and /tmp
# at their paths, and with the same network. It has git and Java 21. FOLDER/venv is a virtual environment, with pip alone:
#
#     FOLDER/run FOLDER/venv/bin/python -m pytest ...
#
# It needs root and Debian's packages, takes three minutes on two busy cores, and 800 MB of disk. What is there already is
# kept. If it cannot be made here, one line says why, and the status is 1.
set -eu

fail() {
    echo "Python $version: $1" >&2
    exit 1
}

version=$1
mkdir -p "$2"
folder=$(cd "$2" && pwd)
checkout=$(cd "$(dirname "$0")/../.." && pwd)
cache=${WIDELOAD_CACHE:-$HOME/.cache/wideload}
keys=/usr/share/keyrings/debian-archive-keyring.gpg
case $version in
3.13) suite=trixie ;;
3.14) suite=forky ;;
*) fail "no release of Debian is known to have it; 3.13 and 3.14 are" ;;
esac

# Mounts end with the command: they are in a namespace of its own.
write_run() {
    cat >"$folder/run" <<END
#!/bin/sh
exec unshare --mount --propagation private sh -euc '
root=\$1 here=\$PWD
for each in "$checkout" "$cache" "$folder" /tmp /etc/ssl /etc/resolv.conf /etc/hosts; do
    if [ -d "\$each" ]; then mkdir -p "\$root\$each"; else : >>"\$root\$each"; fi
    mount --bind "\$each" "\$root\$each"
done
mount --rbind /dev "\$root/dev"
mount --rbind /sys "\$root/sys"
mount -t proc proc "\$root/proc"
shift
exec chroot "\$root" env -C "\$here" -u JAVA_HOME PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "\$@"
' sh "$folder/root" "\$@"
END
    chmod +x "$folder/run"
}

[ "$(id -u)" = 0 ] || fail "a chroot needs root"
command -v apt-get >/dev/null || command -v debootstrap >/dev/null || fail "there is neither debootstrap nor apt-get"
unshare --mount --propagation private true 2>/dev/null || fail "mounts are not allowed here"
mkdir -p "$cache"
write_run
cd "$folder"
[ "$(./run venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" != "$version" ] || exit 0

log=$folder/log
if ! command -v debootstrap >/dev/null; then
    { apt-get -qq update && apt-get -qq --yes --no-install-recommends install debootstrap; } >"$log" 2>&1 ||
        fail "debootstrap cannot be installed; see $log"
fi
[ -f $keys ] || fail "$keys is not there, by which packages are checked; install debian-archive-keyring"
rm -rf root venv
# The name of a release that debootstrap is older than needs the script of another.
debootstrap --variant=minbase --include=ca-certificates,python3-venv --force-check-gpg --keyring=$keys \
    $suite root "" /usr/share/debootstrap/scripts/sid >"$log" 2>&1 ||
    fail "debootstrap failed: $(tail -n 1 "$log"); see $log"
export DEBIAN_FRONTEND=noninteractive
./run apt-get -qq --yes --no-install-recommends install git openjdk-21-jre-headless procps >>"$log" 2>&1 ||
    fail "Java and git cannot be installed; see $log"
./run python3 -m venv "$folder/venv" >>"$log" 2>&1 || fail "no virtual environment can be made; see $log"
found=$(./run venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$found" = "$version" ] || fail "Debian's $suite has $found by now"
