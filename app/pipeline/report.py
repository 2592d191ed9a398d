"""The reports of pipelines: all that the pages and the metrics know of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from app.config.settings import PipelineSettings
from app.kafka.structs import TopicPartition
from app.pipeline.stats import PipelineStats
from transforms.control_record import TargetState
from transforms.errors import WideloadError

STATES = ("starting", "running", "degraded", "paused", "restarting", "failed", "stopped")
"""The states of a pipeline: those of `PipelineReport.status`, and `degraded`, of one that runs."""

Target = TargetState
"""What a pipeline is asked to be; the names are those of Connect's target states."""


Position = tuple[int | None, int | None, int | None]
"""The offset read up to, the committed one, and the end of what can be read; None for what is not known."""


@dataclass(frozen=True, slots=True)
class FlowReport:
    """How far a flow has come, and what it holds.

    Attributes:
        in_flight_bytes: bytes of the budget that the flow holds.
        read_ahead_bytes: bytes that were fetched and that the budget does not count yet.
        pending_messages: messages that the commit waits for: chunks are missing, or come again after they were
            delivered.
        pending_bytes: bytes of the chunks of messages that are not whole; the budget does not count them.
        paused: the assigned partitions that are not read, because they wait for the store or for memory.
        oldest_ms: the timestamp of the oldest record that was read and waits, in milliseconds since 1970; None if none
            does. It waits for the store, or for room in the budget, or behind such a record.
        positions: of each assigned partition. Of a flow that has ended, and while the group assigns partitions, what
            was known last.
    """

    in_flight_bytes: int = 0
    read_ahead_bytes: int = 0
    pending_messages: int = 0
    pending_bytes: int = 0
    paused: Collection[TopicPartition] = ()
    oldest_ms: int | None = None
    positions: Mapping[TopicPartition, Position] = field(default_factory=dict)


class PipelineReport(Protocol):
    """The report of a pipeline.

    Attributes:
        status: `STARTING`, `RUNNING`, `PAUSED`, `RESTARTING`, `FAILED` or `STOPPED`.
        target: what it is asked to be; it stays so through failures, until it is asked for something else.
        degraded: the reason why records wait though the pipeline runs; None if they do not.
        awaited: what a pipeline that does not run yet waits for, and until when at the latest; None if that is not
            known.
        last_error_at: in seconds since the epoch.
        failing_since: since when the pipeline restarts again and again, in seconds since 1970; None if it does not.
        flow_report: that of its flow; of the last one if none runs.
    """

    @property
    def settings(self) -> PipelineSettings: ...
    @property
    def stats(self) -> PipelineStats: ...
    @property
    def status(self) -> str: ...
    @property
    def target(self) -> Target: ...
    @property
    def degraded(self) -> str | None: ...
    @property
    def awaited(self) -> str | None: ...
    @property
    def last_error(self) -> str | None: ...
    @property
    def last_error_at(self) -> float | None: ...
    @property
    def failing_since(self) -> float | None: ...
    @property
    def flow_report(self) -> FlowReport: ...


def state_of(pipeline: PipelineReport) -> str:
    """The state of a pipeline, one of `STATES`."""
    if pipeline.status == "RUNNING" and pipeline.degraded is not None:
        return "degraded"
    return pipeline.status.lower()


def lag_of(position: int | None, committed: int | None, end: int | None) -> int | None:
    """The records from the committed offset, or else from where reading begins, to the end; None if it is not known."""
    begin = position if committed is None else committed
    return None if begin is None or end is None else max(0, end - begin)


class PipelineControl(PipelineReport, Protocol):
    """A pipeline that can be controlled. A request takes effect soon after; `status` shows when."""

    def steer(self, target: Target) -> None:
        """Lets it run, pause or stop. Paused, it stays in its group; stopped, it leaves it."""

    def request_restart(self) -> None:
        """Finishes, commits, and restarts with new clients and a new store, also if it had failed; not if stopped."""


class SteeringError(WideloadError):
    """A request did not reach the workers, or it is not known whether it did.

    Attributes:
        retriable: whether a retry may succeed.
    """

    def __init__(self, reason: str, *, retriable: bool) -> None:
        super().__init__(reason)
        self.retriable = retriable


class Steering(Protocol):
    """Takes what is asked of a pipeline to the workers of its group, or to this one alone.

    Attributes:
        shared: whether it reaches all of them, and outlives them.
        trouble: why no request reaches this worker from the others, in a sentence; None if they do.
    """

    shared: bool
    trouble: str | None

    async def steer(self, pipeline: PipelineControl, target: Target) -> None:
        """Lets it run, pause or stop; see `PipelineControl.steer`.

        Raises:
            SteeringError: `shared`, and Kafka has not taken it.
        """

    async def request_restart(self, pipeline: PipelineControl, *, only_failed: bool) -> None:
        """Restarts it; with `only_failed` only if it has failed. See `PipelineControl.request_restart`.

        Raises:
            SteeringError: `shared`, and Kafka has not taken it.
        """
