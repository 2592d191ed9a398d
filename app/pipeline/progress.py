"""The progress of a flow: how far it has come in each partition, for the pages and the metrics.

While the group gives out its partitions, and when the flow has ended, it says what was known last. Else an alert on the
lag would clear at the worst moment: when the pipeline has failed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from app.kafka.consumer import GroupConsumer
from app.kafka.errors import KafkaError
from app.kafka.structs import TopicPartition
from app.pipeline.lane import Lane
from app.pipeline.lanes import Lanes
from app.pipeline.report import Position


class Progress:
    """How far one flow has come. Belongs to its event loop.

    Args:
        lanes: of the flow.
        source: of the flow.
        before: the progress of the flow before it; None for the first one.
    """

    def __init__(self, lanes: Lanes, source: GroupConsumer, before: Progress | None = None) -> None:
        self._lanes = lanes
        self._source = source
        self._live = False
        self._positions: Mapping[TopicPartition, Position] = {} if before is None else before.positions()
        self._oldest_ms = None if before is None else before.oldest_ms

    def begin(self) -> None:
        """Takes in that the lanes are those of the assigned partitions."""
        self._live = True

    def hold(self) -> None:
        """Keeps what is known now: the lanes are about to be discarded."""
        if self._live:
            self._positions, self._oldest_ms = self.positions(), self.oldest_ms
            self._live = False

    def positions(self) -> Mapping[TopicPartition, Position]:
        """For each assigned partition, how far the flow has come in it."""
        if not self._live:
            return self._positions
        ends = self._source.ends()
        lanes = sorted(self._lanes, key=lambda lane: lane.partition)
        return {lane.partition: self._position(lane, ends) for lane in lanes if lane.partition in ends}

    @property
    def oldest_ms(self) -> int | None:
        """The timestamp of the oldest record that was read and waits; None if none does, or it has no timestamp.

        It waits for the store, for room in the budget, or behind such a record. In milliseconds since 1970.
        """
        if not self._live:
            return self._oldest_ms
        return min((at for at in map(self._waits_since, self._lanes) if at is not None and at >= 0), default=None)

    def _waits_since(self, lane: Lane) -> int | None:
        return lane.items[0].source.timestamp if lane.items else lane.read.timestamp

    def _position(self, lane: Lane, ends: Mapping[TopicPartition, int | None]) -> Position:
        end = ends[lane.partition]
        if end is None and lane.partition in self._positions:
            return self._positions[lane.partition]  # until the leader has answered
        position = lane.tracker.released if lane.tracker else lane.committed
        committed = lane.tracker.committed if lane.tracker else lane.committed
        if position is None:
            return self._first(lane), None, end
        return position, committed, end

    def _first(self, lane: Lane) -> int | None:
        """Where reading begins in a partition without a committed offset."""
        first = None
        with contextlib.suppress(KafkaError):  # a batch that cannot be read ends the flow elsewhere
            first = lane.read.first
        return self._source.position(lane.partition) if first is None else first
