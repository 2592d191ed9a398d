"""Pipelines as the pages and the metrics see them, without a broker."""

from __future__ import annotations

from dataclasses import dataclass, field

from aiokafka import TopicPartition

from app.config.parsing import parse
from app.config.settings import PipelineSettings
from app.pipeline.report import Target
from app.pipeline.stats import PipelineStats

__all__ = ["Flow", "Pipeline", "pipeline_settings"]


def pipeline_settings(name: str, **keys: object) -> PipelineSettings:
    """The settings of a pipeline with that name."""
    table = {"topics": ["raw"], "output.topic": "orders", "transforms": ["offload"], **keys}
    table["large.message.payload.store.class"] = "memory"
    return parse({"bootstrap.servers": "localhost:1", "pipeline": {name: table}}, {}).pipelines[0]


@dataclass
class Flow:
    """A `FlowReport` that says what it is told to say."""

    in_flight_bytes: int = 0
    read_ahead_bytes: int = 0
    pending_messages: int = 0
    pending_bytes: int = 0
    paused: frozenset[TopicPartition] = frozenset()
    oldest_ms: int | None = None
    partitions: dict[TopicPartition, tuple[int | None, int | None, int | None]] = field(default_factory=dict)

    def positions(self) -> dict[TopicPartition, tuple[int | None, int | None, int | None]]:
        """See `FlowReport.positions`."""
        return self.partitions


@dataclass
class Pipeline:
    """A `PipelineReport` likewise."""

    name: str = "p"
    status: str = "RUNNING"
    target: Target = "STARTED"
    degraded: str | None = None
    awaited: str | None = None
    last_error: str | None = None
    last_error_at: float | None = None
    failing_since: float | None = None
    flow: Flow | None = None
    stats: PipelineStats = field(default_factory=PipelineStats)
    own_settings: PipelineSettings | None = None

    @property
    def settings(self) -> PipelineSettings:
        """See `PipelineReport.settings`."""
        return self.own_settings or pipeline_settings(self.name)
