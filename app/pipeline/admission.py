"""Admission: records that were read wait here until the budget takes them, and go on to where they belong.

A partition whose record finds no room waits by itself: the others go on, as far as they have room. But no record
overtakes one of its kind, with work or without, or a large one could wait for ever.
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

    Args:
        chain: says which records pass.
        lanes: of the flow.
        share: of the budget.
        assembler: takes chunks; None where none are assembled.
        delivery: takes the records that pass.
        dispatcher: which the others take.
        stats: what is counted.
    """

    # State that changes: `_waiting`, by the poll loop and by rebalances. Between two awaits, so there is no lock.

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
        """True while records of this lane wait; it is not to be read on."""
        return lane in self._waiting

    def add(self, polled: Mapping[TopicPartition, Sequence[SourceRecord]]) -> None:
        """Takes what was read; no await may stand between the poll and this.

        A rebalance in between would leave records of lost partitions.
        """
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
            records: those that wait.
            full: whether there is no room for one that passes; where there is none for one with work, the share knows.

        Returns:
            Whether there was no room for one that passes.
        """
        # Every record comes through here, and one that passes is to cost next to nothing: the calls that stand here and
        # in `Output.append`, and none of a part in between.
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
                # Asked twice: without room for the record itself its work is not even begun, which may make copies.
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
            return False  # this partition has much that may be stuck, and waits alone
        if share.work_waits or not share.admits_work(size):
            share.work_waits = True
        return not share.work_waits

    def _assemble(self, assembler: LaneAssembler, lane: Lane, record: SourceRecord) -> None:
        """Takes a chunk. What is pending is not of the budget, or chunks could wait in it for those behind them."""
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
        """Gives up messages whose chunks have not come in time, which goes by only while the flow reads.

        Args:
            reading: whether the flow was ready to read since the last call.

        Returns:
            Whether a commit waits for fewer of them than before.
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
