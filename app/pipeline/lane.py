"""A lane: all that the worker holds of one source partition, in the order of the offsets, and what may be committed.

Records that were read wait in it to be admitted. Then transforms work on them, and they wait to be written, as items.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from app.kafka.source_batch import ReadRecord, SourceBatch, UnreadBatch
from app.kafka.structs import TopicPartition
from app.pipeline.budget import Share
from app.pipeline.lane_assembler import LaneAssembler
from app.pipeline.offset_tracker import OffsetTracker
from app.pipeline.termination import RecordError
from app.pipeline.work import Work
from transforms.record import Header, RecordLike, SourceRecord

# Memory of a record that waits, in addition to its key and value, and of each of its headers (CPython 3.11, measured).
RECORD_OVERHEAD_BYTES = 400
_HEADER_OVERHEAD_BYTES = 160

_MADE_AT_ONCE = 500
_LARGE_BATCH_BYTES = 1_048_576
_MADE_OF_LARGE = 8  # of a larger batch: the headers of one record may take 8 MiB as objects


@dataclass(slots=True, eq=False)
class WaitingRead:
    """What was read of one partition and waits, in order: the records of a decoded batch, then batches.

    Attributes:
        records: the next ones of the decoded batch.
        source: yields those behind them.
        batches: those behind that one.
        opened: bytes of the decoded batch, before compression; 0 if there is none.
        for_work: whether the first record waits for room for its work, or behind records with work.
    """

    records: deque[SourceRecord] = field(default_factory=deque)
    source: Iterator[SourceRecord] = field(default_factory=lambda: iter(()))
    batches: deque[SourceBatch] = field(default_factory=deque)
    opened: int = 0
    for_work: bool = False

    def __bool__(self) -> bool:
        return bool(self.opened or self.batches)

    @property
    def size(self) -> int:
        """Bytes of the batches."""
        return self.opened + sum(batch.size for batch in self.batches)

    def open(self, limit: int) -> SourceBatch:
        """Takes the next batch apart, unless it holds more bytes than `limit`; returns it.

        Raises:
            CorruptRecordException: the batch cannot be read.
        """
        batch = self.batches.popleft()
        unread = batch.unread(limit)
        if unread is None:
            self.opened, self.source = batch.plain_bytes, batch.records()
        else:
            self.opened, self.source = batch.size, iter((unread,))
        return batch

    def make(self) -> bool:
        """Makes the next records of the decoded batch, if there are none; False if there are no more."""
        if not self.records:
            count = _MADE_AT_ONCE if self.opened <= _LARGE_BATCH_BYTES else _MADE_OF_LARGE
            self.records.extend(itertools.islice(self.source, count))
        return bool(self.records)

    def forget(self) -> None:
        """Releases what was decompressed of batches that were examined, and wait."""
        for batch in itertools.takewhile(lambda each: each.passes is not None, self.batches):
            batch.forget()

    @property
    def timestamp(self) -> int | None:
        """The timestamp of the first record that waits, in milliseconds since 1970; None if it is not known."""
        if self.records:
            return self.records[0].timestamp
        return self.batches[0].timestamp if self.batches and not self.opened else None

    @property
    def first(self) -> int | None:
        """The offset of the first record that waits; None if there is none.

        Raises:
            CorruptRecordException: the batch cannot be read.
        """
        if self.opened and self.make():
            return _first(self.records[0])
        return self.batches[0].offset if self.batches else None


@dataclass(slots=True, eq=False)
class Item:
    """What leaves a lane in its turn: `Passing`, `Skipped`, `Working` or `Letter`.

    Attributes:
        source: the record as it was read, the last one of several; only its place once there is a result.
        held: bytes of the budget that it holds.
        admitted: bytes that it held when it came into the lane.
        result: the records to write, in order; None until it is known, and it may leave.
        stored_s: when a payload of the result may have been stored, by the monotonic clock; None if there is none.
        failure: ends the flow once all before it is written; None if it has not failed, or has a dead letter.
    """

    source: SourceRecord
    held: int = 0
    admitted: int = field(default=0, init=False)
    result: Sequence[RecordLike] | None = field(default=(), kw_only=True)
    stored_s: float | None = field(default=None, kw_only=True)
    failure: RecordError | None = field(default=None, kw_only=True)


@dataclass(slots=True, eq=False)
class Skipped(Item):
    """Records for which nothing is written: chunks, and what was delivered before the partition was assigned."""


@dataclass(slots=True, eq=False)
class Passing(Item):
    """A batch of records that leave as they were read, behind a record with work."""

    batch: SourceBatch = field(kw_only=True)


@dataclass(slots=True, eq=False)
class Working(Item):
    """A record on which the chain works; `codec` is the number of the codec with which it leaves, 0 for none."""

    codec: int = 0
    result: Sequence[RecordLike] | None = field(default=None, kw_only=True)


@dataclass(slots=True, eq=False)
class Letter(Working):
    """The dead letter of a record that has failed, or of several, in place of their result.

    Attributes:
        first: the offset of the first record of several; the commit stays there until the dead letter is durable.
        commit_limit: the offset of the first chunk of a discarded message, if the records are its last ones: the commit
            stays there until the dead letters of all are durable. None for other dead letters.
        written: the offset with which it was written; None before that.
    """

    first: int = field(kw_only=True)
    commit_limit: int | None = field(default=None, kw_only=True)
    written: int | None = field(default=None, init=False)


class Lane:
    """What is held of one source partition. Belongs to one event loop.

    Args:
        partition: the source partition.
        sink_partition: where its records go; None if the key decides.
        share: counts what is held.
        assembler: of the flow; None if it assembles no chunks.

    Attributes:
        read: what was read and waits to be admitted; while there is something, the partition is not read.
        read_to: the offset up to which the partition was read, if all records before it were admitted or wait; 0 if it
            is not known. Behind the last record there may be marks of transactions, and gaps that compaction left.
        items: empty while records pass straight through.
        work: bytes that the items held when they were admitted: what a result holds does not change how much of this
            partition may be admitted.
        codec: the number of the codec with which records of the last decoded batch leave; 0 for none.
        measuring: the offset of a record whose payload the store is asked to measure, and the work on it from then on;
            None if there was none.
        stalled: the number of records that have waited too long for the store; while there are any, the partition is
            not read.
        had_turn: whether a record with work was admitted since the partition was resumed after a pause.
        waiting: the number of records that wait for the next transaction.
        committed: the committed offset when the partition was assigned; None if there was none.
        tracker: knows which records are durable; None before the first record.
        delivered: all records below this offset were delivered before the partition was assigned; 0 if the committed
            offset says the same.
        noted: the metadata of the last commit.
        blocking: the dead letters that hold the commit back.
    """

    def __init__(
        self, partition: TopicPartition, sink_partition: int | None, share: Share, assembler: LaneAssembler | None
    ) -> None:
        self.partition = partition
        self.sink_partition = sink_partition
        self._share = share
        self._assembler = assembler
        self.read = WaitingRead()
        self.items: deque[Item] = deque()
        self.blocking: list[Letter] = []
        self._tasks: dict[asyncio.Task[None] | asyncio.Task[Work], None] = {}
        self.measuring: tuple[int, asyncio.Task[Work]] | None = None
        self.tracker: OffsetTracker | None = None
        self.committed: int | None = None
        self.noted = ""
        self.read_to = self.work = self.codec = self.stalled = self.waiting = self.delivered = 0
        self.had_turn = False

    @property
    def busy(self) -> bool:
        """True while a record of the partition is neither durable nor dropped."""
        return bool(self.items) or self.waiting > 0 or (self.tracker is not None and self.tracker.in_flight)

    @property
    def waits_since_ms(self) -> int | None:
        """The timestamp of the first record that was read and waits; None if there is none, or it is not known.

        It waits for the store, for room in the budget, or behind such a record. In milliseconds since 1970.
        """
        stamp = self.items[0].source.timestamp if self.items else self.read.timestamp
        return None if stamp is None or stamp < 0 else stamp

    # --- what was read -----------------------------------------------------------------------------------------------

    def add(self, batches: Sequence[SourceBatch], read_to: int) -> None:
        """Takes the batches that were read, up to an offset."""
        self.read.batches.extend(batches)
        self.read_to = read_to
        self._share.fetched(sum(batch.size for batch in batches))

    def let_go(self) -> None:
        """Forgets what was read and waits; it has to be read again."""
        if self.read:
            self._share.fetched(-self.read.size)
            self.read, self.read_to = WaitingRead(), 0

    # --- what is worked on -------------------------------------------------------------------------------------------

    def tracked(self, offset: int) -> OffsetTracker:
        """The tracker, which begins at `offset` if this is the first record."""
        if self.tracker is None:
            self.tracker = OffsetTracker(offset)
            if self.committed is not None:  # what is between was deleted, or a gap: that may be committed
                self.tracker.committed = self.committed
        return self.tracker

    def append(self, item: Item) -> None:
        """Puts an item behind the others, and counts what it holds."""
        self.tracked(_first(item.source))
        item.admitted = item.held
        self.work += item.held
        self.items.append(item)
        self.had_turn = True
        self._share.take_work(item.held)

    def skip(self, record: SourceRecord) -> None:
        """Appends a record for which nothing is written.

        The budget does not count its bytes, so they must not wait here behind a record that takes its time.
        """
        if self.items and isinstance(self.items[-1], Skipped):
            self.items[-1].source = _place(record)
        else:
            self.append(Skipped(_place(record)))

    def reserve(self, item: Working, size: int) -> None:
        """Lets an item hold more bytes, without waiting for room: items behind it may hold the room that it needs."""
        item.held += size
        self._share.take_work(size)

    def finish(self, item: Working, result: Sequence[RecordLike]) -> None:
        """Gives an item its result, whose bytes it holds from here on."""
        held = sum(map(held_bytes, result))
        self._share.give_work(item.held - held)
        item.result, item.held = result, held
        # It may wait for hours behind another one. The budget no longer counts the value, so it must be released.
        item.source = _place(item.source)

    def fail(self, item: Working) -> Letter:
        """Puts a dead letter that is to be written in the place of an item."""
        letter = Letter(item.source, item.held, item.codec, first=_first(item.source))
        letter.admitted = item.admitted
        self.items[self.items.index(item)] = letter
        return letter

    def pop(self) -> Item:
        """The first item, which leaves: what it holds no longer counts as work."""
        item = self.items.popleft()
        self.work -= item.admitted
        self._share.finish_work(item.held)
        return item

    def keep(self, task: asyncio.Task[None] | asyncio.Task[Work]) -> None:
        """Cancels a task when the lane ends, if it has not ended before."""
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    # --- what may be committed ---------------------------------------------------------------------------------------

    def resume(self, offset: int, metadata: str, pipeline: str) -> None:
        """Continues from what was committed; before the first record is admitted."""
        self.committed = offset
        if self._assembler is not None:
            self.delivered = self._assembler.resume(self.partition, metadata, pipeline)

    def restart_at(self, offset: int) -> None:
        """Begins at an offset, whatever was delivered before; before the first record is admitted."""
        self.delivered, self.noted, self.committed, self.read_to = 0, "", offset, 0
        if self.measuring is not None:  # another record may have that offset
            self.measuring[1].cancel()
            self.measuring = None
        if self._assembler is not None:
            self._assembler.clear(self.partition)

    def to_commit(self) -> tuple[int, str] | None:
        """The offset and the metadata to commit; None if they are committed already.

        If no record waits, what was read behind the last one is done: marks of transactions, and gaps.
        """
        if not (self.read or self.items or self.waiting):
            if self.tracker is None and self.committed is not None and self.read_to > self.committed:
                self.tracker = OffsetTracker(self.committed)
            if self.tracker is not None:
                self.tracker.released = max(self.tracker.released, self.read_to)
        if self.tracker is None:
            return None
        safe = self.tracker.safe()
        commit = safe, ""
        if self._assembler is not None:
            self.blocking = [letter for letter in self.blocking if letter.written is None or letter.written >= safe]
            held_back = min(
                (letter.commit_limit for letter in self.blocking if letter.commit_limit is not None), default=safe
            )
            commit = self._assembler.commit(self.partition, safe, held_back)
        return commit if commit[0] > self.tracker.committed or commit[1] != self.noted else None

    def mark_committed(self, offset: int, metadata: str) -> None:
        """Notes what has been committed."""
        if self.tracker is not None:
            self.tracker.committed = max(self.tracker.committed, offset)
            self.noted = metadata

    def discard(self) -> None:
        """Forgets the records; another worker, or this one later, reads them again from the committed offset."""
        self.let_go()
        for task in self._tasks:
            task.cancel()
        self._share.give_work(sum(item.held for item in self.items))
        self.items.clear()
        if self._assembler is not None:
            self._assembler.clear(self.partition)


def _first(source: SourceRecord) -> int:
    return source.first if isinstance(source, UnreadBatch) else source.offset


def _place(record: SourceRecord) -> ReadRecord:
    return ReadRecord(record.topic, record.partition, record.offset, record.timestamp)


def held_bytes(record: RecordLike) -> int:
    """Bytes of the budget that a record holds while it waits."""
    return len(record.value or b"") + len(record.key or b"") + RECORD_OVERHEAD_BYTES + header_bytes(record.headers)


def header_bytes(headers: Sequence[Header]) -> int:
    """Bytes of the budget that the headers of a record hold."""
    return sum(_HEADER_OVERHEAD_BYTES + len(name) + len(value or b"") for name, value in headers) if headers else 0
