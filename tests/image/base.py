"""A stand-in for the base image of the Dockerfile, where no registry can be reached: Debian with its Python.

It differs from the real one: Python is Debian's 3.11 and lies in /usr, not in /usr/local. What the Dockerfile uses is
where it expects it: `python` and `pip` in /usr/local/bin, and a pip that can be removed again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

from tests.image.tools import ImageError, needed, run, say

_SUITE = "bookworm"
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# The wheels are pip and setuptools, for the pip that is installed below.
_PACKAGES = ("ca-certificates", "python3-pip-whl", "python3-setuptools-whl", "python3.11")
_PIP = """\
import glob, sys
sys.path[:0] = glob.glob("/usr/share/python-wheels/*.whl")
from pip._internal.cli.main import main
wheels = ["--no-index", "--find-links=/usr/share/python-wheels", "--no-cache-dir", "--root-user-action=ignore"]
sys.exit(main(["install", "--quiet", *wheels, "pip", "setuptools"]))
"""
# As in the official image, which has neither lists of packages nor caches.
_EMPTIED = ("var/cache/apt", "var/lib/apt/lists", "var/log", "usr/share/python-wheels")


def stand_in(cache: Path, work: Path) -> Path:
    """The archive of its root file system; made with debootstrap unless the cache has it.

    Raises:
        ImageError: debootstrap or Debian's keys are missing, or it fails.
    """
    archive = cache / f"base-{_SUITE}.tar"
    if archive.is_file():
        say(f"{archive}, made before; remove it for newer packages")
        return archive
    needed("debootstrap")
    if not _KEYS.is_file():
        raise ImageError(f"{_KEYS} not found, by which packages are checked. Run: sudo apt-get install {_KEYS.stem}")
    root = work / "base"
    checked = ("--force-check-gpg", f"--keyring={_KEYS}")
    run("debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}", *checked, _SUITE, root)
    (root / "usr/local/bin/python").symlink_to("../../bin/python3.11")
    # Debian's mark that pip shall install nothing there.
    (root / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink(missing_ok=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    subprocess.run(["chroot", root, "python", "-c", _PIP], check=True, env=clean)
    for folder in _EMPTIED:
        shutil.rmtree(root / folder)
        (root / folder).mkdir()
    # Debian's copy of the resolver's settings is this machine's.
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    cache.mkdir(parents=True, exist_ok=True)
    part = archive.with_suffix(".part")
    with tarfile.open(part, "w") as tar:
        tar.add(root, arcname=".")
    part.rename(archive)
    shutil.rmtree(root)
    return archive
