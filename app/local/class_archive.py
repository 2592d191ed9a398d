"""Archives of the classes that a Java program loads, with which the program starts in half the CPU time.

This is Java's class-data sharing. An archive fits one build of Java and one class path, so it is stored next to the
jars, with the digest of Java's files in its name, and is removed when the jars are fetched again. Without an archive,
or with one that Java does not accept, a program starts as usual.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

_MAGIC_BYTES = 4


def archive(folder: Path, java: Path) -> Path:
    """The path of the archive for programs of this `java` with the jars of this directory."""
    command = java.resolve()
    # What an update of Java replaces, under the name of the old one.
    parts = [command, *(command.parent.parent / name for name in ("lib/modules", "lib/server/libjvm.so", "release"))]
    seen = [(str(part), status.st_size, status.st_mtime_ns) for part in parts if (status := _status(part))]
    return folder / f"classes-{hashlib.sha256(repr(seen).encode()).hexdigest()[:12]}.jsa"


def using(path: Path) -> tuple[str, ...]:
    """The options for a `java` that loads its classes from the archive; none if there is no archive."""
    # Java's messages about an archive are suppressed, because they would be mixed with the program's output.
    return (f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-Xlog:cds*=off", "-Xlog:class*=off") * path.exists()


@contextlib.contextmanager
def recorded(path: Path) -> Iterator[tuple[str, ...]]:
    """The options for a `java` that writes the archive when it exits normally. If it does not, there is no archive."""
    with tempfile.TemporaryDirectory(prefix=".recording-", dir=path.parent) as scratch:
        made = Path(scratch, path.name)
        yield (f"-XX:ArchiveClassesAtExit={made}", "-Xshare:auto", "-Xlog:cds*=off", "-Xlog:class*=off")
        if made.exists():
            with made.open("rb") as file:
                whole = any(file.read(_MAGIC_BYTES))  # Java writes the header last
                # Java ends with SIGBUS if an archive is shorter than its header says, as after a power failure.
                os.fsync(file.fileno())
            if whole:
                made.rename(path)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
