"""The sources of `wideload produce`: files, lines and tombstones, whose values are read one at a time."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.kafka.sender import SendError
from transforms.errors import ConfigurationError

KeyFrom = Literal["name", "path", "none"]

_STDIN = "-"
_READ_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Limit:
    """The longest value that can be sent.

    Attributes:
        size: in bytes.
        name: what sets the limit, in messages to the user.
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


@dataclass(frozen=True, slots=True)
class Refill:
    """The next message has not been read yet: wait until the file is readable, call `read`, and continue.

    Attributes:
        fd: the number of the open file.
        read: reads what is there; blocks if nothing is.
    """

    fd: int
    read: Callable[[], None]

    async def wait(self) -> None:
        """Waits until there is something to read, or the end. A file on a disk can be read at any time."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        try:
            loop.add_reader(self.fd, readable.set)
        except PermissionError:
            return
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self.fd)


def key_bytes(key: str) -> bytes:
    """The bytes of a key on the command line, which need not be UTF-8."""
    return key.encode(errors="surrogateescape")


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
        return key_bytes(key)
    return None if key_from == "none" else os.fsencode(path.name if key_from == "name" else below)


def file_sources(files: Sequence[str], key: str | None, key_from: KeyFrom, *, recursive: bool) -> Iterator[Source]:
    """Each file as a message; - is standard input.

    Raises:
        ConfigurationError: a file cannot be read, or is a directory and `recursive` is false.
    """
    for name in files:
        path = Path(name)
        if name == _STDIN:
            yield Source("standard input", _key(key, "none", path, ""), None, sys.stdin.buffer.read)
        elif not path.is_dir():
            yield _file_source(path, name, _key(key, key_from, path, name))
        elif not recursive:
            raise ConfigurationError("FILE", f"{name} is a directory; --recursive sends all files in it")
        else:
            found = sorted(child for child in path.rglob("*") if child.is_file())
            if not found:
                raise ConfigurationError("FILE", f"directory {name} contains no files")
            for child in found:
                yield _file_source(child, str(child), _key(key, key_from, child, child.relative_to(path).as_posix()))


def _lines(fd: int, name: str, key: bytes | None, limit: Limit) -> Iterator[Source | Refill]:
    """The lines of an open file, each as soon as it is there."""
    held = bytearray()
    number = searched = 0
    ended = False

    def read() -> None:
        nonlocal ended
        data = os.read(fd, _READ_BYTES)
        ended = not data
        held.extend(data)

    def line(start: int, end: int) -> Source:
        nonlocal number
        number += 1
        if end - start > limit.size:
            raise SendError(f"{name}, line {number}: it is longer than {limit.size:,} bytes, {limit.name}")
        value = bytes(held[start:end])
        return Source(f"{name}, line {number}", key, len(value), lambda _: value)

    while not ended:
        yield Refill(fd, read)
        start = 0
        while (end := held.find(b"\n", searched)) >= 0:
            yield line(start, end)
            start = searched = end + 1
        del held[:start]
        searched = len(held)
        if searched > limit.size:
            yield line(0, searched)
    if held:
        yield line(0, len(held))


def line_sources(files: Sequence[str], key: bytes | None, limit: Limit) -> Iterator[Source | Refill]:
    """Each line as a message; standard input without files.

    Raises:
        ConfigurationError: a file cannot be read.
        SendError: a line is over the limit.
    """
    for name in files or [_STDIN]:
        if name == _STDIN:
            yield from _lines(sys.stdin.fileno(), "standard input", key, limit)
            continue
        try:
            file = Path(name).open("rb")  # noqa: SIM115  # closed below; only a failure to open is a usage error
        except OSError as exc:
            raise ConfigurationError("FILE", f"{name} cannot be read: {exc.strerror}") from exc
        with file:
            yield from _lines(file.fileno(), name, key, limit)


def tombstone(key: str) -> Source:
    """The tombstone of a key."""
    return Source(f"tombstone {key}", key_bytes(key), 0, lambda _: None)
