"""Archives of the classes that a Java program loads: with one, the program starts in half the CPU time.

Java calls it class-data sharing. An archive fits one build of Java and one class path, so it stands beside the jars,
with the digest of Java's files in its name; who fetches the jars again removes it. Without an archive, and with one
that Java does not take, a program starts as ever.
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
    """The path of the archive for programs of this `java` with the jars of this folder."""
    command = java.resolve()
    # What an update of Java replaces, under the name of the old one.
    parts = [command, *(command.parent.parent / name for name in ("lib/modules", "lib/server/libjvm.so", "release"))]
    seen = [(str(part), status.st_size, status.st_mtime_ns) for part in parts if (status := _status(part))]
    return folder / f"classes-{hashlib.sha256(repr(seen).encode()).hexdigest()[:12]}.jsa"


def using(path: Path) -> tuple[str, ...]:
    """The options of a `java` that takes its classes from the archive; none if it is not there."""
    # What Java thinks of an archive is said to nobody: it would stand between the lines that the program prints.
    return (f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-Xlog:cds*=off", "-Xlog:class*=off") * path.exists()


@contextlib.contextmanager
def recorded(path: Path) -> Iterator[tuple[str, ...]]:
    """The options of a `java` that writes the archive when it ends in order; it is there after the block, or not."""
    with tempfile.TemporaryDirectory(prefix=".recording-", dir=path.parent) as scratch:
        made = Path(scratch, path.name)
        yield (f"-XX:ArchiveClassesAtExit={made}", "-Xshare:auto", "-Xlog:cds*=off", "-Xlog:class*=off")
        if made.exists():
            with made.open("rb") as file:
                whole = any(file.read(_MAGIC_BYTES))  # Java writes the header last
                # Java ends with SIGBUS where an archive is shorter than it says, as after a power cut.
                os.fsync(file.fileno())
            if whole:
                made.rename(path)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
