"""The sources of `wideload produce`: files, lines and tombstones, whose values are read one at a time."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from app.kafka.sender import SendError
from transforms.errors import ConfigurationError

__all__ = ["KeyFrom", "Limit", "Source", "file_sources", "line_sources", "tombstone"]

KeyFrom = Literal["name", "path", "none"]

_STDIN = "-"


@dataclass(frozen=True, slots=True)
class Limit:
    """The longest value that can be sent.

    Attributes:
        size: in bytes.
        name: what says so, in messages to the user.
    """

    size: int
    name: str


@dataclass(frozen=True, slots=True)
class Source:
    """A message whose value is not read yet.

    Attributes:
        name: its name in messages to the user.
        key: the key of the record.
        size: of the value in bytes; None if it is not known before reading.
        read: returns the value, or at most as many bytes of it as the argument; blocks.
    """

    name: str
    key: bytes | None
    size: int | None
    read: Callable[[int], bytes | None]


def _file_source(path: Path, name: str, key: bytes | None) -> Source:
    try:
        status = path.stat()
        if not os.access(path, os.R_OK):
            raise ConfigurationError("FILE", f"{name} may not be read by this user")
    except OSError as exc:
        raise ConfigurationError("FILE", f"{name} cannot be read: {exc.strerror}") from exc

    def read(limit: int) -> bytes:
        with path.open("rb") as file:
            return file.read(limit)

    return Source(name, key, status.st_size if stat.S_ISREG(status.st_mode) else None, read)


def _key(key: str | None, key_from: KeyFrom, path: Path, below: str) -> bytes | None:
    if key is not None:
        return key.encode(errors="surrogateescape")
    return None if key_from == "none" else os.fsencode(path.name if key_from == "name" else below)


def file_sources(files: Sequence[str], key: str | None, key_from: KeyFrom, *, recursive: bool) -> Iterator[Source]:
    """Each file as a message; - is standard input.

    Raises:
        ConfigurationError: a file cannot be read, or is a folder and `recursive` is false.
    """
    for name in files:
        path = Path(name)
        if name == _STDIN:
            yield Source("standard input", _key(key, "none", path, ""), None, sys.stdin.buffer.read)
        elif not path.is_dir():
            yield _file_source(path, name, _key(key, key_from, path, name))
        elif not recursive:
            raise ConfigurationError("FILE", f"{name} is a folder; --recursive sends all files in it")
        else:
            found = sorted(child for child in path.rglob("*") if child.is_file())
            if not found:
                raise ConfigurationError("FILE", f"there is no file in the folder {name}")
            for child in found:
                yield _file_source(child, str(child), _key(key, key_from, child, child.relative_to(path).as_posix()))


def _lines(file: IO[bytes], name: str, key: bytes | None, limit: Limit) -> Iterator[Source]:
    number = 0
    while line := file.readline(limit.size + 2):
        number += 1
        if len(line) > limit.size + 1:
            raise SendError(f"{name}, line {number}: it is longer than {limit.size:,} bytes, {limit.name}")
        value = line.removesuffix(b"\n")
        yield Source(f"{name}, line {number}", key, len(value), lambda _, value=value: value)  # type: ignore[misc]


def line_sources(files: Sequence[str], key: bytes | None, limit: Limit) -> Iterator[Source]:
    """Each line as a message; standard input without files.

    Raises:
        ConfigurationError: a file cannot be read.
        SendError: a line is over the limit.
    """
    for name in files or [_STDIN]:
        if name == _STDIN:
            yield from _lines(sys.stdin.buffer, "standard input", key, limit)
            continue
        try:
            file = Path(name).open("rb")  # noqa: SIM115  # closed below; only a failure to open is a usage error
        except OSError as exc:
            raise ConfigurationError("FILE", f"{name} cannot be read: {exc.strerror}") from exc
        with file:
            yield from _lines(file, name, key, limit)


def tombstone(key: str) -> Source:
    """The tombstone of a key."""
    return Source(f"tombstone {key}", key.encode(errors="surrogateescape"), 0, lambda _: None)
