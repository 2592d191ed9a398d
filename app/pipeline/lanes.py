"""The lanes of a flow: one for each partition that the group has given it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from app.kafka.structs import TopicPartition
from app.pipeline.budget import Share
from app.pipeline.lane import Lane
from app.pipeline.lane_assembler import LaneAssembler
from app.pipeline.offset_tracker import OffsetTracker


class Lanes:
    """The lanes, by partition. Belongs to one event loop.

    `assembler` is None if the pipeline assembles no chunks.
    """

    # State that changes: `_lanes`, by rebalances, and so at each await on the consumer. A caller that keeps a lane
    # over an await asks `has` after it.

    def __init__(self, share: Share, assembler: LaneAssembler | None) -> None:
        self._share = share
        self._assembler = assembler
        self._lanes: dict[TopicPartition, Lane] = {}

    def __iter__(self) -> Iterator[Lane]:
        """The lanes of this moment, whatever changes afterwards; those first that have waited longest."""
        return iter(tuple(self._lanes.values()))

    def __len__(self) -> int:
        return len(self._lanes)

    def get(self, partition: TopicPartition) -> Lane | None:
        """The lane of a partition; None if the partition is not assigned."""
        return self._lanes.get(partition)

    def has(self, lane: Lane) -> bool:
        """False if the lane has been discarded, though its partition may have come back."""
        return self._lanes.get(lane.partition) is lane

    def partition_of(self, tracker: OffsetTracker) -> TopicPartition | None:
        """The partition of a tracker; None if its lane has been discarded."""
        return next((lane.partition for lane in self._lanes.values() if lane.tracker is tracker), None)

    @property
    def busy(self) -> bool:
        """True while a record of any lane is neither durable nor dropped."""
        return any(lane.busy for lane in self._lanes.values())

    @property
    def waits(self) -> bool:
        """True while records that were read wait to be admitted."""
        return any(lane.read for lane in self._lanes.values())

    @property
    def stalled(self) -> bool:
        """True while a partition is not read on."""
        return any(lane.stalled for lane in self._lanes.values())

    def stuck_bytes(self) -> int:
        """The bytes of work in partitions that are not read on."""
        return sum(lane.work for lane in self._lanes.values() if lane.stalled)

    def uncommitted(self) -> dict[TopicPartition, tuple[int, int]]:
        """The partitions with records that were admitted and are not committed.

        Returns:
            By partition the committed offset, and how many offsets have been admitted from there on.
        """
        found = {}
        for lane in self._lanes.values():
            if lane.tracker is not None:
                end = lane.items[-1].source.offset + 1 if lane.items else lane.tracker.released
                if end > lane.tracker.committed:
                    found[lane.partition] = lane.tracker.committed, end - lane.tracker.committed
        return found

    def open(self, partition: TopicPartition, sink_partition: int | None) -> None:
        """Opens a lane for a partition that has been assigned; see `Lane` for `sink_partition`."""
        self._lanes[partition] = Lane(partition, sink_partition, self._share, self._assembler)

    def put_last(self, lane: Lane) -> None:
        """Lets the other lanes come first from now on."""
        self._lanes[lane.partition] = self._lanes.pop(lane.partition)

    def let_go(self) -> None:
        """Forgets all that was read and waits; it is read again from the committed offset."""
        for lane in self:
            lane.let_go()

    def discard(self, partitions: Iterable[TopicPartition]) -> None:
        """Closes the lanes of these partitions, if there are any, and forgets their records."""
        for partition in tuple(partitions):
            lane = self._lanes.pop(partition, None)
            if lane is not None:
                lane.discard()
