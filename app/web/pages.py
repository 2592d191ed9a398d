"""The worker's endpoints /health, /pipelines and /metrics, on Faust's web server."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from app.config.settings import PipelineSettings
from app.pipeline.report import PipelineReport, Steering, Target, lag_of
from app.web.metrics import Metrics
from transforms.identifiers import transactional_id

if TYPE_CHECKING:
    import faust
    from faust.web import Request, Response, View

_COUNTS = (
    "records_in", "records_out", "batches_whole", "batches_read_anew", "batches_taken_apart", "offloaded_records",
    "inflated_records", "dead_letters", "store_errors", "retries", "restarts", "expired_records",
    "truncated_records", "transactions", "chunked_messages", "chunks_published", "assembled_messages",
    "duplicate_chunks", "late_chunks", "unwrapped_records", "wrapped_records", "throttled_s",
)  # fmt: skip
_AS_ASKED: Mapping[Target, Collection[str]] = {
    "STARTED": {"RUNNING"},
    "PAUSED": {"PAUSED", "RUNNING"},  # it takes effect a moment later
    "STOPPED": {"STOPPED", "RUNNING", "PAUSED"},  # it finishes its records first
}
# The states of pipelines, the worst last: the state of a worker is that of its worst pipeline.
_BY_BADNESS = ("running", "degraded", "starting", "restarting", "paused", "stopped", "failed")
_PROMETHEUS = "text/plain; version=0.0.4"


def health(pipelines: Sequence[PipelineReport], trouble: str | None = None) -> dict[str, Any]:
    """The content of /health.

    `live`: the process answers. `ready`: every pipeline runs; if not, the endpoint answers 503. `status`: the state
    of the worst pipeline. `ok` and `degraded` (records wait for a store or a broker) are those of a ready worker;
    `starting`, `restarting`, `paused`, `stopped` and `failed` are not. `reasons`: the reason, by pipeline. A pipeline
    that is paused or stopped on request counts as one that runs.

    Args:
        pipelines: of the worker.
        trouble: see `Steering`. It is a reason by the name `control.topic`; the pipelines run nevertheless.
    """
    states = [_state(pipeline) for pipeline in pipelines]
    found = ((pipeline.settings.name, reason_of(pipeline)) for pipeline in pipelines)
    reasons = {name: reason for name, reason in found if reason is not None}
    if trouble is not None:
        states.append("degraded")
        reasons["control.topic"] = trouble
    status = max(states, key=_badness, default="running")
    ready = all(_as_asked(pipeline) for pipeline in pipelines)
    return {"status": "ok" if status == "running" else status, "live": True, "ready": ready, "reasons": reasons}


def _state(pipeline: PipelineReport) -> str:
    if _as_asked(pipeline):
        return "running" if pipeline.degraded is None else "degraded"
    return pipeline.status.lower()


def _badness(state: str) -> int:
    return _BY_BADNESS.index(state) if state in _BY_BADNESS else len(_BY_BADNESS)


def reason_of(pipeline: PipelineReport) -> str | None:
    """Why a pipeline is not well; None if it is. If nothing else is known, its state."""
    state = _state(pipeline)
    if state == "running":
        return None
    if state == "degraded":
        return str(pipeline.degraded)
    return "; ".join(filter(None, (_failing(pipeline), pipeline.awaited))) or state


def _as_asked(pipeline: PipelineReport) -> bool:
    return pipeline.status in _AS_ASKED[pipeline.target]


def _failing(pipeline: PipelineReport) -> str | None:
    since = pipeline.failing_since
    if pipeline.status == "FAILED":
        return pipeline.last_error
    return None if since is None else f"{pipeline.last_error} (since {instant(since, 'seconds')})"


def instant(epoch_s: float, precision: str = "auto") -> str:
    """A time in ISO 8601, in UTC."""
    return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec=precision)


def pipeline_page(pipeline: PipelineReport) -> dict[str, Any]:
    """One pipeline in /pipelines."""
    settings, stats = pipeline.settings, pipeline.stats
    flow = pipeline.flow_report
    partitions = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "position": position,
            "committed": committed,
            "end": end,
            **_transaction(settings, partition.topic, partition.partition),
            "lag": lag_of(position, committed, end),
            "paused": partition in flow.paused,
        }
        for partition, (position, committed, end) in sorted(flow.positions.items())
    ]
    error_at = pipeline.last_error_at
    return {
        "name": settings.name,
        "state": pipeline.status,
        "degraded": pipeline.degraded,
        "last_error": pipeline.last_error,
        "last_error_at": None if error_at is None else instant(error_at),
        "topics": list(settings.topics),
        "output_topic": settings.output_topic,
        "transforms": list(settings.transforms),
        "group_id": settings.group_id,
        "processing_guarantee": settings.guarantee.name,
        "in_flight_bytes": flow.in_flight_bytes,
        "read_ahead_bytes": flow.read_ahead_bytes,
        **{name: getattr(stats, name) for name in _COUNTS},
        # Names from seed 004, "Best practices for debugging".
        "msgChunkPublished": stats.chunks_published > 0,
        "chunkedMessageRate": {
            "published": stats.published_rate.per_second(),
            "consumed": stats.consumed_rate.per_second(),
        },
        "discarded_messages": dict(sorted(stats.discarded.items())),
        "failed_records": dict(sorted(stats.failed.items())),
        "pending_chunked_messages": flow.pending_messages,
        "pending_chunked_bytes": flow.pending_bytes,
        "producer": stats.batches.page(),
        "partitions": partitions,
    }


def _transaction(settings: PipelineSettings, topic: str, number: int) -> dict[str, str]:
    if not settings.guarantee.exactly_once:
        return {}
    return {"transactional_id": transactional_id(settings.name, topic, number)}


def add_pages(app: faust.App, pipelines: Sequence[PipelineReport], limit_bytes: int, steering: Steering) -> None:
    """Adds the endpoints to the web server of the app."""
    metrics = Metrics(pipelines, limit_bytes)

    async def live(view: View, request: Request) -> Response:  # noqa: ARG001  # Faust's signature
        return view.json({"live": True})

    async def ready(view: View, request: Request) -> Response:  # noqa: ARG001
        state = health(pipelines, steering.trouble)
        return view.json(state, status=200 if state["ready"] else 503)

    async def all_pipelines(view: View, request: Request) -> Response:  # noqa: ARG001
        return view.json([pipeline_page(pipeline) for pipeline in pipelines])

    async def prometheus(view: View, request: Request) -> Response:  # noqa: ARG001
        return view.bytes(metrics.text(), content_type=_PROMETHEUS)

    # Faust's own index page cannot be turned off, and always answers OK: `Rest` has its path before.
    app.page("/health")(ready)
    app.page("/health/live")(live)
    app.page("/health/ready")(ready)
    app.page("/pipelines")(all_pipelines)
    app.page("/metrics")(prometheus)
