"""Lanes for tests."""

from __future__ import annotations

from aiokafka import TopicPartition

from app.pipeline.budget import Budget, Share
from app.pipeline.lane import Lane
from app.pipeline.lane_assembler import LaneAssembler


def lane_of(
    number: int, sink_partition: int | None, *, topic: str = "raw", assembler: LaneAssembler | None = None
) -> Lane:
    """The lane of a partition, with a large budget of its own."""
    return Lane(TopicPartition(topic, number), sink_partition, Share(Budget(10_000_000)), assembler)
