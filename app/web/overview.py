"""What the page at `/` shows, as a document: the worker, its pipelines, and their last ten minutes."""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Sequence
from typing import Any

from app.config.effective import shown_value
from app.config.version import VERSION
from app.pipeline.report import PipelineReport, lag_of, state_of
from app.web.history import History
from app.web.pages import health, instant, reason_of
from stores.registry import STORE_CLASS

__all__ = ["MOST_PARTITIONS", "Overview"]

MOST_PARTITIONS = 200
"""The partitions that are told of a pipeline, those with the greatest lag; /pipelines has all."""


class Overview:
    """The document for one worker.

    Args:
        pipelines: all of them.
        limit_bytes: `in.flight.bytes`.
        history: of the same pipelines.
    """

    def __init__(self, pipelines: Sequence[PipelineReport], limit_bytes: int, history: History) -> None:
        self._pipelines = pipelines
        self._limit_bytes = limit_bytes
        self._history = history
        self._run = secrets.token_hex(8)  # tells a reader that the numbers of samples begin again

    def document(self, after: int = 0) -> dict[str, Any]:
        """The document; of the samples those whose number is greater than `after`."""
        times, rates = self._history.samples(after)
        pipelines = [
            {**_pipeline(pipeline), "store_calls": self._history.store_calls(number), "rates": rates[number]}
            for number, pipeline in enumerate(self._pipelines)
        ]
        return {
            "run": self._run,
            "version": VERSION,
            "status": health(self._pipelines)["status"],
            "running_s": round(self._history.running_s, 1),
            "in_flight_bytes": sum(each["in_flight_bytes"] for each in pipelines),
            "limit_bytes": self._limit_bytes,
            "samples": times,
            "pipelines": pipelines,
        }


def _pipeline(pipeline: PipelineReport) -> dict[str, Any]:
    settings, stats, flow = pipeline.settings, pipeline.stats, pipeline.flow
    partitions = _partitions(pipeline)
    lags = [each["lag"] for each in partitions if each["lag"] is not None]
    shown = heapq.nlargest(MOST_PARTITIONS, partitions, key=lambda each: each["lag"] or 0)
    error_at = pipeline.last_error_at
    return {
        "name": settings.name,
        "state": state_of(pipeline),
        "reason": reason_of(pipeline),
        "last_error": pipeline.last_error,
        "last_error_at": None if error_at is None else instant(error_at, "seconds"),
        "topics": list(settings.topics),
        "output_topic": settings.output_topic,
        "dead_letter_topic": settings.dead_letter_topic,
        "transforms": list(settings.transforms),
        "store": str(shown_value(settings.store[STORE_CLASS])) if settings.store else None,
        "group_id": settings.group_id,
        "processing_guarantee": settings.guarantee.name,
        "records_in": stats.records_in,
        "records_out": stats.records_out,
        "dead_letters": stats.dead_letters,
        "restarts": stats.restarts,
        "in_flight_bytes": flow.in_flight_bytes if flow else 0,
        "read_ahead_bytes": flow.read_ahead_bytes if flow else 0,
        "pending_chunked_messages": flow.pending_messages if flow else 0,
        "pending_chunked_bytes": flow.pending_bytes if flow else 0,
        "lag": sum(lags) if lags else None,
        "partitions_assigned": len(partitions),
        "partitions_paused": sum(each["paused"] for each in partitions),
        "partitions": sorted(shown, key=lambda each: (each["topic"], each["partition"])),
    }


def _partitions(pipeline: PipelineReport) -> list[dict[str, Any]]:
    if pipeline.flow is None:
        return []
    paused = pipeline.flow.paused
    return [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "committed": committed,
            "end": end,
            "lag": lag_of(position, committed, end),
            "paused": partition in paused,
        }
        for partition, (position, committed, end) in pipeline.flow.positions().items()
    ]
