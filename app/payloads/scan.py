"""Topics, read for the references in their records; and which of these compaction keeps.

A batch without a trace of a reference is passed over as a whole: its records never become Python's objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import NamedTuple, TypeVar

from app.config.settings import ClientSettings
from app.kafka.range_reader import RangeReader, opened
from app.kafka.source_batch import UnreadBatch
from app.kafka.spans import TopicSpans, since
from app.kafka.structs import TopicPartition
from app.payloads.engine import Engine, Row
from transforms.found_references import ReferenceFinder
from transforms.record import SourceRecord

FOUND = (
    "path string, topic string, partition int, offset long, timestamp long, key binary, which string, format string, "
    "size long, checksum string, compression string, encryption string, error string"
)
"""The columns of a `Found`."""

_KEYED = f"record string, at long, {FOUND}"
_DIGEST_BYTES = 16
_TASK_OFFSETS = 20_000  # of small partitions, which share a task and its connections

Frame = TypeVar("Frame")


class Found(NamedTuple):
    """A reference and the place of its record; see `transforms.found_references.FoundReference`.

    `timestamp` is in milliseconds since 1970, -1 without. Records that cannot be decoded are one reference with an
    error.
    """

    path: str | None
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None = None
    which: str | None = None
    format: str | None = None
    size: int | None = None
    checksum: str | None = None
    compression: str | None = None
    encryption: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition, from `start` up to `end`, and what is read there.

    Attributes:
        finder: finds the references; None to look for none.
        committed: whether records of open and aborted transactions are left out.
        keyed: whether rows are those that `newest` needs. If they are `committed` too, each record with a key has one.
    """

    topic: str
    partition: int
    start: int
    end: int
    finder: ReferenceFinder | None
    committed: bool
    keyed: bool


def references(
    engine: Engine[Frame],
    client: ClientSettings,
    topics: Sequence[tuple[TopicSpans, ReferenceFinder]],
    *,
    committed: bool,
    newest_only: bool = False,
    since_ms: int | None = None,
) -> list[Frame]:
    """The references of the records that count, as frames of `FOUND`.

    Args:
        engine: reads them, when the frames are used.
        client: how to reach the cluster.
        topics: each with what finds its references.
        committed: whether only those records count that a reader with `read_committed` sees; else all do, also of open
            and aborted transactions.
        newest_only: whether of compacted topics only those count that `newest` leaves.
        since_ms: see `newest`.

    Raises:
        RecordsLostError: from the frames: Kafka has deleted records.
        ClusterError: also from the frames: the cluster failed.
    """
    read = [
        each
        for spans, finder in topics
        for each in _ranges(spans, finder, committed=committed, keyed=newest_only and spans.compacted)
    ]
    frames = [engine.spread(_tasks(each for each in read if not each.keyed), partial(scan, client), FOUND)]
    if keyed := _tasks(each for each in read if each.keyed):
        late = {} if since_ms is None else since(client, [spans for spans, _ in topics if spans.compacted], since_ms)
        rows = engine.spread(keyed, partial(scan, client), _KEYED)
        frames.append(engine.by_path([rows], partial(newest, since_ms=since_ms, late=late), FOUND))
    return frames


def newest(
    rows: Iterable[tuple[int, Row]], since_ms: int | None = None, late: Mapping[tuple[str, int], int] | None = None
) -> Iterator[Found]:
    """The references of records that no committed record has overwritten, or not before `since_ms`.

    Args:
        rows: those of `keyed` ranges, by record and `at`, each with the number of its frame.
        since_ms: a reader that lags no further behind still reads what was overwritten since; None for no such reader.
        late: by topic and partition, the offset of the first record with the timestamp `since_ms` or a later one. A
            record at this offset or behind it has overwritten others since then, whatever its timestamp.
    """
    name, overwriting, held = "", -1, list[Found]()
    for _, (record, _, *cells) in rows:
        found = Found(*cells)
        if record != name:
            yield from held
            name, overwriting, held = record, -1, []
        if found.which is None:  # a committed record, before its references
            first = (late or {}).get((found.topic, found.partition), found.offset + 1)
            # A record without a timestamp may have been written at any time.
            if since_ms is not None and (not 0 <= found.timestamp < since_ms or found.offset >= first):
                yield from held
            overwriting, held = found.offset, []
        elif found.offset == overwriting:
            held.append(found)
        else:  # of an open or aborted transaction, without a key, or not decoded
            yield found
    yield from held


def scan(client: ClientSettings, tasks: Iterable[Sequence[Range]]) -> Iterator[Row]:
    """The references of ranges; see `references`."""
    with ExitStack() as stack:
        readers: dict[bool, RangeReader] = {}
        for each in (each for task in tasks for each in task):
            if each.committed not in readers:
                isolation = "read_committed" if each.committed else "read_uncommitted"
                readers[each.committed] = stack.enter_context(closing(RangeReader(client, isolation_level=isolation)))
            yield from _scanned(readers[each.committed], each)


def _ranges(spans: TopicSpans, finder: ReferenceFinder, *, committed: bool, keyed: bool) -> Iterator[Range]:
    name = spans.topic.name
    for number, span in spans.spans.items():
        yield Range(name, number, span.start, span.stable if committed else span.end, finder, committed, keyed)
        if keyed and not committed:
            yield Range(name, number, span.start, span.stable, None, committed=True, keyed=True)


def _tasks(ranges: Iterable[Range]) -> list[tuple[Range, ...]]:
    tasks: list[tuple[Range, ...]] = []
    room = 0
    for each in sorted(ranges, key=lambda each: each.start - each.end):
        room -= each.end - each.start
        if each.start == each.end:
            break
        if room < 0:
            tasks.append(())
            room = _TASK_OFFSETS - (each.end - each.start)
        tasks[-1] += (each,)
    return tasks


def _scanned(reader: RangeReader, read: Range) -> Iterator[Row]:
    finder, keys = read.finder, read.keyed and read.committed
    for batch in reader.batches(TopicPartition(read.topic, read.partition), read.start, read.end):
        wanted = finder is not None and (batch.batch is None or finder.wants_any(batch.batch))
        if wanted or keys:
            for record in opened(batch, read.end):
                found = _found(record, finder) if wanted else iter(())
                yield from _keyed(record, found, committed=keys) if read.keyed else found


def _found(record: SourceRecord | UnreadBatch, finder: ReferenceFinder | None) -> Iterator[Found]:
    assert finder is not None
    if isinstance(record, UnreadBatch):
        error = f"cannot be read: {record.error}"
        yield Found(None, record.topic, record.partition, record.first, record.timestamp, which="value", error=error)
        return
    topic, partition, offset, timestamp, key = (
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
    )
    for each in finder.find(record):
        yield Found(each.path, topic, partition, offset, timestamp, key, each.which, each.format, *each[3:])


def _keyed(record: SourceRecord | UnreadBatch, found: Iterator[Found], *, committed: bool) -> Iterator[Row]:
    """Rows for `newest`: the references, and before them one for the record if it overwrites others."""
    place = f"{record.topic}/{record.partition}/"
    if record.key is None:
        name = f"{place}{record.offset}"
    else:
        name = blake2b(place.encode() + record.key, digest_size=_DIGEST_BYTES).hexdigest()
        if committed:
            yield name, 2 * record.offset, *Found(None, record.topic, record.partition, record.offset, record.timestamp)
    for each in found:
        yield name, 2 * record.offset + 1, *each
