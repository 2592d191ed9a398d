"""The messages of a range of offsets: ordinary records, and chunks put together, even if they begin before the range.

A message of chunks belongs to the range that holds its last chunk. Adjoining ranges therefore contain each message
once, no matter who reads them and when, and a stream keeps nothing but its offsets. If the range holds a chunk but not
the first chunk of its message, that is looked for before the range: first which chunks are there, some hundred offsets
at a time, then those of this message are read. The result is kept for the next such chunk, so that no record before
the range is read much more than twice, however many messages are interleaved. A message whose last chunk is behind the
range is left to the next range.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from jobs.records.problems import Problem
from transforms.chunk import Chunk, is_chunk
from transforms.chunked_message import Assembled, Discarded, Limits
from transforms.errors import MalformedChunkError
from transforms.reassembly import Reassembly
from transforms.record import Header, RecordLike

_REMEMBERED = 10_000
_STEP = 200
_NEAR = 4  # to read so many others takes less time than another request


class TopicRecord(NamedTuple):
    """A record of a partition.

    Attributes:
        offset: of the record.
        timestamp: in milliseconds since 1970; -1 without.
        timestamp_type: 0 if the producer set it, 1 if the broker did, -1 if the message format has none.
        key: of the record.
        value: of the record; of records that cannot be decoded, their whole batch as it is in the log.
        headers: of the record.
        problem: why it cannot be had as it is; None if it can. It may stand for all records up to its offset.
    """

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    problem: Problem | None = None


class Readable(Protocol):
    """A partition that can be read; see `jobs.reading.log.Log`."""

    def first(self) -> int: ...

    def records(self, start: int, end: int, *, fail_on_loss: bool = True) -> Iterator[TopicRecord]: ...


@dataclass(frozen=True, slots=True)
class Message:
    """A whole record with its offset, or a chunk that makes no message, or a batch that cannot be read.

    Attributes:
        record: the whole record; if there is a problem, the chunk or the batch as it is in the log.
        offset: of the record, or of the message's last chunk.
        timestamp: in milliseconds; of the record, or of the message's first chunk.
        timestamp_type: 0 if the producer set it, 1 if the broker did, -1 if there is none.
        problem: why the chunk makes no message, or the batch cannot be read; None for a whole record.
        lost: whether Kafka has deleted the beginning of the message, or its problem was reported before.
    """

    record: RecordLike
    offset: int
    timestamp: int
    timestamp_type: int
    problem: Problem | None = None
    lost: bool = False


class Messages:
    """The messages of one range.

    Args:
        log: the partition.
        start: the first offset of the range.
        end: the offset behind its last.
        limits: how much may be incomplete; nothing expires, as a range has no clock. None: chunks are not assembled.
        lookback: how many offsets before the range a first chunk may be.
        fail_on_loss: whether it is a failure if Kafka has deleted records.
    """

    def __init__(
        self, log: Readable, start: int, end: int, limits: Limits | None, lookback: int, *, fail_on_loss: bool = True
    ) -> None:
        self._log = log
        self._start = start
        self._end = end
        self._lookback = lookback
        self._fail_on_loss = fail_on_loss
        self._assembles = limits is not None
        self._reassembly = Reassembly(limits or Limits())
        self._known: OrderedDict[str, None] = OrderedDict()  # messages whose first chunk is known, or was looked for
        self._beginnings: dict[str, int] = {}  # by message, where it begins last before the range
        self._chunks: dict[str, list[int]] = {}  # by message, where its chunks are before the range
        self._looked_from = start
        self._first: int | None = None

    def __iter__(self) -> Iterator[Message]:
        for record in self._log.records(self._start, self._end, fail_on_loss=self._fail_on_loss):
            if self._assembles and record.headers and is_chunk(record.headers):
                yield from self._chunk(record)
            else:
                yield Message(record, record.offset, record.timestamp, record.timestamp_type, record.problem)

    def _chunk(self, record: TopicRecord) -> Iterator[Message]:
        chunk = None
        with suppress(MalformedChunkError):
            chunk, _ = Chunk.parse(record)
        if chunk is not None and chunk.uuid not in self._known:
            if chunk.id:
                self._look_back(chunk.uuid)
            self._known[chunk.uuid] = None
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        for event in self._reassembly.receive(0, record):
            if isinstance(event, Assembled):
                yield Message(event.record, event.id.last, event.record.timestamp, record.timestamp_type)
            elif isinstance(event, Discarded):
                yield from self._discarded(event)
        self._reassembly.safe_offset(0, record.offset)  # lets it forget what has ended

    def _discarded(self, event: Discarded) -> Iterator[Message]:
        for each in event.records:
            if each.offset < self._start:
                continue  # the range before reports it
            lost = event.late or (event.reason == "missing-first" and self._floor() <= self._oldest())
            detail = event.detail
            if event.reason == "missing-first" and not lost:
                detail += f" within {self._lookback:,} offsets (chunkLookback)"
            kind = getattr(each, "timestamp_type", 0)
            yield Message(each, each.offset, each.timestamp, kind, Problem("value", event.reason, detail), lost)

    def _look_back(self, uuid: str) -> None:
        """Gives the reassembly the chunks of a message that are before the range."""
        while uuid not in self._beginnings and self._looked_from > self._floor():
            begin = max(self._floor(), self._looked_from - _STEP)
            found: dict[str, int] = {}
            chunks: dict[str, list[int]] = {}
            for record in self._log.records(begin, self._looked_from, fail_on_loss=False):
                with suppress(MalformedChunkError):
                    if is_chunk(record.headers):
                        chunk = Chunk.parse(record)[0]
                        chunks.setdefault(chunk.uuid, []).append(record.offset)
                        if chunk.id == 0:
                            found[chunk.uuid] = record.offset
            self._beginnings = found | self._beginnings
            for each, offsets in chunks.items():
                self._chunks[each] = offsets + self._chunks.get(each, [])
            self._looked_from = begin
        begin = self._beginnings.get(uuid, self._start)
        for first, end in _runs([offset for offset in self._chunks.get(uuid, ()) if offset >= begin]):
            for record in self._log.records(first, end, fail_on_loss=False):
                with suppress(MalformedChunkError):
                    if is_chunk(record.headers) and Chunk.parse(record)[0].uuid == uuid:
                        self._reassembly.receive(0, record)  # a message that ends here belongs to the range before

    def _oldest(self) -> int:
        if self._first is None:
            self._first = self._log.first()
        return self._first

    def _floor(self) -> int:
        return max(self._oldest(), self._start - self._lookback)


def _runs(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The ranges that have these offsets, which ascend; those that lie close by are read in one go."""
    first = last = None
    for offset in offsets:
        if first is None or last is None:
            first = offset
        elif offset - last > _NEAR:
            yield first, last + 1
            first = offset
        last = offset
    if first is not None and last is not None:
        yield first, last + 1
