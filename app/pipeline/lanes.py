"""The lanes of a flow: one for each partition that the group has given it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from app.kafka.source_batch import SourceBatch
from app.kafka.structs import TopicPartition
from app.pipeline.budget import Share
from app.pipeline.lane import Lane
from app.pipeline.lane_assembler import LaneAssembler
from app.pipeline.offset_tracker import OffsetTracker
from app.pipeline.waiting_read import WaitingRead


class Lanes:
    """The lanes, by partition. Belongs to one event loop.

    `assembler` is None if the pipeline assembles no chunks.
    """

    # State that changes: `_lanes`, by rebalances, and so at each await on the consumer. A caller that keeps a lane
    # over an await asks `holds` after it.

    def __init__(self, share: Share, assembler: LaneAssembler | None) -> None:
        self._share = share
        self._assembler = assembler
        self._lanes: dict[TopicPartition, Lane] = {}

    def __iter__(self) -> Iterator[Lane]:
        """The lanes of this moment, whatever changes meanwhile; those first that have waited longest."""
        return iter(tuple(self._lanes.values()))

    def __len__(self) -> int:
        return len(self._lanes)

    def get(self, partition: TopicPartition) -> Lane | None:
        """The lane of a partition; None if the partition is not assigned."""
        return self._lanes.get(partition)

    def holds(self, lane: Lane) -> bool:
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
        self._lanes[partition] = Lane(partition, sink_partition)

    def put_last(self, lane: Lane) -> None:
        """Lets the other lanes come first from now on."""
        self._lanes[lane.partition] = self._lanes.pop(lane.partition)

    # --- what was read -----------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """True while records that were read wait to be admitted."""
        return any(lane.read for lane in self._lanes.values())

    def add(self, partition: TopicPartition, batches: Sequence[SourceBatch], read_to: int) -> None:
        """Takes the batches that were read, up to an offset, if their partition is assigned."""
        lane = self._lanes.get(partition)
        if lane is not None:
            lane.read.batches.extend(batches)
            lane.read_to = read_to
            self._share.fetched(sum(batch.size for batch in batches))

    def let_go(self, lane: Lane) -> int | None:
        """Forgets what was read and waits.

        Returns:
            The offset of the first record, from which it has to be read again; None if there was none.

        Raises:
            CorruptRecordException: the batch cannot be read.
        """
        first = lane.read.first
        self._forget(lane)
        return first

    def let_all_go(self) -> None:
        """Forgets all that was read and waits; it is read again from the committed offset."""
        for lane in self._lanes.values():
            self._forget(lane)

    def _forget(self, lane: Lane) -> None:
        if lane.read:
            self._share.fetched(-lane.read.size)
            lane.read, lane.read_to = WaitingRead(), 0

    # --- what is committed -------------------------------------------------------------------------------------------

    def resume(self, lane: Lane, offset: int, metadata: str, pipeline: str) -> None:
        """Takes in the committed offset and metadata of a lane, before its first record is admitted."""
        lane.committed = offset
        if self._assembler is not None:
            self._assembler.resume(lane, metadata, pipeline)

    def begin_again(self, lane: Lane, offset: int) -> None:
        """Takes in that a lane begins at an offset, whatever was delivered before; before its first record."""
        lane.delivered, lane.noted, lane.committed, lane.read_to = 0, "", offset, 0
        if lane.measuring is not None:  # another record may have that offset
            lane.measuring[1].cancel()
            lane.measuring = None
        if self._assembler is not None:
            self._assembler.clear(lane.partition)

    def to_commit(self, lane: Lane) -> tuple[int, str] | None:
        """The offset and the metadata to commit for a lane; None if they are committed already."""
        lane.pass_read()
        tracker = lane.tracker
        if tracker is None:
            return None
        commit = (tracker.safe(), "") if self._assembler is None else self._assembler.commit(lane)
        return commit if commit[0] > tracker.committed or commit[1] != lane.noted else None

    def discard(self, partitions: Iterable[TopicPartition]) -> None:
        """Closes the lanes of these partitions, if there are any, and forgets their records."""
        for partition in partitions:
            lane = self._lanes.pop(partition, None)
            if lane is not None:
                self._forget(lane)
                self._share.give_work(sum(item.held for item in lane.items))
                lane.discard()
                if self._assembler is not None:
                    self._assembler.clear(partition)

    def discard_all(self) -> None:
        """Closes all lanes."""
        self.discard(list(self._lanes))
