"""`wideload inspect`: which records are references, and whether the payload of each is there."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import click

from app.commands.connection import client_of, connection_options, pipeline_of
from app.commands.console import Column, Progress, Rows, progress
from app.commands.consume import json_line, text_json
from app.config.parsing import load
from app.config.settings import ClientSettings
from app.kafka.sender import find_topic
from app.kafka.topic_reader import Selection, open_reader
from stores.registry import open_store
from stores.store import Stat
from transforms.errors import (
    ConfigurationError,
    MalformedReferenceError,
    PayloadNotFoundError,
    PayloadStoreError,
    ReferenceRefusedError,
    SignatureError,
)
from transforms.formats import FORMATS, WIDELOAD, Format
from transforms.record import SourceRecord
from transforms.reference import KEY, VALUE, Field, Reference, is_reference
from transforms.signing import Signing
from transforms.text import bytes_text, printable

__all__ = ["Finding", "command", "examine"]

State = Literal["ok", "unchecked", "missing", "size", "refused", "malformed", "unknown"]

_THREADS = 16  # calls of the store at once; each waits for the network most of its time
_BAD: frozenset[State] = frozenset({"missing", "size", "refused", "malformed", "unknown"})

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


@dataclass(frozen=True, slots=True)
class Finding:
    """What a reference record comes to.

    Attributes:
        state: `ok`: the payload is there, with the size that it must have. `unchecked`: no store was given, or it
            cannot be asked. `missing`: there is none. `size`: it has another size. `refused`: the path is not below the
            store's root, or the reference is not signed as it has to be. `malformed`: the record is no reference that
            can be read. `unknown`: the store failed.
        reference: None where it is malformed.
        stored: bytes in the store; None where they are not known.
        detail: what is wrong, for people.
    """

    state: State
    reference: Reference | None = None
    stored: int | None = None
    detail: str | None = None

    @property
    def bad(self) -> bool:
        """Whether something is wrong."""
        return self.state in _BAD


def examine(
    record: SourceRecord,
    store: Stat | None,
    form: Format = WIDELOAD,
    part: Field = VALUE,
    signing: Signing | None = None,
) -> Finding:
    """Looks at one reference, and asks the store for its payload where there is one. Blocks.

    Args:
        record: its value, or its key, is a reference.
        store: None where no store is known.
        form: the format of references of values.
        part: which of the two.
        signing: says which references are genuine; None where all are taken.
    """
    try:
        if part is KEY:
            reference, _ = Reference.read(record.key, record.headers, KEY)
        else:
            reference, _ = form.read_reference(record)
    except MalformedReferenceError as exc:
        return Finding("malformed", detail=str(exc))
    try:
        if signing is not None:
            signing.verify(reference, part)
    except SignatureError as exc:
        return Finding("refused", reference, detail=str(exc))
    return Finding("unchecked", reference) if store is None else _look(reference, store)


def _look(reference: Reference, store: Stat) -> Finding:
    try:
        stored = store.stat(reference.path).size
    except PayloadNotFoundError as exc:
        return Finding("missing", reference, detail=str(exc))
    except ReferenceRefusedError as exc:
        return Finding("refused", reference, detail=str(exc))
    except PayloadStoreError as exc:
        return Finding("unknown", reference, detail=str(exc))
    size = reference.size
    # Compressed bytes are used only where they are fewer.
    wrong = size is not None and (stored != size if reference.codec is None else stored > size)
    if wrong:
        return Finding("size", reference, stored, f"the store has {stored:,} bytes, the reference says {size:,}")
    return Finding("ok", reference, stored)


@dataclass(slots=True)
class _Totals:
    records: int = 0
    tombstones: int = 0
    references: int = 0
    value_bytes: int = 0
    referred_bytes: int = 0
    stored_bytes: int = 0
    states: Counter[str] = field(default_factory=Counter)

    @property
    def bad(self) -> int:
        return sum(self.states[state] for state in _BAD)


class _Printer:
    def __init__(self, *, as_json: bool, only_bad: bool) -> None:
        self._rows = None if as_json else Rows(_COLUMNS, sys.stdout)
        self._only_bad = only_bad

    def show(self, record: SourceRecord, part: Field, finding: Finding) -> None:
        """Shows one reference."""
        if self._only_bad and not finding.bad:
            return
        reference = finding.reference
        if self._rows is None:
            sys.stdout.write(json_line(_line(record, part, finding)))
            return
        size = None if reference is None else reference.size
        path = finding.detail if reference is None else reference.path
        self._rows.add(
            str(record.partition),
            str(record.offset),
            part.name,
            finding.state,
            "-" if size is None else bytes_text(size),
            "-" if finding.stored is None else bytes_text(finding.stored),
            (None if reference is None else reference.codec) or "-",
            printable(record.key, 24),
            printable((path or "").encode(errors="replace"), 500),
        )

    def total(self, topic: str, totals: _Totals) -> None:
        """Shows the sums."""
        if self._rows is None:
            summary = {
                "topic": topic,
                "records": totals.records,
                "tombstones": totals.tombstones,
                "references": totals.references,
                "value_bytes": totals.value_bytes,
                "referred_bytes": totals.referred_bytes,
                "stored_bytes": totals.stored_bytes,
                "payloads": dict(sorted(totals.states.items())),
            }
            click.echo(json.dumps({"summary": summary}))
            return
        states = ", ".join(f"{count:,} {state}" for state, count in sorted(totals.states.items()))
        click.echo(
            f"{topic}: {totals.records:,} records ({bytes_text(totals.value_bytes)}), {totals.references:,} references"
            f" to {bytes_text(totals.referred_bytes)}" + (f": {states}" if states else "")
        )


def _line(record: SourceRecord, part: Field, finding: Finding) -> dict[str, Any]:
    reference = finding.reference
    return {
        "partition": record.partition,
        "offset": record.offset,
        "key": text_json(record.key),
        "of": part.name,
        "payload": finding.state,
        "path": None if reference is None else reference.path,
        "size": None if reference is None else reference.size,
        "stored": finding.stored,
        "compression": None if reference is None else reference.codec,
        "checksum": None if reference is None else reference.checksum,
        **({} if finding.detail is None else {"detail": finding.detail}),
    }


@dataclass(frozen=True, slots=True)
class _Readers:
    """What references are read by.

    Attributes:
        store: None where no store is known, or it cannot be asked.
        format: of references of values.
        signing: None where all are taken.
    """

    store: Stat | None = None
    format: Format = WIDELOAD
    signing: Signing | None = None


class _Inspection:
    """One `inspect`: counts all records, and examines references some at a time, in order."""

    def __init__(self, printer: _Printer, readers: _Readers, executor: ThreadPoolExecutor) -> None:
        self.totals = _Totals()
        self._format = readers.format
        self._printer = printer
        self._readers = readers
        self._executor = executor

    async def take(self, records: Sequence[SourceRecord]) -> None:
        """Counts and examines one batch."""
        totals = self.totals
        references = [(record, part) for record in records for part in self._parts(record)]
        totals.records += len(records)
        totals.tombstones += sum(record.value is None for record in records)
        totals.value_bytes += sum(len(record.value or b"") for record in records)
        totals.references += len(references)
        loop = asyncio.get_running_loop()
        readers = self._readers
        findings = await asyncio.gather(
            *(
                loop.run_in_executor(
                    self._executor, examine, record, readers.store, readers.format, part, readers.signing
                )
                for record, part in references
            )
        )
        for (record, part), finding in zip(references, findings, strict=True):
            totals.states[finding.state] += 1
            totals.stored_bytes += finding.stored or 0
            if finding.reference is not None:
                # Other formats than ours do not say a size.
                totals.referred_bytes += finding.reference.size or finding.stored or 0
            self._printer.show(record, part, finding)

    def _parts(self, record: SourceRecord) -> Iterator[Field]:
        """What of a record is a reference. Those of keys have one format, that of the serializers."""
        if record.key is not None and is_reference(record.headers, KEY):
            yield KEY
        if self._format.refers(record):
            yield VALUE


async def _inspect(
    client: ClientSettings, topic_name: str, selection: Selection, inspection: _Inspection, bar: Progress
) -> None:
    topic = await find_topic(client, topic_name)
    async with open_reader(client, topic, selection) as reader:
        async for records in reader.batches():
            await inspection.take(records)
            bar.advance(len(records))


def _readers(config: str | None, pipeline: str | None, stack: ExitStack) -> _Readers:
    if config is None:
        if pipeline is not None:
            raise ConfigurationError("--pipeline", "needs the configuration that it is in: -c FILE")
        return _Readers()
    loaded = load(config)
    if pipeline is None and not any(each.store for each in loaded.pipelines):
        return _Readers()
    settings = pipeline_of(loaded, pipeline)
    form = FORMATS[settings.reference_format]
    try:
        store = open_store(settings.store)
    except ConfigurationError as exc:
        raise exc.within(settings.name) from exc
    stack.callback(store.close)
    if isinstance(store, Stat):
        return _Readers(store, form, settings.signing)
    click.echo(
        "wideload: this store cannot be asked for a payload without reading it; payloads are not checked", err=True
    )
    return _Readers(None, form, settings.signing)


@click.command("inspect")
@click.argument("topic")
@connection_options
@click.option("-p", "--partition", type=click.IntRange(0), help="Only this partition.")
@click.option("-n", "--max-messages", type=click.IntRange(1), help="Look at so many records, from the beginning.")
@click.option("--pipeline", metavar="NAME", help="The pipeline whose store holds the payloads, if there are several.")
@click.option("--only-bad", is_flag=True, help="List only references with which something is wrong.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines; the last one is the summary.")
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
    """List the references in a topic and say whether their payloads are there, with the right size.

    Payloads are not downloaded, so their checksums are not verified. Without -c only the records are looked at. The
    status is 1 where a reference is malformed or not signed as it has to be, or its payload is missing, of another
    size, outside the store's root, or could not be asked for.

    \b
    Examples:
      wideload inspect orders -c wideload.toml
      wideload inspect orders -c wideload.toml --pipeline orders-offload --only-bad --json
    """
    client = client_of(bootstrap_servers, config, extra)
    selection = Selection(partition=partition, start="earliest", until_end=True, max_messages=max_messages)
    with ExitStack() as stack:
        readers = _readers(config, pipeline, stack)
        executor = stack.enter_context(ThreadPoolExecutor(_THREADS, thread_name_prefix="wideload-inspect"))
        printer = _Printer(as_json=as_json, only_bad=only_bad)
        inspection = _Inspection(printer, readers, executor)
        bar = stack.enter_context(progress(f"in {topic}", None, unit="messages", shown=not sys.stdout.isatty()))
        asyncio.run(_inspect(client, topic, selection, inspection, bar))
    printer.total(topic, inspection.totals)
    return 1 if inspection.totals.bad else 0
