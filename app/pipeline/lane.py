"""A lane: the records of one source partition that the worker holds, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiokafka import TopicPartition

from app.pipeline.offset_tracker import OffsetTracker
from transforms.letter import Cause
from transforms.record import Header, RecordLike, SourceRecord

__all__ = ["RECORD_OVERHEAD_BYTES", "Hold", "Lane", "Slot", "header_bytes", "held_bytes"]

# What a record that waits costs beside its key and value, and each of its headers (CPython 3.11, measured).
RECORD_OVERHEAD_BYTES = 400
_HEADER_OVERHEAD_BYTES = 160


@dataclass(slots=True, eq=False)
class Hold:
    """Keeps the commit at the first chunk of a message that was discarded, until its dead letters are durable.

    Attributes:
        first: the offset of the first chunk.
        last: the offset that they were written with; None while they have not been.
    """

    first: int
    last: int | None = None


@dataclass(slots=True, eq=False)
class Slot:
    """One record on its way through the transforms.

    Attributes:
        source: the record as it was read; once it is finished, no more than where it stood.
        held: bytes of the budget that it holds.
        admitted: those that it held when it came in.
        result: the records to write, in order, often one; none where there is nothing to write; None while it is not
            known.
        dead: True where they go to the dead-letter topic.
        hold: where they are dead letters of chunks.
        skipped: True where nothing is to be written, of this record and others before it.
        cause: why it has to be a dead letter that takes a thread; None where it has not.
    """

    source: SourceRecord
    held: int
    result: Sequence[RecordLike] | None = None
    dead: bool = False
    hold: Hold | None = None
    skipped: bool = False
    cause: Cause | None = None
    admitted: int = 0

    def finish(self, result: Sequence[RecordLike], *, dead: bool = False) -> int:
        """Gives the slot its result, which is what it holds from here on.

        Returns:
            The bytes of the budget that came free: the whole of a value that was offloaded; below 0 where one was
            inflated beyond what was reserved.
        """
        held = sum(map(held_bytes, result))
        freed = self.held - held
        self.result, self.dead, self.held = result, dead, held
        # It may wait for hours behind another one: a value that is offloaded, and counted no more, must be let go.
        self.source = _place(self.source)
        return freed


@dataclass(frozen=True, slots=True)
class _Place:
    """What is left of a record of which nothing is to be written."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[Header] = ()


def _place(record: SourceRecord) -> _Place:
    return _Place(record.topic, record.partition, record.offset, record.timestamp)


@dataclass(slots=True, eq=False)
class Lane:
    """Records that wait for one before them, and what may be committed.

    Attributes:
        partition: the source partition.
        sink_partition: where its records go; None where the key decides.
        committed: the committed offset when the partition was assigned; None where there was none.
        tracker: from the first record on.
        slots: in source order; empty while records pass straight through.
        tasks: the work on slots, to be cancelled when the partition is lost.
        delivered: below this offset everything was delivered before the partition was assigned; 0 where there is no
            such offset above the committed one.
        noted: the metadata of the last commit.
        holds: what keeps the commit back.
        waiting: records that have left for a transaction that has not begun.
        work: bytes with which its records were admitted that have slots.
        stalled: records whose store call has failed for longer than its time budget; the partition is not read on.
    """

    partition: TopicPartition
    sink_partition: int | None
    committed: int | None = None
    tracker: OffsetTracker | None = None
    slots: deque[Slot] = field(default_factory=deque)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    waiting: int = 0
    work: int = 0
    stalled: int = 0
    delivered: int = 0
    noted: str = ""
    holds: list[Hold] = field(default_factory=list)

    def tracked(self, offset: int) -> OffsetTracker:
        """The tracker, begun at `offset` where this is the first record."""
        if self.tracker is None:
            self.tracker = OffsetTracker(offset)
        return self.tracker

    def mark_committed(self, offset: int, metadata: str) -> None:
        """Takes in what has been committed."""
        if self.tracker is not None:
            self.tracker.committed = max(self.tracker.committed, offset)
            self.noted = metadata

    def skip(self, record: SourceRecord) -> None:
        """Gives a record its slot of which nothing is to be written: what it has to say is held elsewhere, or nowhere.

        Its bytes are not of the budget, so they must not wait here behind a record that takes its time.
        """
        self.tracked(record.offset)
        place = _place(record)
        if self.slots and self.slots[-1].skipped:
            self.slots[-1].source = place
        else:
            self.slots.append(Slot(place, 0, (), skipped=True))

    def held_back(self, safe: int) -> int:
        """What may be committed where all before `safe` is durable: that, or the first chunk of what is not."""
        if self.holds:
            self.holds = [hold for hold in self.holds if hold.last is None or hold.last >= safe]
        return min((hold.first for hold in self.holds), default=safe)

    @property
    def busy(self) -> bool:
        """True while a record of this partition is neither durable nor dropped."""
        return bool(self.slots) or self.waiting > 0 or (self.tracker is not None and self.tracker.in_flight)

    def discard(self) -> None:
        """Forgets what is held; another worker, or this one later, reads it again from the committed offset."""
        for task in self.tasks:
            task.cancel()
        self.slots.clear()


def held_bytes(record: RecordLike) -> int:
    """Bytes of the budget that a record holds while it waits."""
    return len(record.value or b"") + len(record.key or b"") + RECORD_OVERHEAD_BYTES + header_bytes(record.headers)


def header_bytes(headers: Sequence[Header]) -> int:
    """Those of its headers among them."""
    return sum(_HEADER_OVERHEAD_BYTES + len(name) + len(value or b"") for name, value in headers) if headers else 0
