"""Programs that the test of the image runs, and what it says meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_TAIL = 30


class ImageError(Exception):
    """The image could not be built or run, or is not what it should be."""


def say(text: str) -> None:
    """Prints a line."""
    print(f"  {text}", flush=True)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Says what begins, and how long it took."""
    print(f"{title} ...", flush=True)
    began = time.monotonic()
    yield
    say(f"{time.monotonic() - began:.1f} s")


def expect(found: object, wanted: object, what: str) -> None:
    """Says what was found.

    Raises:
        ImageError: it is not what is wanted.
    """
    if found != wanted:
        raise ImageError(f"{what}: found {found!r}, expected {wanted!r}")
    say(f"{what}: {found}")


def needed(*programs: str) -> None:
    """Installs programs of the same names as their Debian packages, where that may be done.

    Raises:
        ImageError: one is missing, and this user cannot install it.
    """
    missing = [each for each in programs if shutil.which(each) is None]
    if not missing:
        return
    command = f"apt-get install --no-install-recommends {' '.join(missing)}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ImageError(f"{' and '.join(missing)} not found. On Debian or Ubuntu run: sudo {command}")
    say(command)
    run("apt-get", "-qq", "update")
    run("apt-get", "-qq", "-y", "install", "--no-install-recommends", *missing)


def run(*command: str | Path, folder: Path | None = None, shown: Sequence[str] = ()) -> str:
    """What a program prints.

    Args:
        command: the program and its arguments.
        folder: where it runs.
        shown: a line that begins with one of these is shown as soon as it is printed.

    Raises:
        ImageError: it fails; with the end of what it printed.
    """
    process = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if shown and line.startswith(tuple(shown)):
                say(line.strip()[:110])
        status = process.wait()
    finally:
        process.kill()
    if status:
        print("".join(lines[-_TAIL:]), file=sys.stderr)
        raise ImageError(f"{' '.join(map(str, command[:3]))} … ended with status {status}; its last lines are above")
    return "".join(lines)
