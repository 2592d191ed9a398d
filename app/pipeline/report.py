"""The reports of pipelines: all that the pages and the metrics know of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from aiokafka import TopicPartition

from app.config.settings import PipelineSettings
from app.pipeline.stats import PipelineStats

__all__ = ["FlowReport", "PipelineReport"]


class FlowReport(Protocol):
    """The report of a flow, for pages and metrics."""

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of the budget that the flow holds."""
        ...

    @property
    def pending_messages(self) -> int:
        """Messages that the commit waits for: chunks are missing, or come again after they were delivered."""
        ...

    @property
    def pending_bytes(self) -> int:
        """Bytes of the chunks of messages that are not whole; the budget does not count them."""
        ...

    def positions(self) -> Mapping[TopicPartition, tuple[int | None, int | None, int | None]]:
        """For each assigned partition: the offset read up to, the committed one, and the end of what can be read."""
        ...


class PipelineReport(Protocol):
    """The report of a pipeline, for pages and metrics."""

    @property
    def settings(self) -> PipelineSettings: ...
    @property
    def stats(self) -> PipelineStats: ...
    @property
    def status(self) -> str:
        """`STARTING`, `RUNNING`, `RESTARTING`, `FAILED` or `STOPPED`."""
        ...

    @property
    def degraded(self) -> str | None:
        """The reason why records wait though the pipeline runs; None if they do not."""
        ...

    @property
    def last_error(self) -> str | None: ...
    @property
    def last_error_at(self) -> float | None:
        """Seconds since the epoch."""
        ...

    @property
    def failing_since(self) -> float | None:
        """Since when the pipeline begins again and again, in seconds since the epoch; None if it does not."""
        ...

    @property
    def flow(self) -> FlowReport | None: ...
