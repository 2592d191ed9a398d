"""Contenders in Java: compiled once, then started as the others are."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from app.local import java
from benchmarks.race import BenchmarkError

_COLLECTOR = "-XX:+UseParallelGC"  # for these loops the fastest here, and the leanest: 13 µs a record, with G1 15.6
# `javac` is not in every Java, but what it calls is.
_COMPILER = ("-m", "jdk.compiler/com.sun.tools.javac.Main")


def compiled(source: Path, jars: Sequence[Path], folder: Path, *, heap: str = "512m") -> list[str]:
    """The command that runs `source`, a class of that name with a `main`; its arguments follow.

    Args:
        source: one file of Java.
        jars: what it needs.
        folder: the directory for its classes.
        heap: Java's, in the form of `-Xmx`.

    Raises:
        BenchmarkError: it does not compile.
        JavaMissingError: there is no Java.
    """
    command, path = str(java.find()), ":".join(map(str, jars))
    ended = subprocess.run(
        [command, *_COMPILER, "-cp", path, "-d", str(folder), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise BenchmarkError(f"{source.name} does not compile: {ended.stderr}{ended.stdout}")
    return [command, f"-Xms{heap}", f"-Xmx{heap}", _COLLECTOR, "-cp", f"{folder}:{path}", source.stem]
