"""`wideload produce`: sends files or lines as messages, many at once, within a limit of bytes."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Literal

import click

from app.commands.connection import client_of, connection_options
from app.commands.console import progress
from app.config.settings import ClientSettings
from app.kafka.clients import ClusterError
from app.kafka.producer import UNLIMITED_BYTES
from app.kafka.sender import BATCH_BYTES, SendError, Sent, find_topic, open_sender
from app.kafka.topics import Topic
from transforms.batch_size import batch_of_one_bytes
from transforms.compression import CODECS
from transforms.errors import ConfigurationError
from transforms.record import Header, Record
from transforms.text import bytes_text

__all__ = ["Source", "command"]

KeyFrom = Literal["name", "path", "none"]

_STDIN = "-"


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


# --- what to send ----------------------------------------------------------------------------------------------------


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


def _file_sources(files: Sequence[str], key: str | None, key_from: KeyFrom, *, recursive: bool) -> Iterator[Source]:
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


def _lines(file: IO[bytes], name: str, key: bytes | None, limit: int) -> Iterator[Source]:
    number = 0
    while line := file.readline(limit + 2):
        number += 1
        if len(line) > limit + 1:
            raise SendError(f"{name}, line {number}: it is longer than {limit:,} bytes, the limit of the topic")
        value = line.removesuffix(b"\n")
        yield Source(f"{name}, line {number}", key, len(value), lambda _, value=value: value)  # type: ignore[misc]


def _line_sources(files: Sequence[str], key: bytes | None, limit: int) -> Iterator[Source]:
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


def _headers(given: Sequence[str]) -> tuple[Header, ...]:
    headers: list[Header] = []
    for text in given:
        name, separator, value = text.partition("=")
        if not name:
            raise ConfigurationError("--header", f"found {text!r}, allowed is NAME=VALUE, or NAME for a null value")
        headers.append((name, value.encode(errors="surrogateescape") if separator else None))
    return tuple(headers)


def _refuse_too_large(sources: Sequence[Source], headers: tuple[Header, ...], topic: Topic) -> None:
    for source in sources:
        size = (source.size or 0) + batch_of_one_bytes(Record(source.key, b"", headers))
        if size > topic.max_message_bytes:
            raise ConfigurationError(
                "FILE",
                f"{source.name} has {source.size:,} bytes, but topic {topic.name} accepts messages of up to "
                f"{topic.max_message_bytes:,} (its max.message.bytes); nothing was sent. Raise the limit of the topic, "
                "or try --compression-type",
            )


# --- the command -----------------------------------------------------------------------------------------------------


async def _records(
    sources: Iterator[Source], headers: tuple[Header, ...], limit: int
) -> AsyncIterator[tuple[Record, str]]:
    """Reads one message at a time; the sender limits the bytes in flight, and one more message is in memory."""
    for source in sources:
        try:
            if source.size is not None and source.size < BATCH_BYTES:
                value = source.read(limit + 1)
            else:
                value = await asyncio.to_thread(source.read, limit + 1)
        except OSError as exc:
            raise SendError(f"{source.name}: it cannot be read: {exc.strerror}") from exc
        yield Record(source.key, value, headers), source.name


async def _produce(
    client: ClientSettings,
    topic_name: str,
    plan: Callable[[Topic], tuple[Iterator[Source], int | None]],
    headers: tuple[Header, ...],
    partition: int | None,
    codec: str,
) -> Sent:
    topic = await find_topic(client, topic_name)
    topic.check_partition(partition)
    sources, total = plan(topic)
    limit = topic.max_message_bytes if codec == "none" else UNLIMITED_BYTES - 1
    sent = Sent()
    try:
        with progress(f"to {topic.name}", total, unit="bytes") as advance:
            async with open_sender(client, topic, codec, advance) as sender:
                sent = sender.sent
                try:
                    async for record, name in _records(sources, headers, limit):
                        await sender.send(record, name, partition)
                finally:
                    # Messages handed over before the error are still sent, in order, and counted.
                    await sender.drain()
    except (SendError, ClusterError, OSError, asyncio.CancelledError) as exc:
        why = "interrupted" if isinstance(exc, asyncio.CancelledError) else str(exc)
        raise SendError(f"{why} ({sent.messages} messages were sent before)") from exc
    return sent


def _report(topic: str, sent: Sent, seconds: float, *, as_json: bool) -> None:
    if as_json:
        summary = {
            "topic": topic,
            "messages": sent.messages,
            "bytes": sent.size,
            "seconds": round(seconds, 3),
            "partitions": {
                str(partition): {"first": first, "last": last}
                for partition, (first, last) in sorted(sent.offsets.items())
            },
        }
        click.echo(json.dumps(summary))
        return
    where = ", ".join(f"{partition}: {first}-{last}" for partition, (first, last) in sorted(sent.offsets.items()))
    messages = "1 message" if sent.messages == 1 else f"{sent.messages:,} messages"
    click.echo(
        f"sent {messages} ({bytes_text(sent.size)}) to {topic} in {seconds:.1f} s"
        + (f"; offsets by partition: {where}" if where else "")
    )


@click.command("produce")
@click.argument("topic")
@click.argument("files", nargs=-1, metavar="FILE…")
@connection_options
@click.option("--lines", is_flag=True, help="Send each line as a message; without FILE, from standard input.")
@click.option("-k", "--key", help="The key of every message.")
@click.option(
    "--key-from",
    type=click.Choice(["name", "path", "none"]),
    default="name",
    show_default=True,
    help="The key of a file's message: its name, its path (below the folder, with --recursive), or null.",
)
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; may be repeated.")
@click.option("-p", "--partition", type=click.IntRange(0), help="The partition. By default the key decides.")
@click.option("--tombstone", "tombstones", multiple=True, metavar="KEY", help="Send a null value for this key.")
@click.option("-r", "--recursive", is_flag=True, help="Send all files of the given folders.")
@click.option(
    "--compression-type",
    "codec",
    type=click.Choice(["none", *CODECS]),
    default="none",
    show_default=True,
    help="The compression of batches.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(
    topic: str,
    files: tuple[str, ...],
    bootstrap_servers: str | None,
    config: str | None,
    extra: tuple[str, ...],
    *,
    lines: bool,
    key: str | None,
    key_from: KeyFrom,
    headers: tuple[str, ...],
    partition: int | None,
    tombstones: tuple[str, ...],
    recursive: bool,
    codec: str,
    as_json: bool,
) -> int:
    """Send each file as a message to a topic; - is standard input.

    Files larger than the topic's max.message.bytes are refused before anything is sent. A message counts as sent when
    all in-sync replicas have it.

    \b
    Examples:
      wideload produce raw-large *.jpg -b localhost:9092 --header source=camera-1
      wideload produce raw-large photos/ --recursive --key-from path -c wideload.toml
      seq 1000 | wideload produce numbers --lines -b localhost:9092
      wideload produce orders --tombstone order-17 -b localhost:9092
    """
    if not files and not tombstones and not lines:
        raise click.UsageError("Missing argument 'FILE…'; - is standard input.")
    client = client_of(bootstrap_servers, config, extra)
    record_headers = _headers(headers)

    def plan(found: Topic) -> tuple[Iterator[Source], int | None]:
        deletes = [
            Source(f"tombstone {name}", name.encode(errors="surrogateescape"), 0, lambda _: None) for name in tombstones
        ]
        if lines:
            sources = _line_sources(files, None if key is None else key.encode(), found.max_message_bytes)
            return chain(sources, deletes), None
        listed = [*_file_sources(files, key, key_from, recursive=recursive), *deletes]
        if codec == "none":
            _refuse_too_large(listed, record_headers, found)
        known = all(source.size is not None for source in listed)
        return iter(listed), sum(source.size or 0 for source in listed) if known else None

    started = time.monotonic()
    sent = asyncio.run(_produce(client, topic, plan, record_headers, partition, codec))
    _report(topic, sent, time.monotonic() - started, as_json=as_json)
    return 0
