"""A lane: the records of one source partition that the worker holds, in the order of their offsets."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.kafka.source_batch import SourceBatch, Unopened
from app.kafka.structs import TopicPartition
from app.pipeline.offset_tracker import OffsetTracker
from app.pipeline.termination import RecordError
from app.pipeline.waiting_read import WaitingRead
from app.pipeline.work import Work
from transforms.record import Header, RecordLike, SourceRecord

# Memory of a record that waits beside its key and value, and of each of its headers (CPython 3.11, measured).
RECORD_OVERHEAD_BYTES = 400
_HEADER_OVERHEAD_BYTES = 160


@dataclass(slots=True, eq=False)
class Hold:
    """Keeps the commit at the first chunk of a discarded message, until its dead letters are durable.

    Attributes:
        first: the offset of the first chunk.
        last: the offset with which the letters were written; None before that.
    """

    first: int
    last: int | None = None


@dataclass(slots=True, eq=False)
class Item:
    """What leaves a lane in its turn: `Passing`, `Skipped`, `Working` or `Letter`.

    Attributes:
        source: the record as it was read, the last one of several; only its place once there is a result.
        held: bytes of the budget that it holds.
        admitted: bytes that it held when it came into the lane.
    """

    source: SourceRecord
    held: int = 0
    admitted: int = 0

    @property
    def ready(self) -> bool:
        """True if it may leave."""
        return True


@dataclass(slots=True, eq=False)
class Skipped(Item):
    """Records for which nothing is written: chunks, and what was delivered before the partition was assigned."""


@dataclass(slots=True, eq=False)
class Passing(Item):
    """A batch of records that leave as they were read, behind a record with work."""

    batch: SourceBatch = field(kw_only=True)


@dataclass(slots=True, eq=False)
class Working(Item):
    """A record on which the chain works, or which waits with its result.

    Attributes:
        codec: the number of the codec that the record came with; 0 for none.
        result: the records to write, in order; empty if there is nothing to write; None until it is known.
        stored_s: when a payload of the result may have been stored, by the monotonic clock; None if there is none.
    """

    codec: int = field(default=0, kw_only=True)
    result: Sequence[RecordLike] | None = None
    stored_s: float | None = None

    @property
    def ready(self) -> bool:
        return self.result is not None

    def finish(self, result: Sequence[RecordLike]) -> int:
        """Gives the item its result, whose bytes it holds from here on.

        Returns:
            The bytes of the budget that came free; below 0 if the result is larger than what was reserved.
        """
        held = sum(map(held_bytes, result))
        freed = self.held - held
        self.result, self.held = result, held
        # It may wait for hours behind another one. The budget counts the value no more, so it must be let go.
        self.source = _place(self.source)
        return freed


@dataclass(slots=True, eq=False)
class Letter(Working):
    """The dead letter of a record that has failed, or of several, in place of their result.

    Attributes:
        first: the offset of the first record of several; the commit stays there until the letter is durable.
        hold: keeps the commit back further, if the records are the last chunks of a message; None for others.
        failure: ends the flow once all before it is written, if there can be no letter; else None.
    """

    first: int = field(kw_only=True)
    hold: Hold | None = None
    failure: RecordError | None = None


@dataclass(frozen=True, slots=True)
class PlacedRecord:
    """A `SourceRecord` of our own: an assembled message, or the place of a record that is let go."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[Header] = ()


def _place(record: SourceRecord) -> PlacedRecord:
    return PlacedRecord(record.topic, record.partition, record.offset, record.timestamp)


def _first(source: SourceRecord) -> int:
    return source.first if isinstance(source, Unopened) else source.offset


@dataclass(slots=True, eq=False)
class Lane:
    """The items of one source partition, and what may be committed of it.

    Attributes:
        partition: the source partition.
        sink_partition: where its records go; None if the key decides.
        committed: the committed offset when the partition was assigned; None if there was none.
        tracker: knows which records are durable; None before the first record.
        items: in source order; empty while records pass straight through.
        tasks: the work on items, to be cancelled when the partition is lost.
        delivered: all records below this offset were delivered before the partition was assigned; 0 if the committed
            offset says the same.
        noted: the metadata of the last commit.
        holds: keep the commit back.
        waiting: the number of records that wait for the next transaction.
        read: what was read and waits to be admitted; the partition is not read on meanwhile.
        read_to: the offset up to which the partition was read, if all records before it were admitted or wait; 0 if it
            is not known. Behind the last record there may be marks of transactions, and gaps that compaction left.
        work: bytes that the items held when they were admitted.
        codec: the number of the codec of the batch that was taken apart last; 0 for none.
        measuring: the offset of a record whose payload the store is asked to measure, and the work on it from then on;
            None if there was none.
        served_s: when a record with work was admitted last, by the monotonic clock; 0 if none was.
        resumed_s: since when the partition is read, if it had been paused; 0 if not.
        stalled: the number of records that have waited too long for the store; while there are any, the partition is
            not read.
    """

    partition: TopicPartition
    sink_partition: int | None
    committed: int | None = None
    tracker: OffsetTracker | None = None
    items: deque[Item] = field(default_factory=deque)
    tasks: dict[asyncio.Task[None] | asyncio.Task[Work], None] = field(default_factory=dict)
    waiting: int = 0
    read: WaitingRead = field(default_factory=WaitingRead)
    read_to: int = 0
    work: int = 0
    codec: int = 0
    measuring: tuple[int, asyncio.Task[Work]] | None = None
    served_s: float = 0.0
    resumed_s: float = 0.0
    stalled: int = 0
    delivered: int = 0
    noted: str = ""
    holds: list[Hold] = field(default_factory=list)

    def tracked(self, offset: int) -> OffsetTracker:
        """The tracker, which begins at `offset` if this is the first record."""
        if self.tracker is None:
            self.tracker = OffsetTracker(offset)
        return self.tracker

    def pass_read(self) -> None:
        """Counts what was read behind the last record as done, once no record is left that has not been written."""
        if self.read or self.items or self.waiting:
            return
        if self.tracker is None and self.committed is not None and self.read_to > self.committed:
            self.tracker = OffsetTracker(self.committed)
        if self.tracker is not None:
            self.tracker.released = max(self.tracker.released, self.read_to)

    def mark_committed(self, offset: int, metadata: str) -> None:
        """Takes in what has been committed."""
        if self.tracker is not None:
            self.tracker.committed = max(self.tracker.committed, offset)
            self.noted = metadata

    def skip(self, record: SourceRecord) -> None:
        """Appends a record for which nothing is written.

        The budget does not count its bytes, so they must not wait here behind a record that takes its time.
        """
        self.tracked(record.offset)
        if self.items and isinstance(self.items[-1], Skipped):
            self.items[-1].source = _place(record)
        else:
            self.items.append(Skipped(_place(record)))

    def append(self, item: Item) -> None:
        """Puts an item behind the others."""
        self.tracked(_first(item.source))
        self.work += item.admitted
        self.items.append(item)

    def fail(self, item: Working) -> Letter:
        """Puts a letter that is to be written in the place of an item."""
        letter = Letter(item.source, item.held, item.admitted, codec=item.codec, first=_first(item.source))
        self.items[self.items.index(item)] = letter
        return letter

    def held_back(self, safe: int) -> int:
        """The offset to commit if all records before `safe` are durable: `safe`, or the first chunk of a hold."""
        if self.holds:
            self.holds = [hold for hold in self.holds if hold.last is None or hold.last >= safe]
        return min((hold.first for hold in self.holds), default=safe)

    @property
    def busy(self) -> bool:
        """True while a record of the partition is neither durable nor dropped."""
        return bool(self.items) or self.waiting > 0 or (self.tracker is not None and self.tracker.in_flight)

    @property
    def had_turn(self) -> bool:
        """True if a record with work was admitted since the partition was resumed."""
        return self.served_s > self.resumed_s

    def keep(self, task: asyncio.Task[None] | asyncio.Task[Work]) -> None:
        """Lets a task end with the lane, if it has not ended before."""
        self.tasks[task] = None
        task.add_done_callback(self.tasks.pop)

    def discard(self) -> None:
        """Forgets the records; another worker, or this one later, reads them again from the committed offset."""
        for task in self.tasks:
            task.cancel()
        self.items.clear()


def held_bytes(record: RecordLike) -> int:
    """Bytes of the budget that a record holds while it waits."""
    return len(record.value or b"") + len(record.key or b"") + RECORD_OVERHEAD_BYTES + header_bytes(record.headers)


def header_bytes(headers: Sequence[Header]) -> int:
    """Bytes of the budget that the headers of a record hold."""
    return sum(_HEADER_OVERHEAD_BYTES + len(name) + len(value or b"") for name, value in headers) if headers else 0
