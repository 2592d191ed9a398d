"""The code of the jobs as one file, for `spark-submit --py-files`.

    python -m wideload.jobs.archive build/jobs.zip

The same code always yields the same file, byte for byte. From a checkout it has the directories of a checkout, and from
an installed package those of the package; `wideload.jobs` is in both.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile, ZipInfo

_BEFORE_OURS = (__package__ or "").removesuffix("app.local")  # empty in a checkout
_PACKAGES = ("wideload",) if _BEFORE_OURS else ("app", "jobs", "stores", "transforms", "wideload")
_ROOT = Path(__file__).resolve().parents[2 + _BEFORE_OURS.count(".")]
_APP = f"{_BEFORE_OURS.replace('.', '/')}app/"
_OF_APP = (f"{_APP}__init__.py", f"{_APP}payloads/", f"{_APP}kafka/", f"{_APP}config/")  # the rooms that jobs import
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can hold
_MODE = 0o100644 << 16
_UNIX = 3


def write(file: Path) -> int:
    """Writes the archive, and creates its directory; returns the number of modules in it.

    Raises:
        OSError: the file cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    found = sorted(module for package in _PACKAGES for module in (_ROOT / package).rglob("*.py"))
    named = {path.relative_to(_ROOT).as_posix(): path for path in found}
    modules = {name: path for name, path in named.items() if not name.startswith(_APP) or name.startswith(_OF_APP)}
    with ZipFile(file, "w", ZIP_STORED) as archive:  # each version of zlib compresses to different bytes
        for name, module in modules.items():
            entry = ZipInfo(name, _EPOCH)
            entry.external_attr, entry.create_system = _MODE, _UNIX
            archive.writestr(entry, module.read_bytes())
    return len(modules)


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the archive to the path on the command line; returns the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1 or given[0].startswith("-"):
        print("usage: python -m wideload.jobs.archive FILE", file=sys.stderr)
        return 2
    print(f"{given[0]}: {write(Path(given[0]))} modules of {', '.join(_PACKAGES)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
