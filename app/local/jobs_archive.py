"""The code of the jobs as one file, for `spark-submit --py-files`.

    python -m app.local.jobs_archive build/jobs.zip

The same code always gives the same file, byte for byte.
"""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile, ZipInfo

__all__ = ["PACKAGES", "write"]

PACKAGES = ("jobs", "stores", "transforms")

_ROOT = Path(__file__).resolve().parents[2]
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can hold
_MODE = 0o100644 << 16
_UNIX = 3


def write(file: Path) -> int:
    """Writes the archive, and makes its folder; returns the number of modules in it.

    Raises:
        OSError: the file cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    modules = sorted(module for package in PACKAGES for module in (_ROOT / package).rglob("*.py"))
    with ZipFile(file, "w", ZIP_STORED) as archive:  # each version of zlib compresses to different bytes
        for module in modules:
            entry = ZipInfo(module.relative_to(_ROOT).as_posix(), _EPOCH)
            entry.external_attr, entry.create_system = _MODE, _UNIX
            archive.writestr(entry, module.read_bytes())
    return len(modules)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    print(f"{target}: {write(target)} modules of {', '.join(PACKAGES)}")
