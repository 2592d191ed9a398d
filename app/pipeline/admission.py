"""Admission: batches that were read wait here until the budget has room for them.

A batch of which no stage wants a record goes on as it is. Any other one is taken apart, and its records go on one by
one.

A partition whose record finds no room waits alone: the others go on, as far as they have room. But no record overtakes
one of its kind, with work or without, or a large record could wait for ever.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Mapping, Sequence

from app.kafka.source_batch import SourceBatch, Unopened
from app.kafka.structs import TopicPartition
from app.pipeline.budget import Share
from app.pipeline.chain import Chain
from app.pipeline.delivery import Delivery
from app.pipeline.dispatch import Dispatcher
from app.pipeline.lane import RECORD_OVERHEAD_BYTES, Lane, header_bytes, held_bytes
from app.pipeline.lane_assembler import LaneAssembler
from app.pipeline.lanes import Lanes
from app.pipeline.stats import PipelineStats
from app.pipeline.waiting_read import WaitingRead
from transforms.batch_size import BATCH_OVERHEAD_BYTES
from transforms.errors import MalformedError
from transforms.record import SourceRecord
from transforms.record_batch import RecordBatch

_SMALL_PART_OF_BUDGET = 16
_LEAST_SMALL_BYTES = 1_048_576
_LEAST_OPENED_BYTES = 64 * 1_048_576  # batches of so much are taken apart however small the budget is
_PASSING_FOR_ONE = 8  # so many records that pass in a batch take as long as one that is looked at
_DECOMPRESSED_FOR_ONE = 65_536  # so many bytes take longer: 13 KB may hold 400 MiB, and no other task runs meanwhile
_PART_OF_BUDGET = 8  # merged batches may take so small a part of it
_MERGED_BYTES = 1_000_000  # the most of small batches that become one: below the limit that topics have by default


class Admission:
    """Admits records of a partition in the order in which they were read. Belongs to one event loop.

    `assembler` is None if the pipeline assembles no chunks. `turn` is the most records that are looked at one by one
    before other tasks have their turn, and 64 KiB that are decompressed count as one; `limit_bytes` is the most that
    small batches become together; `codec` is the number of the codec with which all records leave, None if each keeps
    its own.
    """

    # State that changes: `_waiting`, by the poll loop and by rebalances. No method awaits, so there is no lock.

    def __init__(
        self,
        chain: Chain,
        lanes: Lanes,
        share: Share,
        *,
        assembler: LaneAssembler | None,
        delivery: Delivery,
        dispatcher: Dispatcher,
        stats: PipelineStats,
        turn: int,
        limit_bytes: int,
        codec: int | None,
    ) -> None:
        self._chain = chain
        self._lanes = lanes
        self._share = share
        self._assembler = assembler
        self._delivery = delivery
        self._dispatcher = dispatcher
        self._stats = stats
        self._turn = turn
        self._limit_bytes = limit_bytes
        self._merged_bytes = min(limit_bytes, _MERGED_BYTES, share.budget.limit // _PART_OF_BUDGET)
        self._most_bytes = max(share.budget.limit, _LEAST_OPENED_BYTES)
        self._small_bytes = max(share.budget.limit // _SMALL_PART_OF_BUDGET, _LEAST_SMALL_BYTES)
        self._codec = codec
        self._left = turn
        self._waiting: dict[Lane, WaitingRead] = {}  # in the order in which they began to wait

    @property
    def waits(self) -> bool:
        """True while records wait."""
        return bool(self._waiting)

    @property
    def in_turn(self) -> bool:
        """True if records wait only because so many others were looked at before them."""
        return bool(self._waiting) and self._left <= 0

    def holds(self, lane: Lane) -> bool:
        """True while records of this lane wait; its partition is not read then."""
        return lane in self._waiting

    def add(self, polled: Mapping[TopicPartition, Sequence[SourceBatch]]) -> None:
        """Takes the batches that were read, if their partitions are still assigned."""
        for partition, batches in polled.items():
            lane = self._lanes.get(partition)
            if lane is not None:
                self._waiting.setdefault(lane, WaitingRead()).batches.extend(batches)
                lane.read = True
                self._share.fetched(sum(batch.size for batch in batches))

    def clear(self) -> None:
        """Forgets the records that wait; they are read again from the committed offset."""
        for lane in tuple(self._waiting):
            self._forget(lane)
        self._share.work_waits = False

    def waiting_for_work(self) -> Sequence[Lane]:
        """The lanes whose records wait for room for work, or behind records with work: the latest first.

        None in a turn that did not come to all lanes: what the others wait for is not known.
        """
        if self.in_turn:
            return ()
        return [lane for lane, read in reversed(self._waiting.items()) if read.for_work]

    def first(self, lane: Lane) -> int | None:
        """The offset of the first record of a lane that waits; None if there is none.

        Raises:
            CorruptRecordException: the batch cannot be read.
        """
        read = self._waiting.get(lane)
        return None if read is None else read.first

    def timestamp(self, lane: Lane) -> int | None:
        """The timestamp of the first record of a lane that waits; None if there is none, or it is not known."""
        read = self._waiting.get(lane)
        return None if read is None else read.timestamp

    def let_go(self, lane: Lane) -> int | None:
        """Forgets the records of a lane that wait.

        Returns:
            The offset of the first one, from which they have to be read again; None if there were none.

        Raises:
            CorruptRecordException: the batch cannot be read.
        """
        first = self.first(lane)
        self._forget(lane)
        return first

    def _forget(self, lane: Lane) -> None:
        read = self._waiting.pop(lane, None)
        if read is not None:
            lane.read, lane.read_to = False, 0
            self._share.fetched(-read.size)

    def admit(self) -> None:
        """Lets records of each partition go on, up to the first for which there is no room.

        After as many records as are looked at in one turn, the rest waits for the next one; see `in_turn`.

        Raises:
            KafkaError: a batch cannot be read.
        """
        self._share.work_waits = False
        self._left = self._turn
        full = False
        for lane, read in tuple(self._waiting.items()):
            read.for_work = False
            full |= self._admit(lane, read, full=full)
            read.forget()
            if not read:
                del self._waiting[lane]
                lane.read = False
            elif self._left <= 0:
                self._waiting[lane] = self._waiting.pop(lane)  # the others come first in the next turn
                return

    def _admit(self, lane: Lane, read: WaitingRead, *, full: bool) -> bool:
        """Lets batches of a partition go on.

        Args:
            lane: of the partition.
            read: of the partition, and waits.
            full: whether there is no room for records that pass. The share knows whether there is for one with work.

        Returns:
            Whether there was no room for records that pass.
        """
        while read.opened or (read.batches and self._left > 0):
            if read.opened:
                refused = self._admit_opened(lane, read, full=full)
                if read.opened:
                    return refused
                continue
            passing = self._passing(lane, read.batches)
            if passing:
                found_none = self._refused(lane, sum(map(self._held, passing)), full=full)
                if found_none is not None:
                    return found_none
                passed = self._pass(lane, passing)
                for _ in range(passed):
                    self._share.fetched(-read.batches.popleft().size)
                if passed:
                    continue
            if not self._open(lane, read):
                break
        return False

    def _open(self, lane: Lane, read: WaitingRead) -> bool:
        """Takes the next batch apart; False while others are open that leave no room: what they hold is in memory.

        Small ones are always opened: records of one partition must not wait for a store that another one needs.
        """
        size = read.batches[0].most_plain_bytes(self._most_bytes)
        if size > self._small_bytes:
            opened = sum(each.opened for each in self._waiting.values() if each.opened > self._small_bytes)
            if opened and opened + size > self._most_bytes:
                return False
        batch = read.open(self._most_bytes)
        self._share.fetched(read.opened - batch.size)
        lane.codec = batch.codec
        self._stats.batches_taken_apart += 1
        self._left -= size // _DECOMPRESSED_FOR_ONE
        return True

    def _admit_opened(self, lane: Lane, read: WaitingRead, *, full: bool) -> bool:
        """As `_admit`, for the batch that was taken apart: no object is made of a record before it is needed."""
        while True:
            if not read.make():
                self._share.fetched(-read.opened)
                read.opened, read.source = 0, iter(())
                return False
            refused = self._admit_records(lane, read.records, full=full)
            if read.records or self._left <= 0:
                return refused

    def _refused(self, lane: Lane, size: int, *, full: bool) -> bool | None:
        """None if there is room for batches that pass; else whether none but work has room."""
        if lane.items:
            return None if self._admits_work(lane, size) else False
        return True if full or not self._share.admits(size) else None

    def _passing(self, lane: Lane, batches: Sequence[SourceBatch]) -> Sequence[SourceBatch]:
        """The next batches that go on together: several if they are small; none if the next one does not pass."""
        first = batches[0]
        if not self._passes_whole(lane, first):
            return ()
        passing = [first]
        if first.mergeable:
            size = first.plain_bytes
            for batch in itertools.islice(batches, 1, None):
                if batch.codec != first.codec or not batch.mergeable or not self._passes_whole(lane, batch):
                    break
                size += batch.plain_bytes
                if size > self._merged_bytes:
                    break
                passing.append(batch)
        return passing

    def _pass(self, lane: Lane, passing: Sequence[SourceBatch]) -> int:
        """Lets batches go on as one, up to the first that has a record which must be looked at.

        Returns:
            How many have gone on.
        """
        batch = _together(passing)
        if not batch.plain:
            passing = list(itertools.takewhile(lambda each: each.plain, passing))
            if not passing:
                return 0
            batch = _together(passing)
        held = self._held(batch)
        if lane.items:
            self._dispatcher.follow(lane, batch, held)
        else:
            self._share.take(held)
            self._delivery.forward(lane, batch, held)
        assert batch.batch is not None
        self._left -= 1 + batch.batch.count // _PASSING_FOR_ONE
        self._count_looked_at(batch.batch)
        batch.forget()
        self._stats.records_in += batch.batch.count
        self._stats.bytes_in += batch.size - BATCH_OVERHEAD_BYTES
        return max(1, batch.merged_from)

    def _held(self, batch: SourceBatch) -> int:
        """Bytes of the budget that a batch holds: if it does not go whole, its records leave their compression."""
        goes_whole = batch.goes_whole(self._codec, self._limit_bytes)
        return RECORD_OVERHEAD_BYTES + (batch.size if goes_whole else batch.plain_bytes)

    def _passes_whole(self, lane: Lane, batch: SourceBatch) -> bool:
        # A batch that finds no room is asked for again and again. Neither the chain nor what was delivered changes.
        if batch.passes is None:
            batch.passes = self._may_pass(lane, batch)
            if batch.batch is not None:
                self._count_looked_at(batch.batch)
        return batch.passes

    def _count_looked_at(self, batch: RecordBatch) -> None:
        self._left -= batch.looked_at_bytes // _DECOMPRESSED_FOR_ONE

    def _may_pass(self, lane: Lane, batch: SourceBatch) -> bool:
        if batch.batch is None or lane.sink_partition is None:
            return False  # in an old format, or the key decides on the partition
        if batch.offset > batch.batch.base_offset:
            return False  # some of its records are not wanted, or all: those behind may be gone by compaction
        if self._assembler is not None and self._assembler.takes_any(lane, batch):
            return False
        return self._chain.passes_whole(batch.batch, whole=batch.goes_whole(self._codec, self._limit_bytes))

    def _admit_records(self, lane: Lane, records: deque[SourceRecord], *, full: bool) -> bool:
        # Every record of a batch that was taken apart comes through here. One that passes costs the calls here and in
        # `Output.append`, and no others.
        share = self._share
        assembler = self._assembler
        passes = self._chain.passes
        append = self._delivery.append
        while records and self._left > 0:
            record = records[0]
            held = len(record.value or b"") + len(record.key or b"") + RECORD_OVERHEAD_BYTES
            if record.headers:
                held += header_bytes(record.headers)
            if type(record) is Unopened:
                if not self._refuse(lane, record, held):
                    return False
            elif assembler is not None and assembler.takes(lane, record):
                if not self._admits_work(lane, held + assembler.reserve_bytes(record)):
                    return False
                self._assemble(assembler, lane, record)
            elif not lane.items and passes(record):
                if full or not share.admits(held):
                    return True
                share.take(held)
                append(lane, record, record.offset, held, lane.codec)
            elif not self._enter(lane, record, held):
                return False
            records.popleft()
            self._left -= 1
            self._stats.records_in += 1
            self._stats.bytes_in += len(record.key or b"") + len(record.value or b"")
        return False

    def _enter(self, lane: Lane, record: SourceRecord, held: int) -> bool:
        """Begins the work on a record, if there is room for it."""
        # Asked first: the work may make copies, and is not begun without room for the record itself.
        passing = not lane.items and self._share.admits(held)
        if not passing and not self._admits_work(lane, held):
            return False
        work = self._chain.begin(record, self._leaves_with(lane))
        if work is not None and work.lacks_size:
            # It waits alone, and reserves nothing: what it needs may be all, or nothing if it is refused.
            if lane.measuring is None or lane.measuring[0] != record.offset:
                self._dispatcher.measure(lane, record, work)
            assert lane.measuring is not None
            task = lane.measuring[1]
            if not task.done():
                self._share.await_freed()
                self._waiting[lane].for_work = True
                return False
            if (error := task.exception()) is not None:
                return self._fail(lane, record, error, held)
            work = task.result()
        if work is not None:
            held += work.reserve_bytes
        # Work that takes no time is done at once, and what it leaves passes: it waits for no store.
        passing = passing and work is not None and not work.blocks and self._share.admits(held)
        if not passing and not self._admits_work(lane, held):
            return False
        self._dispatcher.enter(lane, record, work, held)
        return True

    def _fail(self, lane: Lane, record: SourceRecord, error: BaseException, held: int) -> bool:
        """Lets a record fail, if there is room for its bytes."""
        if (lane.items or not self._share.admits(held)) and not self._admits_work(lane, held):
            return False
        self._dispatcher.fail(lane, record, error, held)
        return True

    def _refuse(self, lane: Lane, unopened: Unopened, held: int) -> bool:
        """Lets records that are not read fail, if there is room for their bytes."""
        if unopened.offset < lane.delivered:  # their letter was written before the partition was assigned
            lane.skip(unopened)
            self._dispatcher.release(lane)
        elif self._admits_work(lane, held):
            self._dispatcher.fail(lane, unopened, unopened.error, held)
        else:
            return False
        self._stats.records_in += unopened.count - 1
        return True

    def _leaves_with(self, lane: Lane) -> int:
        """The number of the codec with which the records of the lane leave."""
        return lane.codec if self._codec is None else self._codec

    def _admits_work(self, lane: Lane, size: int) -> bool:
        share = self._share
        if lane.work and not share.admits_part(lane.work, size):
            admits = False  # this partition holds much already, which may be stuck: it waits alone
        else:
            admits = not share.work_waits and share.admits_work(size)
            if not admits:
                share.work_waits = True
                # In order, but not behind a store that does not give what another partition waits for.
                admits = not lane.work and self._lanes.stalled and share.admits_least(size, len(self._lanes))
        self._waiting[lane].for_work = not admits
        return admits

    def _assemble(self, assembler: LaneAssembler, lane: Lane, record: SourceRecord) -> None:
        """Takes a chunk. The budget does not count it, or chunks could wait for room that their own message holds."""
        whole, discarded = assembler.add(lane, record)
        lane.tracked(record.offset)
        # Before the chunk itself: what a commit notes as delivered must not pass it while the letters are not written.
        for event in discarded:
            self._dispatcher.give_up(event)
        if whole is None:
            lane.skip(record)
        else:
            work = self._chain.begin(whole, self._leaves_with(lane))
            self._dispatcher.enter(lane, whole, work, held_bytes(whole) + (0 if work is None else work.reserve_bytes))
        self._dispatcher.release(lane)

    def expire(self, *, reading: bool) -> bool:
        """Gives up messages whose chunks have not come in time. The time runs only while the flow reads.

        Args:
            reading: whether the flow was ready to read all partitions since the last call.

        Returns:
            Whether a commit waits for fewer messages than before.
        """
        if self._assembler is None:
            return False
        self._assembler.tick(reading=reading and not self._lanes.stalled)
        if self._waiting or not reading:
            return False
        pending = self._assembler.pending
        for event in self._assembler.expire():
            self._dispatcher.give_up(event)
        return self._assembler.pending < pending


def _together(batches: Sequence[SourceBatch]) -> SourceBatch:
    """One batch of several; the first alone if they cannot be merged."""
    if len(batches) > 1:
        with contextlib.suppress(MalformedError):
            return SourceBatch.merged(batches)
    return batches[0]
