"""Pipelines as the pages and the metrics see them, without a broker."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.config.parsing import parse
from app.config.settings import PipelineSettings
from app.pipeline.report import FlowReport, Target
from app.pipeline.stats import PipelineStats


def pipeline_settings(name: str, **keys: object) -> PipelineSettings:
    """The settings of a pipeline with that name."""
    table = {"topics": ["raw"], "output.topic": "orders", "transforms": ["offload"], **keys}
    table["large.message.payload.store.class"] = "memory"
    return parse({"bootstrap.servers": "localhost:1", "pipeline": {name: table}}, {}).pipelines[0]


@dataclass
class Pipeline:
    """A `PipelineReport` that says what it is set to say."""

    name: str = "p"
    status: str = "RUNNING"
    target: Target = "STARTED"
    degraded: str | None = None
    awaited: str | None = None
    last_error: str | None = None
    last_error_at: float | None = None
    failing_since: float | None = None
    flow_report: FlowReport = field(default_factory=FlowReport)
    stats: PipelineStats = field(default_factory=PipelineStats)
    own_settings: PipelineSettings | None = None

    @property
    def settings(self) -> PipelineSettings:
        """See `PipelineReport.settings`."""
        return self.own_settings or pipeline_settings(self.name)
