"""`wideload produce`: sends files or lines as messages, many concurrently, within a limit of bytes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, aclosing
from itertools import chain

import click

from app.commands.connection import client_of, connection_options
from app.commands.console import progress
from app.commands.packer import Packing, packing_of
from app.commands.source import KeyFrom, Refill, Source, file_sources, key_bytes, line_sources, tombstone
from app.config.chunking import Strategy
from app.config.settings import ClientSettings
from app.kafka.batches.batch import UNLIMITED_BYTES
from app.kafka.clients import ClusterError
from app.kafka.sender import BATCH_BYTES, CHUNK, Message, SendError, Sent, find_topic, open_sender
from app.kafka.topics import Topic
from transforms.batch_size import batch_of_one_bytes
from transforms.compression import CODECS
from transforms.errors import ConfigurationError
from transforms.record import Header, Record
from transforms.text import bytes_text, is_utf8


def _headers(given: Sequence[str]) -> tuple[Header, ...]:
    headers: list[Header] = []
    for text in given:
        name, separator, value = text.partition("=")
        if not name:
            raise ConfigurationError("--header", f"found {text!r}, allowed is NAME=VALUE, or NAME for a null value")
        if not is_utf8(name):
            raise ConfigurationError("--header", f"found the name {name!r}, which is not UTF-8")
        headers.append((name, value.encode(errors="surrogateescape") if separator else None))
    return tuple(headers)


def _refuse_too_large(
    sources: Sequence[Source], headers: tuple[Header, ...], topic: Topic, packing: Packing, codec: str
) -> None:
    """Refuses a source that cannot be sent, as far as is known before it is read."""
    measure = batch_of_one_bytes if packing.wrap is None else packing.wrap.batch_of_one_bytes
    limit = packing.limit(topic)
    for source in sources:
        size = source.size or 0
        if packing.strategy is not None:
            if size > limit.size and (codec == "none" or packing.pipeline is not None):
                raise ConfigurationError(
                    "FILE",
                    f"{source.name} has {size:,} bytes, but {limit.name} is {limit.size:,}, and readers with this "
                    "limit would refuse it; nothing was sent. Raise it in the configuration of -c, and in the readers",
                )
        elif codec == "none" and size + measure(Record(source.key, b"", headers)) > topic.max_message_bytes:
            raise ConfigurationError(
                "FILE",
                f"{source.name} has {size:,} bytes, but topic {topic.name} accepts messages of up to "
                f"{topic.max_message_bytes:,} (its max.message.bytes); nothing was sent. Raise the limit of the topic, "
                "or try --compression-type, or --strategy chunk",
            )


# --- the command -----------------------------------------------------------------------------------------------------


async def _records(
    sources: Iterator[Source | Refill], headers: tuple[Header, ...], limit: int
) -> AsyncIterator[tuple[Record, str]]:
    """Reads one message at a time; packer and sender limit the bytes that wait, and one more message is in memory."""
    for source in sources:
        if isinstance(source, Refill):
            await source.wait()
            source.read()
            continue
        try:
            if source.size is not None and source.size < BATCH_BYTES:
                value = source.read(limit + 1)
            else:
                value = await asyncio.to_thread(source.read, limit + 1)
        except OSError as exc:
            raise SendError(f"{source.name}: it cannot be read: {exc.strerror}") from exc
        yield Record(source.key, value, headers), source.name


async def _plain(records: AsyncIterator[tuple[Record, str]]) -> AsyncGenerator[tuple[Message, str]]:
    async for record, name in records:
        yield Message.plain(record), name


async def _produce(
    client: ClientSettings,
    topic: Topic,
    sources: Iterator[Source | Refill],
    total: int | None,
    headers: tuple[Header, ...],
    partition: int | None,
    codec: str,
    packing: Packing,
) -> Sent:
    # What compression makes of a value is not known before it is read.
    limit = packing.limit(topic).size if codec == "none" else UNLIMITED_BYTES - 1
    title = f"to {topic.name}" + (f", strategy {packing.strategy}" if packing.strategy else "")
    sent = Sent()
    try:
        with ExitStack() as stack:
            packer = None if packing.idle else packing.open(topic, codec, stack)
            advance = stack.enter_context(progress(title, total, unit="bytes"))
            async with open_sender(client, topic, codec, advance) as sender:
                sent = sender.sent
                records = _records(sources, headers, limit)
                try:
                    async with aclosing(_plain(records) if packer is None else packer.packed(records)) as messages:
                        async for message, name in messages:
                            await sender.send_message(message, name, partition)
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
            "references": sent.applied["offload"],
            "wrapped": sent.applied["wrap"],
            "chunked": sent.applied[CHUNK],
            "chunks": sent.chunks,
            "partitions": {
                str(partition): {"first": first, "last": last}
                for partition, (first, last) in sorted(sent.offsets.items())
            },
        }
        click.echo(json.dumps(summary))
        return
    where = ", ".join(f"{partition}: {first}-{last}" for partition, (first, last) in sorted(sent.offsets.items()))
    messages = "1 message" if sent.messages == 1 else f"{sent.messages:,} messages"
    forms = "".join(f"; {text}" for text in _forms(sent))
    click.echo(
        f"sent {messages} ({bytes_text(sent.size)}{forms}) to {topic} in {seconds:.1f} s"
        + (f"; offsets by partition: {where}" if where else "")
    )


def _forms(sent: Sent) -> Iterator[str]:
    """How messages were sent, if not unchanged."""
    if references := sent.applied["offload"]:
        yield f"{references:,} as {'a reference' if references == 1 else 'references'}"
    if wrapped := sent.applied["wrap"]:
        yield f"{wrapped:,} wrapped"
    if chunked := sent.applied[CHUNK]:
        yield f"{chunked:,} as {sent.chunks:,} chunks"


@click.command("produce")
@click.argument("topic")
@click.argument("files", nargs=-1, metavar="FILE…")
@connection_options
@click.option("--lines", is_flag=True, help="Send each line as a message; without FILE, from standard input.")
@click.option("-k", "--key", help="The key of all messages.")
@click.option(
    "--key-from",
    type=click.Choice(["name", "path", "none"]),
    default="name",
    show_default=True,
    help="The key of a file's message: its name, its path (below the directory, with --recursive), or null.",
)
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; may be repeated.")
@click.option("-p", "--partition", type=click.IntRange(0), help="The partition. Default: determined by the key.")
@click.option(
    "--tombstone", "tombstones", multiple=True, metavar="KEY", help="Send a null value for this key; may be repeated."
)
@click.option("-r", "--recursive", is_flag=True, help="Send all files of the given directories.")
@click.option(
    "--compression-type",
    "codec",
    type=click.Choice(["none", *CODECS]),
    default="none",
    show_default=True,
    help="The compression codec of batches.",
)
@click.option(
    "--strategy",
    type=click.Choice(["offload", "chunk", "auto"]),
    help="How to send values that the topic would refuse, as with large.message.strategy. offload stores them, and "
    "those above the threshold, in the store of -c; chunk splits them; auto offloads, but splits while the store is "
    "unavailable. By default they are refused.",
)
@click.option(
    "--wrap", is_flag=True, help="Send headers and value in a message wrapper; names of headers come from -c."
)
@click.option("--pipeline", metavar="NAME", help="The pipeline of -c for --strategy and --wrap, if there are several.")
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
    strategy: Strategy | None,
    wrap: bool,
    pipeline: str | None,
    as_json: bool,
) -> int:
    """Send each file as a message to a topic; - is standard input.

    Files larger than the topic's max.message.bytes are refused before anything is sent. With --strategy they are sent
    as references or chunks, from which wideload consume --inflate restores them. A message counts as sent when all
    in-sync replicas have acknowledged it.

    \b
    Examples:
      wideload produce raw-large *.jpg -b localhost:9092 --header source=camera-1
      wideload produce raw-large photos/ --recursive --key-from path -c wideload.toml
      seq 1000 | wideload produce numbers --lines -b localhost:9092
      wideload produce orders --tombstone order-17 -b localhost:9092
      wideload produce orders film.mp4 --strategy chunk -b localhost:9092
      wideload produce orders film.mp4 --strategy offload -c wideload.toml
      wideload produce raw-wrapped order.json --wrap --header trace-id=7 -c wideload.toml
    """
    if not files and not tombstones and not lines:
        raise click.UsageError("Missing argument 'FILE…'; - is standard input.")
    client = client_of(bootstrap_servers, config, extra)
    record_headers = _headers(headers)
    packing = packing_of(config, pipeline, strategy, wrap=wrap)

    async def run() -> Sent:
        found = await find_topic(client, topic)
        found.check_partition(partition)
        if found.shortage is not None:
            click.echo(f"wideload: warning: {found.shortage}", err=True)
        packing.check(found, record_headers, tombstones=bool(tombstones))
        deletes = [tombstone(name) for name in tombstones]
        sources: Iterator[Source | Refill]
        total = None
        if lines:
            limit = packing.limit(found)
            sources = chain(line_sources(files, None if key is None else key_bytes(key), limit), deletes)
        else:
            listed = [*file_sources(files, key, key_from, recursive=recursive), *deletes]
            _refuse_too_large(listed, record_headers, found, packing, codec)
            sources = iter(listed)
            if all(source.size is not None for source in listed):
                total = sum(source.size or 0 for source in listed)
        return await _produce(client, found, sources, total, record_headers, partition, codec, packing)

    started = time.monotonic()
    sent = asyncio.run(run())
    _report(topic, sent, time.monotonic() - started, as_json=as_json)
    return 0
