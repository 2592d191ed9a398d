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
        self._known: tuple[Mapping[TopicPartition, Position], int | None] = (
            ({}, None) if before is None else before.latest
        )

    def begin(self) -> None:
        """Notes that the lanes are those of the assigned partitions."""
        self._live = True

    def freeze(self) -> None:
        """Keeps what is known now: the lanes are about to be discarded."""
        self._known, self._live = self.latest, False

    @property
    def latest(self) -> tuple[Mapping[TopicPartition, Position], int | None]:
        """How far the flow has come in each assigned partition, and `Lane.waits_since_ms` of the oldest record."""
        if not self._live:
            return self._known
        ends = self._source.ends()
        lanes = sorted(self._lanes, key=lambda lane: lane.partition)
        positions = {lane.partition: self._position(lane, ends) for lane in lanes if lane.partition in ends}
        waiting = (lane.waits_since_ms for lane in lanes)
        return positions, min((stamp for stamp in waiting if stamp is not None), default=None)

    def _position(self, lane: Lane, ends: Mapping[TopicPartition, int | None]) -> Position:
        end, known = ends[lane.partition], self._known[0]
        if end is None and lane.partition in known:
            return known[lane.partition]  # until the leader has answered
        if lane.tracker is not None:
            return lane.tracker.released, lane.tracker.committed, end
        if lane.committed is not None:
            return lane.committed, lane.committed, end
        first = None
        with contextlib.suppress(KafkaError):  # a batch that cannot be read ends the flow elsewhere
            first = lane.read.first
        return self._source.position(lane.partition) if first is None else first, None, end
