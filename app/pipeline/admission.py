"""Admission: records that were read wait here until the budget has room for them.

A partition whose record finds no room waits alone: the others go on, as far as they have room. But no record overtakes
one of its kind, with work or without, or a large record could wait for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from aiokafka import TopicPartition

from app.pipeline.budget import Share
from app.pipeline.chain import Chain
from app.pipeline.delivery import Delivery
from app.pipeline.dispatch import Dispatcher
from app.pipeline.lane import RECORD_OVERHEAD_BYTES, Lane, header_bytes, held_bytes
from app.pipeline.lane_assembler import LaneAssembler
from app.pipeline.lanes import Lanes
from app.pipeline.stats import PipelineStats
from transforms.record import SourceRecord

__all__ = ["Admission"]


class Admission:
    """Admits records of a partition in the order in which they were read. Belongs to one event loop.

    `assembler` is None if the pipeline assembles no chunks.
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
    ) -> None:
        self._chain = chain
        self._lanes = lanes
        self._share = share
        self._assembler = assembler
        self._delivery = delivery
        self._dispatcher = dispatcher
        self._stats = stats
        self._waiting: dict[Lane, deque[SourceRecord]] = {}  # in the order in which they began to wait

    @property
    def waits(self) -> bool:
        """True while records wait."""
        return bool(self._waiting)

    def holds(self, lane: Lane) -> bool:
        """True while records of this lane wait; its partition is not read then."""
        return lane in self._waiting

    def add(self, polled: Mapping[TopicPartition, Sequence[SourceRecord]]) -> None:
        """Takes the records that were read, if their partitions are still assigned."""
        for partition, records in polled.items():
            lane = self._lanes.get(partition)
            if lane is not None:
                self._waiting.setdefault(lane, deque()).extend(records)

    def clear(self) -> None:
        """Forgets the records that wait; they are read again from the committed offset."""
        self._waiting.clear()
        self._share.work_waits = False

    def admit(self) -> None:
        """Lets records of each partition go on, up to the first for which there is no room."""
        self._share.work_waits = False
        full = False
        for lane, records in tuple(self._waiting.items()):
            refused = self._admit(lane, records, full=full)
            if not records:
                del self._waiting[lane]
            full |= refused

    def _admit(self, lane: Lane, records: deque[SourceRecord], *, full: bool) -> bool:
        """Lets records of a partition go on.

        Args:
            lane: of the partition.
            records: of the partition that wait.
            full: whether there is no room for a record that passes. The share knows whether there is for one with work.

        Returns:
            Whether there was no room for a record that passes.
        """
        # Every record comes through here. One that passes costs the calls here and in `Output.append`, and no others.
        share = self._share
        assembler = self._assembler
        passes = self._chain.passes
        append = self._delivery.append
        while records:
            record = records[0]
            held = len(record.value or b"") + len(record.key or b"") + RECORD_OVERHEAD_BYTES
            if record.headers:
                held += header_bytes(record.headers)
            if assembler is not None and assembler.takes(lane, record):
                if not self._admits_work(lane, held + assembler.reserve_bytes(record)):
                    return False
                self._assemble(assembler, lane, record)
            elif not lane.slots and passes(record):
                if full or not share.admits(held):
                    return True
                share.take(held)
                append(lane, record, record.offset, held)
            else:
                # Asked first: the work may make copies, and is not begun without room for the record itself.
                if not self._admits_work(lane, held):
                    return False
                work = self._chain.begin(record)
                if work is not None:
                    held += work.reserve_bytes
                    if not self._admits_work(lane, held):
                        return False
                self._dispatcher.enter(lane, record, work, held)
            records.popleft()
            self._stats.records_in += 1
            self._stats.bytes_in += len(record.key or b"") + len(record.value or b"")
        return False

    def _admits_work(self, lane: Lane, size: int) -> bool:
        share = self._share
        if lane.work and not share.admits_part(lane.work, size):
            return False  # this partition holds much already, which may be stuck: it waits alone
        if share.work_waits or not share.admits_work(size):
            share.work_waits = True
        return not share.work_waits

    def _assemble(self, assembler: LaneAssembler, lane: Lane, record: SourceRecord) -> None:
        """Takes a chunk. The budget does not count it, or chunks could wait for room that their own message holds."""
        whole, discarded = assembler.add(lane, record)
        if whole is None:
            lane.skip(record)
        else:
            work = self._chain.begin(whole)
            self._dispatcher.enter(lane, whole, work, held_bytes(whole) + (0 if work is None else work.reserve_bytes))
        for event in discarded:
            self._dispatcher.give_up(event)
        self._dispatcher.release(lane)

    def expire(self, *, reading: bool) -> bool:
        """Gives up messages whose chunks have not come in time. The time runs only while the flow reads.

        Args:
            reading: whether the flow was ready to read since the last call.

        Returns:
            Whether a commit waits for fewer messages than before.
        """
        if self._assembler is None:
            return False
        self._assembler.tick(reading=reading and not self._lanes.stalled)
        if self._waiting:
            return False
        pending = self._assembler.pending
        for event in self._assembler.expire():
            self._dispatcher.give_up(event)
        return self._assembler.pending < pending
