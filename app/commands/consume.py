"""`wideload consume`: prints records as a table or as JSON lines, or writes files; optionally inflates references."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import click

from app.commands.connection import client_of, connection_options, opened_store, pipeline_of, unwrap_of
from app.commands.console import Advance, Column, Rows, progress
from app.commands.folder import Folder
from app.commands.restorer import Restored, Restorer
from app.config.parsing import load
from app.config.settings import ClientSettings
from app.kafka.sender import find_topic
from app.kafka.source_batch import UnreadBatch
from app.kafka.topic_reader import Selection, open_reader
from app.pipeline.stages import InflateStage
from app.pipeline.stats import PipelineStats
from transforms.chunk import is_chunk
from transforms.chunked_message import Limits
from transforms.errors import ConfigurationError, WideloadError
from transforms.record import Header, RecordLike, SourceRecord
from transforms.reference import is_reference
from transforms.text import bytes_text, printable
from transforms.wrapper import MessageWrapper

_KINDS = ("chunk", "reference", "inflated", "assembled", "unwrapped", "wrapped")  # the first one is shown
_COLUMNS = (
    Column("partition", 9, ">"),
    Column("offset", 12, ">"),
    Column("size", 10, ">"),
    Column("kind", 9),
    Column("key", 30),
    Column("headers", 40),
)


def text_json(data: bytes | None) -> Any:
    """Bytes as JSON: a string if they are UTF-8, otherwise `{"base64": …}`; null for null."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def header_json(headers: Sequence[Header]) -> list[list[Any]]:
    """Headers as pairs, in order."""
    return [[name, text_json(value)] for name, value in headers]


def json_line(value: object) -> str:
    """`value` as a line of JSON that is safe for terminals: text stays readable, unprintable characters are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    # JSON does not escape DEL, the C1 controls (U+009B begins an escape sequence), and marks that reverse text.
    if not text.isprintable():
        text = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    return f"{text}\n"


@dataclass(slots=True)
class _Totals:
    messages: int = 0
    size: int = 0
    failed: int = 0


class _Printer:
    """Prints records one by one, as rows of a table or as JSON lines."""

    def __init__(self, *, as_json: bool, values: bool) -> None:
        self._rows = None if as_json else Rows(_COLUMNS, sys.stdout)
        self._values = values

    def show(self, found: Restored, file: str | None) -> None:
        """Prints one record, and the file that its value was written to."""
        source, record, error = found.source, found.record, found.error
        chunk = is_chunk(record.headers) and not found.assembled
        reference = found.reference or (record.value is not None and is_reference(record.headers))
        flags = {
            "reference": reference,
            "inflated": found.inflated,
            "chunk": chunk,
            "assembled": found.assembled,
            "unwrapped": found.unwrapped,
            "wrapped": not chunk and record.value is not None and MessageWrapper.check(record.value),
        }
        if self._rows is None:
            self._json(source, record, flags, file, error)
            return
        value = record.value
        kinds = [name for name in _KINDS if flags[name]]
        kind = "tombstone" if value is None else [*kinds, "value"][0]
        headers = ", ".join(f"{name}={printable(data, 30)}" for name, data in record.headers)
        size = "-" if value is None else bytes_text(len(value))
        note = f"! {printable(str(error), 1_000)}" if error else printable(headers)
        self._rows.add(
            str(source.partition),
            str(source.offset),
            size,
            "failed" if error else kind,
            printable(record.key, 30),
            note,
        )

    def _json(
        self, source: SourceRecord, record: RecordLike, kind: dict[str, Any], file: str | None, error: str | None
    ) -> None:
        line = {
            "topic": source.topic,
            "partition": source.partition,
            "offset": source.offset,
            "timestamp": source.timestamp,
            "key": text_json(record.key),
            "size": None if record.value is None else len(record.value),
            "headers": header_json(record.headers),
            **kind,
        }
        if self._values:
            line["value"] = text_json(record.value)
        if file is not None:
            line["file"] = file
        if error is not None:
            line["error"] = error
        sys.stdout.write(json_line(line))


class _Run:
    """One run of `consume`: restores, writes and prints each record. `how` it is restored is for messages."""

    def __init__(
        self, printer: _Printer, folder: Folder | None, restorer: Restorer | None, how: str = "inflated"
    ) -> None:
        self.totals = _Totals()
        self.restorer = restorer
        self.how = how
        self._printer = printer
        self._folder = folder

    def enough(self, selection: Selection) -> bool:
        """Whether as many were given as are wanted."""
        return selection.max_messages is not None and self.totals.messages >= selection.max_messages

    async def take(self, source: SourceRecord) -> None:
        """Restores, writes and prints one record. A record that cannot be restored, or read, is printed as failed."""
        if isinstance(source, UnreadBatch):
            self.totals.messages += source.count - 1
            self.totals.failed += source.count - 1
            await self._put(Restored(source, source, error=str(source.error)))
        elif self.restorer is None:
            await self._put(Restored(source, source))
        else:
            for found in await self.restorer.restore(source):
                await self._put(found)

    async def _put(self, found: Restored) -> None:
        source, record = found.source, found.record
        file = None
        if self._folder is not None and record.value is not None and found.error is None:
            fallback = f"{source.topic}-{source.partition}-{source.offset}"
            try:
                file = str(await asyncio.to_thread(self._folder.write, record.value, record.key, fallback))
            except OSError as exc:
                raise WideloadError(f"--output: {fallback} cannot be written: {exc.strerror}") from exc
        self.totals.messages += 1
        self.totals.size += len(record.value or b"")
        self.totals.failed += found.error is not None
        self._printer.show(found, file)


async def _consume(client: ClientSettings, topic_name: str, selection: Selection, run: _Run, advance: Advance) -> None:
    topic = await find_topic(client, topic_name)
    # --max-messages counts values, of which each may be many records.
    counted = run.restorer is not None and selection.max_messages is not None
    async with open_reader(client, topic, selection, run.restorer) as reader:
        async for records in reader.batches((lambda: run.enough(selection)) if counted else None):
            for record in records:
                await run.take(record)
                advance(1)
            sys.stdout.flush()


def start_of(offset: str | None, *, from_beginning: bool) -> Any:
    """`Selection.start` from the two options.

    Raises:
        ConfigurationError: both options were given, or the offset is invalid.
    """
    if offset is None:
        return "earliest" if from_beginning else "latest"
    if from_beginning:
        raise ConfigurationError("--offset", "cannot be combined with --from-beginning; pass one of them")
    if offset in {"earliest", "latest"}:
        return offset
    try:
        return int(offset)
    except ValueError:
        raise ConfigurationError(
            "--offset", f"found {offset!r}, allowed are earliest, latest, a number, or -N for the last N"
        ) from None


def _restorer(
    config: str | None, pipeline: str | None, stack: ExitStack, *, inflates: bool, unwraps: bool
) -> Restorer | None:
    """The restorer of records; None if they are to be shown as they are."""
    if not inflates and not unwraps:
        return None
    if inflates and config is None:
        raise ConfigurationError("--inflate", "requires the store of a configuration; pass it with -c FILE")
    loaded = None if config is None else load(config)
    unwrap = unwrap_of(loaded, pipeline) if unwraps else None
    if not inflates or loaded is None:
        return Restorer(None, Limits(), unwrap)
    settings = pipeline_of(loaded, pipeline)
    store = opened_store(settings, stack)
    return Restorer(InflateStage(settings, store, PipelineStats(), measures=False), settings.chunks.limits, unwrap)


@click.command("consume")
@click.argument("topic")
@connection_options
@click.option("--from-beginning", is_flag=True, help="Start at the oldest record instead of waiting for new ones.")
@click.option("-o", "--offset", metavar="N", help="Start at earliest, latest, an offset, or -N (N before the end).")
@click.option("-p", "--partition", type=click.IntRange(0), help="Read only this partition.")
@click.option(
    "-n", "--max-messages", type=click.IntRange(1), help="Stop after this many records, or values with --inflate."
)
@click.option("-e", "--until-end", is_flag=True, help="Stop at the current end of the topic.")
@click.option(
    "--timeout-ms", type=click.IntRange(1), help="Stop if no record arrives within this time in milliseconds."
)
@click.option("-g", "--group", help="Start at the committed offsets of this group, and commit to it.")
@click.option("--output", metavar="DIR", help="Write each value to a file in DIR, named after the key if that is safe.")
@click.option("--inflate", is_flag=True, help="Restore keys and values from references and chunks; requires -c.")
@click.option("--unwrap", is_flag=True, help="Unwrap message wrappers; the names of headers come from -c.")
@click.option("--pipeline", metavar="NAME", help="The pipeline of -c for --inflate and --unwrap, if there are several.")
@click.option("--values", is_flag=True, help="Include the values in the JSON lines.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines on a terminal too.")
def command(
    topic: str,
    bootstrap_servers: str | None,
    config: str | None,
    extra: tuple[str, ...],
    *,
    from_beginning: bool,
    offset: str | None,
    partition: int | None,
    max_messages: int | None,
    until_end: bool,
    timeout_ms: int | None,
    group: str | None,
    output: str | None,
    inflate: bool,
    unwrap: bool,
    pipeline: str | None,
    values: bool,
    as_json: bool,
) -> int:
    """Print the records of a topic, and optionally write their values to files.

    The output is a table on a terminal and JSON lines elsewhere.

    Without --from-beginning or --offset the command waits for new records, like Kafka's console consumer. It does not
    overwrite files in DIR; if the key is not a safe file name, the file is named TOPIC-PARTITION-OFFSET.

    With --inflate, a chunked value is shown at the offset of its last chunk. With --group, the committed offset stays
    at the first chunk of an incomplete value, so later records may be consumed again. The last records may be consumed
    again when another consumer joins or leaves the group.

    With --unwrap, a value that is not a wrapper is an error, unless unwrap.on.plain.value is pass in -c. References in
    wrappers, and chunks of wrappers, also require --inflate. Exits with 1 if a value could not be restored, or if
    records could not be read because they are too large or malformed.

    \b
    Examples:
      wideload consume orders --from-beginning --until-end -b localhost:9092
      wideload consume orders --offset -10 --until-end --json --values -b localhost:9092 | jq .value
      wideload consume orders --from-beginning --inflate -c wideload.toml --output values/
      wideload consume raw-wrapped --from-beginning --unwrap -c wideload.toml
    """
    client = client_of(bootstrap_servers, config, extra)
    selection = Selection(
        partition=partition,
        start=start_of(offset, from_beginning=from_beginning),
        group=group,
        until_end=until_end,
        max_messages=max_messages,
        timeout_ms=timeout_ms,
    )
    _check(selection)
    with ExitStack() as stack:
        restorer = _restorer(config, pipeline, stack, inflates=inflate, unwraps=unwrap)
        folder = None if output is None else Folder(output)
        rows = sys.stdout.isatty() and not as_json
        how = " or ".join(word for word, asked in (("unwrapped", unwrap), ("inflated", inflate)) if asked) or "read"
        run = _Run(_Printer(as_json=not rows, values=values), folder, restorer, how)
        # No bar while the rows of a table are printed.
        advance = stack.enter_context(progress(f"from {topic}", max_messages, unit="messages", shown=not rows))
        return _run(client, topic, selection, run, advance)


def _check(selection: Selection) -> None:
    numbered = isinstance(selection.start, int) and selection.start >= 0
    if numbered and selection.partition is None:
        raise ConfigurationError("--offset", f"found {selection.start}, an offset of one partition; add --partition N")
    if selection.group is None:
        return
    if selection.partition is not None:
        raise ConfigurationError("--partition", "cannot be combined with --group, which assigns the partitions")
    if isinstance(selection.start, int):
        raise ConfigurationError(
            "--offset", "must be earliest or latest with --group, whose committed offsets take precedence"
        )


def _run(client: ClientSettings, topic: str, selection: Selection, run: _Run, advance: Advance) -> int:
    interrupted = False
    try:
        asyncio.run(_consume(client, topic, selection, run, advance))
    except KeyboardInterrupt:  # the normal end of a command without a limit
        interrupted = True
    sys.stdout.flush()
    totals = run.totals
    pending = 0 if run.restorer is None or run.enough(selection) else run.restorer.pending
    if totals.failed or pending or sys.stderr.isatty():
        failed = f", {totals.failed:,} of them could not be {run.how}" if totals.failed else ""
        begun = f"; {pending:,} more are incomplete: their last chunks were not read" if pending else ""
        click.echo(f"{totals.messages:,} messages ({bytes_text(totals.size)}) from {topic}{failed}{begun}", err=True)
    return 130 if interrupted else 1 if totals.failed or pending else 0
