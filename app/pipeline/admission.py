"""Admission: batches that were read wait in their lanes until the budget has room for them.

A batch of which no transform needs a record is forwarded whole. Any other one is decoded, and its records are admitted
one by one.

A partition whose record does not fit into the budget waits alone: the others continue, as far as they have room. But no
record overtakes one of its kind, with work or without, or a large record could wait forever.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import cast

from app.kafka.clients import codec_number
from app.kafka.source_batch import ReadRecord, SourceBatch, UnreadBatch
from app.pipeline.chain import Chain
from app.pipeline.delivery import Delivery
from app.pipeline.dispatch import Dispatcher
from app.pipeline.lane import RECORD_OVERHEAD_BYTES, Lane, Passing, header_bytes, held_bytes
from app.pipeline.lane_assembler import LaneAssembler
from app.pipeline.parts import Parts, whole_bytes
from transforms.batch_size import BATCH_OVERHEAD_BYTES
from transforms.chunk import is_chunk, may_hold_chunks
from transforms.errors import MalformedError
from transforms.record import SourceRecord
from transforms.record_batch import RecordBatch

_SMALL_PART_OF_BUDGET = 16
_LEAST_SMALL_BYTES = 1_048_576
_LEAST_OPENED_BYTES = 64 * 1_048_576  # batches of this size are decoded however small the budget is
_PASSING_FOR_ONE = 8  # this many passing records of a batch take as long as one that is decoded
_DECOMPRESSED_FOR_ONE = 65_536  # this many bytes take longer: 13 KB may hold 400 MiB, and block other tasks
_PART_OF_BUDGET = 8  # merged batches may take so small a part of it
_MERGED_BYTES = 1_000_000  # the most of small batches that become one: below the limit that topics have by default


class Admission:
    """Admits records of a partition in the order in which they were read. Belongs to one event loop.

    After `consumer.max.poll.records` that are looked at one by one other tasks have their turn; 64 KiB that are
    decompressed count as one. `assembler` is None if the pipeline assembles no chunks.

    Attributes:
        in_turn: whether records wait because the turn ended before them.
    """

    # No method awaits, so there is no lock.

    def __init__(
        self,
        parts: Parts,
        chain: Chain,
        assembler: LaneAssembler | None,
        delivery: Delivery,
        dispatcher: Dispatcher,
    ) -> None:
        settings, limit = parts.settings, parts.share.budget.limit
        self._chain = chain
        self._lanes = parts.lanes
        self._share = parts.share
        self._assembler = assembler
        self._delivery = delivery
        self._dispatcher = dispatcher
        self._stats = parts.stats
        self._codec = codec_number(settings)
        self._turn = cast("int", settings.consumer["consumer.max.poll.records"])
        self._limit_bytes = whole_bytes(settings, parts.plan)
        self._merged_bytes = min(self._limit_bytes, _MERGED_BYTES, limit // _PART_OF_BUDGET)
        self._most_bytes = max(limit, _LEAST_OPENED_BYTES)
        self._small_bytes = max(limit // _SMALL_PART_OF_BUDGET, _LEAST_SMALL_BYTES)
        self.in_turn = False
        self._left = 0
        """How many records may be looked at in this turn."""
        self._full = False
        """Whether a record that passes has found no room in this turn."""

    def admit(self) -> None:
        """Admits records of each partition, up to the first for which there is no room.

        After as many records as are looked at in one turn, the rest waits for the next one; see `in_turn`.

        Raises:
            KafkaError: a batch cannot be read.
        """
        self._share.begin_turn()
        self._left = self._turn
        self._full = self.in_turn = False
        for lane in self._lanes:
            if not lane.read:
                continue
            lane.read.for_work = False
            self._admit(lane)
            lane.read.forget()
            if self._left <= 0 or not lane.read:
                self._lanes.put_last(lane)
            if self._left <= 0:
                self.in_turn = self._lanes.waits
                return

    def _admit(self, lane: Lane) -> None:
        """Admits batches of a partition, until one has to wait, or the turn ends."""
        read = lane.read
        while self._left > 0 and read:
            if not read.opened:
                passing = self._passing(lane, read.batches)
                if passing and not self._has_room(lane, sum(map(self._held, passing))):
                    return
                if passing and self._pass(lane, passing):
                    continue
                if not self._open(lane):
                    return
            while read.make():
                self._admit_records(lane)
                if read.records or self._left <= 0:
                    return
            self._share.fetched(-read.opened)
            read.opened = 0

    def _has_room(self, lane: Lane, size: int) -> bool:
        """Whether there is room for what leaves as it is."""
        if lane.items:
            return self._admits_work(lane, size)
        self._full = self._full or not self._share.admits(size)
        return not self._full

    def _admits_work(self, lane: Lane, size: int) -> bool:
        admits = self._share.admits_work(size, lane.work, self._lanes.stuck_bytes)
        lane.read.for_work = not admits
        return admits

    # --- batches -----------------------------------------------------------------------------------------------------

    def _open(self, lane: Lane) -> bool:
        """Decodes the next batch; False while others are open that leave no room: what they hold is in memory.

        Small ones are always opened: records of one partition must not wait for a store that another one needs.
        """
        size = lane.read.batches[0].most_plain_bytes(self._most_bytes)
        if size > self._small_bytes:
            opened = sum(each.read.opened for each in self._lanes if each.read.opened > self._small_bytes)
            if opened and opened + size > self._most_bytes:
                return False
        batch = lane.read.open(self._most_bytes)
        self._share.fetched(lane.read.opened - batch.size)
        lane.codec = batch.codec if self._codec is None else self._codec
        self._stats.batches_taken_apart += 1
        self._left -= size // _DECOMPRESSED_FOR_ONE
        return True

    def _passing(self, lane: Lane, batches: Sequence[SourceBatch]) -> Sequence[SourceBatch]:
        """The next batches to forward together: several if they are small; none if the next one does not pass."""
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

    def _pass(self, lane: Lane, passing: Sequence[SourceBatch]) -> bool:
        """Forwards batches as one, up to the first that must be decoded; False if that is the first one."""
        batch = _together(passing)
        if not batch.plain:
            passing = list(itertools.takewhile(lambda each: each.plain, passing))
            if not passing:
                return False
            batch = _together(passing)
        held = self._held(batch)
        if lane.items:
            place = ReadRecord(lane.partition.topic, lane.partition.partition, batch.offset, batch.timestamp or -1)
            lane.append(Passing(place, held, batch=batch.kept()))
        else:
            self._share.take(held)
            self._delivery.output_of(lane).forward(lane, batch, held)
        assert batch.batch is not None
        self._left -= 1 + batch.batch.count // _PASSING_FOR_ONE
        self._count_looked_at(batch.batch)
        batch.forget()
        self._stats.records_in += batch.batch.count
        self._stats.bytes_in += batch.size - BATCH_OVERHEAD_BYTES
        for _ in range(max(1, batch.merged_from)):
            self._share.fetched(-lane.read.batches.popleft().size)
        return True

    def _held(self, batch: SourceBatch) -> int:
        """Bytes of the budget that a batch holds: if it does not go whole, its records leave their compression."""
        is_forwarded = batch.is_forwarded(self._codec, self._limit_bytes)
        return RECORD_OVERHEAD_BYTES + (batch.size if is_forwarded else batch.plain_bytes)

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
        if batch.offset < lane.delivered or (self._assembler is not None and may_hold_chunks(batch.batch)):
            return False
        return self._chain.passes_whole(batch.batch, whole=batch.is_forwarded(self._codec, self._limit_bytes))

    # --- records of decoded batches ----------------------------------------------------------------------------------

    def _admit_records(self, lane: Lane) -> None:
        # Every record of a decoded batch comes through here. One that passes costs the calls here and in
        # `Output.append`, and no others.
        records, share, delivered = lane.read.records, self._share, lane.delivered
        chunks = self._assembler is not None
        passes = self._chain.passes
        append = self._delivery.output_of(lane).append
        while records and self._left > 0:
            record = records[0]
            held = len(record.value or b"") + len(record.key or b"") + RECORD_OVERHEAD_BYTES
            if record.headers:
                held += header_bytes(record.headers)
            apart = record.offset < delivered or type(record) is UnreadBatch
            apart = apart or (chunks and bool(record.headers) and is_chunk(record.headers))
            if not lane.items and not apart and passes(record):
                if self._full or not share.admits(held):
                    self._full = True
                    return
                share.take(held)
                append(lane, record, record.offset, held, lane.codec)
            elif not (self._admit_apart if apart else self._enter)(lane, record, held):
                return
            records.popleft()
            self._left -= 1
            self._stats.records_in += 1
            self._stats.bytes_in += len(record.key or b"") + len(record.value or b"")

    def _admit_apart(self, lane: Lane, record: SourceRecord, held: int) -> bool:
        """Admits a record that is not for the chain, if there is room for it."""
        if isinstance(record, UnreadBatch) and record.offset >= lane.delivered:
            if not self._fail(lane, record, record.error, held):
                return False
            self._stats.records_in += record.count - 1
        elif record.headers and is_chunk(record.headers):
            return self._assemble(lane, record, held)
        else:  # delivered before the partition was assigned, as the metadata of the commit says
            lane.skip(record)
            self._dispatcher.release(lane)
        return True

    def _assemble(self, lane: Lane, chunk: SourceRecord, held: int) -> bool:
        """Takes a chunk. The budget does not count it, or chunks could wait for room that their own message holds."""
        assert self._assembler is not None
        if not self._admits_work(lane, held + self._assembler.reserve_bytes(chunk)):
            return False
        whole, discarded = self._assembler.add(lane.partition, chunk)
        lane.tracked(chunk.offset)
        # Before the chunk itself: a commit must not note it as delivered while the dead letters are not written.
        for event in discarded:
            self._dispatcher.give_up(event)
        if whole is None:
            lane.skip(chunk)
        else:
            held = held_bytes(whole)
            try:
                work = self._chain.begin(whole, lane.codec)
            except Exception as exc:  # noqa: BLE001  # the error policy decides
                self._dispatcher.fail(lane, whole, exc, held)
            else:
                self._dispatcher.enter(lane, whole, work, held + (0 if work is None else work.reserve_bytes))
        self._dispatcher.release(lane)
        return True

    def _enter(self, lane: Lane, record: SourceRecord, held: int) -> bool:
        """Begins the work on a record, if there is room for it.

        Room is asked for the record itself, then the work is planned, then room is asked for what the work needs. If
        there is none, the plan is dropped, and made again in the next turn.
        """
        # The record itself first: to begin the work may make copies of it.
        passing = not lane.items and self._share.admits(held)
        if not passing and not self._admits_work(lane, held):
            return False
        try:
            work = self._chain.begin(record, lane.codec)
            if work is not None and work.lacks_size:
                # It waits alone, and reserves nothing: what it needs may be all, or nothing if it is refused.
                work = self._dispatcher.measured(lane, record, work)
                if work is None:
                    lane.read.for_work = True
                    return False
        except Exception as exc:  # noqa: BLE001  # the error policy decides
            return self._fail(lane, record, exc, held)
        if work is not None:
            held += work.reserve_bytes
        # Work that takes no time is done immediately, and what it leaves passes: it waits for no store.
        passing = passing and work is not None and work.step is None and self._share.admits(held)
        if not passing and not self._admits_work(lane, held):
            return False
        self._dispatcher.enter(lane, record, work, held)
        return True

    def _fail(self, lane: Lane, record: SourceRecord, error: Exception, held: int) -> bool:
        """Lets a record fail, if there is room for its bytes."""
        if (lane.items or not self._share.admits(held)) and not self._admits_work(lane, held):
            return False
        self._dispatcher.fail(lane, record, error, held)
        return True

    def expire(self, *, reading: bool) -> None:
        """Gives up messages whose chunks have not come in time. The time runs only while the flow reads.

        `reading`: whether it was ready to read all partitions since the last call.
        """
        if self._assembler is None:
            return
        self._assembler.tick(reading=reading and not self._lanes.stalled)
        if reading and not self._lanes.waits:
            for event in self._assembler.expire():
                self._dispatcher.give_up(event)
                self._delivery.due()


def _together(batches: Sequence[SourceBatch]) -> SourceBatch:
    """One batch of several; the first alone if they cannot be merged."""
    if len(batches) > 1:
        with contextlib.suppress(MalformedError):
            return SourceBatch.merged(batches)
    return batches[0]
