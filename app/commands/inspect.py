"""`wideload inspect`: lists the references, chunks and wrappers in a topic, and checks their payloads."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from typing import Any

import click

from app.commands.chunk_check import ChunkCheck, ChunkChecks
from app.commands.connection import client_of, connection_options, opened_store, pipeline_of
from app.commands.console import Advance, Column, Rows, progress
from app.commands.consume import json_line, text_json
from app.commands.reference_check import BAD, ReferenceCheck, check_reference
from app.commands.wrapper_check import WrapperCheck
from app.config.parsing import load
from app.config.settings import ClientSettings
from app.kafka.sender import find_topic
from app.kafka.source_batch import UnreadBatch
from app.kafka.topic_reader import Selection, open_reader
from stores.store import Stat
from transforms.chunk import is_chunk
from transforms.chunked_message import Limits
from transforms.errors import ConfigurationError
from transforms.formats import FORMATS, WIDELOAD, Format
from transforms.keyring import CIPHER
from transforms.record import RecordLike, SourceRecord
from transforms.reference import KEY, VALUE, Field, is_reference
from transforms.signing import Signing
from transforms.text import bytes_text, printable

_THREADS = 16  # concurrent store calls, which mostly wait for the network

_COLUMNS = (
    Column("partition", 9, ">"),
    Column("offset", 12, ">"),
    Column("of", 5),
    Column("payload", 9),
    Column("size", 10, ">"),
    Column("stored", 10, ">"),
    Column("codec", 6),
    Column("key", 24),
    Column("path", 60),
)


@dataclass(slots=True)
class _Totals:
    records: int = 0
    tombstones: int = 0
    references: int = 0
    value_bytes: int = 0
    referred_bytes: int = 0
    stored_bytes: int = 0
    states: Counter[str] = field(default_factory=Counter)
    unread: int = 0
    wrappers: int = 0
    chunks: int = 0
    messages: Counter[str] = field(default_factory=Counter)

    @property
    def bad(self) -> int:
        return sum(self.states[state] for state in BAD) + self.messages["broken"] + self.unread


class _Printer:
    def __init__(self, *, as_json: bool, only_bad: bool) -> None:
        self._rows = None if as_json else Rows(_COLUMNS, sys.stdout)
        self._only_bad = only_bad

    def show(self, record: SourceRecord, part: Field, check: ReferenceCheck) -> None:
        """Prints one reference."""
        if self._only_bad and not check.bad:
            return
        reference = check.reference
        if self._rows is None:
            sys.stdout.write(json_line(_line(record, part, check)))
            return
        size = None if reference is None else reference.size
        path = check.detail if reference is None else reference.path
        self._rows.add(
            str(record.partition),
            str(record.offset),
            part.name,
            check.state,
            "-" if size is None else bytes_text(size),
            "-" if check.stored is None else bytes_text(check.stored),
            (None if reference is None else reference.codec) or "-",
            printable(record.key, 24),
            printable(path or "", 500),
        )

    def show_unread(self, unread: UnreadBatch) -> None:
        """Prints why records are not read."""
        if self._rows is None:
            place = {"partition": unread.partition, "offset": unread.first, "last_offset": unread.offset}
            sys.stdout.write(json_line({**place, "unread": str(unread.error)}))
            return
        text = printable(str(unread.error), 500)
        self._rows.add(str(unread.partition), str(unread.first), "-", "unread", "-", "-", "-", "-", text)

    def show_wrapper(self, record: SourceRecord, check: WrapperCheck) -> None:
        """Prints one wrapper."""
        if self._only_bad:
            return
        if self._rows is None:
            sys.stdout.write(json_line(_wrapper_line(record, check)))
            return
        self._rows.add(
            str(record.partition),
            str(record.offset),
            VALUE.name,
            "wrapper",
            "-" if check.size is None else bytes_text(check.size),
            "-",
            "-",
            printable(record.key, 24),
            str(check),
        )

    def show_chunks(self, check: ChunkCheck) -> None:
        """Prints one chunked message."""
        if self._only_bad and not check.bad:
            return
        if self._rows is None:
            sys.stdout.write(json_line(_chunk_line(check)))
            return
        chunk = check.chunk
        named = "" if chunk is None else f"{chunk.count:,} chunks, uuid {chunk.uuid}"
        self._rows.add(
            str(check.record.partition),
            str(check.record.offset),
            VALUE.name,
            check.state,
            "-" if chunk is None else bytes_text(chunk.size),
            bytes_text(check.have),
            "-",
            printable(check.record.key, 24),
            printable("; ".join(filter(None, (named, check.detail))), 500),
        )

    def total(self, topic: str, totals: _Totals) -> None:
        """Prints the summary."""
        if self._rows is None:
            counts = {each.name: getattr(totals, each.name) for each in fields(totals)}
            counts["payloads"] = dict(sorted(counts.pop("states").items()))
            counts["messages"] = dict(sorted(counts.pop("messages").items()))
            click.echo(json.dumps({"summary": {"topic": topic, **counts}}))
            return
        states = ", ".join(f"{count:,} {state}" for state, count in sorted(totals.states.items()))
        click.echo(
            f"{topic}: {totals.records:,} records ({bytes_text(totals.value_bytes)}), {totals.references:,} references"
            f" to {bytes_text(totals.referred_bytes)}" + (f": {states}" if states else "")
        )
        if totals.unread:
            click.echo(
                f"{topic}: {totals.unread:,} records that cannot be read because they are too large or malformed"
            )
        if totals.wrappers:
            click.echo(f"{topic}: {totals.wrappers:,} wrappers")
        if totals.chunks:
            messages = ", ".join(f"{count:,} {state}" for state, count in sorted(totals.messages.items()))
            click.echo(f"{topic}: {totals.chunks:,} chunks, of messages that are: {messages}")


def _line(record: SourceRecord, part: Field, check: ReferenceCheck) -> dict[str, Any]:
    reference = check.reference
    encryption = None if reference is None else reference.encryption
    return {
        "partition": record.partition,
        "offset": record.offset,
        "key": text_json(record.key),
        "of": part.name,
        "payload": check.state,
        "path": None if reference is None else reference.path,
        "size": None if reference is None else reference.size,
        "stored": check.stored,
        "compression": None if reference is None else reference.codec,
        "checksum": None if reference is None else reference.checksum,
        **({} if encryption is None else {"encryption": CIPHER, "encryption_key": encryption.key_id}),
        **({} if check.detail is None else {"detail": check.detail}),
    }


def _wrapper_line(record: SourceRecord, check: WrapperCheck) -> dict[str, Any]:
    return {
        "partition": record.partition,
        "offset": record.offset,
        "key": text_json(record.key),
        "of": VALUE.name,
        "wrapper": check.version,
        "headers": check.headers,
        "size": check.size,
    }


def _chunk_line(check: ChunkCheck) -> dict[str, Any]:
    chunk = check.chunk
    return {
        "partition": check.record.partition,
        "offset": check.record.offset,
        "key": text_json(check.record.key),
        "of": VALUE.name,
        "message": check.state,
        "uuid": None if chunk is None else chunk.uuid,
        "chunks": None if chunk is None else chunk.count,
        "size": None if chunk is None else chunk.size,
        "read": check.have,
        "checksum": None if chunk is None else chunk.checksum,
        **({} if check.detail is None else {"detail": check.detail}),
    }


@dataclass(frozen=True, slots=True)
class _Settings:
    """The settings to read references.

    Attributes:
        limits: of incomplete chunked messages.
        store: None if there is no store, or it has no `stat`.
        format: the format of references in values.
        signing: None to accept all references.
    """

    store: Stat | None = None
    format: Format = WIDELOAD
    signing: Signing | None = None
    limits: Limits = field(default_factory=Limits)


class _Inspection:
    """One run of `inspect`: counts all records, and examines the references of a batch in parallel."""

    def __init__(self, printer: _Printer, settings: _Settings, executor: ThreadPoolExecutor) -> None:
        self.totals = _Totals()
        self._printer = printer
        self._settings = settings
        self._executor = executor
        self._chunks = ChunkChecks(settings.limits)

    async def take(self, read: Sequence[SourceRecord]) -> None:
        """Counts and examines one batch."""
        totals = self.totals
        records = [record for record in read if not isinstance(record, UnreadBatch)]
        for record in read:
            if isinstance(record, UnreadBatch):
                totals.unread += record.count
                self._printer.show_unread(record)
        wrappers = {at: found for at, record in enumerate(records) if (found := WrapperCheck.of(record)) is not None}
        contents: list[tuple[SourceRecord, RecordLike]] = [
            (record, wrappers[at].content if at in wrappers else record) for at, record in enumerate(records)
        ]
        references = [(record, content, part) for record, content in contents for part in self._parts(content)]
        totals.records += len(records)
        totals.tombstones += sum(record.value is None for record in records)
        totals.value_bytes += sum(len(record.value or b"") for record in records)
        totals.references += len(references)
        totals.wrappers += len(wrappers)
        for at, wrapper in wrappers.items():
            self._printer.show_wrapper(records[at], wrapper)
        loop = asyncio.get_running_loop()
        settings = self._settings
        checks = await asyncio.gather(
            *(
                loop.run_in_executor(
                    self._executor, check_reference, content, settings.store, settings.format, part, settings.signing
                )
                for _, content, part in references
            )
        )
        for (record, _, part), check in zip(references, checks, strict=True):
            totals.states[check.state] += 1
            totals.stored_bytes += check.stored or 0
            if check.reference is not None:
                # Other formats than ours have no size.
                totals.referred_bytes += check.reference.size or check.stored or 0
            self._printer.show(record, part, check)
        for record in records:
            if is_chunk(record.headers):
                totals.chunks += 1
                self._report(self._chunks.take(record))

    def finish(self) -> None:
        """Reports the messages whose last chunks were not read."""
        self._report(self._chunks.finish())

    def _report(self, checks: Iterable[ChunkCheck]) -> None:
        for check in checks:
            self.totals.messages[check.state] += 1
            self._printer.show_chunks(check)

    def _parts(self, record: RecordLike) -> Iterator[Field]:
        """The parts of a record that are references. Keys always have the format of the serializers."""
        if record.key is not None and is_reference(record.headers, KEY):
            yield KEY
        if self._settings.format.refers(record):
            yield VALUE


async def _inspect(
    client: ClientSettings, topic_name: str, selection: Selection, inspection: _Inspection, advance: Advance
) -> None:
    topic = await find_topic(client, topic_name)
    async with open_reader(client, topic, selection) as reader:
        async for batch in reader.batches():
            records = list(batch)
            await inspection.take(records)
            advance(len(records))
    inspection.finish()


def _settings(config: str | None, pipeline: str | None, stack: ExitStack) -> _Settings:
    if config is None:
        if pipeline is not None:
            raise ConfigurationError("--pipeline", "requires a configuration; pass it with -c FILE")
        return _Settings()
    loaded = load(config)
    if pipeline is None and not any(each.store for each in loaded.pipelines):
        return _Settings()
    settings = pipeline_of(loaded, pipeline)
    form = FORMATS[settings.reference_format]
    store = opened_store(settings, stack)
    limits = settings.chunks.limits
    if isinstance(store, Stat):
        return _Settings(store, form, settings.signing, limits)
    click.echo("wideload: this store cannot look a payload up without reading it; payloads are not checked", err=True)
    return _Settings(None, form, settings.signing, limits)


@click.command("inspect")
@click.argument("topic")
@connection_options
@click.option("-p", "--partition", type=click.IntRange(0), help="Read only this partition.")
@click.option("-n", "--max-messages", type=click.IntRange(1), help="Read only this many records, from the first.")
@click.option("--pipeline", metavar="NAME", help="The pipeline whose store holds the payloads, if there are several.")
@click.option("--only-bad", is_flag=True, help="List only references and messages with a problem.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines; the last one is the summary.")
def command(
    topic: str,
    bootstrap_servers: str | None,
    config: str | None,
    extra: tuple[str, ...],
    *,
    partition: int | None,
    max_messages: int | None,
    pipeline: str | None,
    only_bad: bool,
    as_json: bool,
) -> int:
    """List the references in a topic, and check that their payloads exist and have the right size.

    Chunks and message wrappers are listed too. A chunked message is whole, broken, or pending if its last chunks were
    not read. For a wrapper, the version, the number of headers and the size of the value are shown; a reference in a
    wrapper is checked like any other.

    The command does not download payloads, and therefore does not verify checksums. Without -c it reads only the
    records. Exits with 1 if a reference is malformed or has a wrong signature; if its payload is missing, has a
    different size, is outside the store's root, or could not be looked up; if chunks do not form a message; or if
    records could not be read because they are too large or malformed.

    \b
    Examples:
      wideload inspect orders -c wideload.toml
      wideload inspect orders -c wideload.toml --pipeline orders-offload --only-bad --json
    """
    client = client_of(bootstrap_servers, config, extra)
    selection = Selection(partition=partition, start="earliest", until_end=True, max_messages=max_messages)
    with ExitStack() as stack:
        settings = _settings(config, pipeline, stack)
        executor = stack.enter_context(ThreadPoolExecutor(_THREADS, thread_name_prefix="wideload-inspect"))
        printer = _Printer(as_json=as_json, only_bad=only_bad)
        inspection = _Inspection(printer, settings, executor)
        advance = stack.enter_context(progress(f"in {topic}", None, unit="messages", shown=not sys.stdout.isatty()))
        asyncio.run(_inspect(client, topic, selection, inspection, advance))
    printer.total(topic, inspection.totals)
    return 1 if inspection.totals.bad else 0
