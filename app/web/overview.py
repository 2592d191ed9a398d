"""What the web UI shows, as JSON: the worker, a row for each pipeline, and the details of those that are open."""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Collection, Sequence
from typing import Any

from app.config.effective import shown_value
from app.config.version import VERSION
from app.pipeline.report import PipelineReport, lag_of, state_of
from app.web.history import History
from app.web.pages import health, instant, reason_of
from stores.registry import STORE_CLASS

MOST_PARTITIONS = 200
"""The most partitions shown of a pipeline, those with the greatest lag; /pipelines has all."""


class Overview:
    """The JSON document of `/overview` for one worker.

    Args:
        pipelines: all of them.
        limit_bytes: `in.flight.bytes`.
        history: of the same pipelines.
    """

    def __init__(self, pipelines: Sequence[PipelineReport], limit_bytes: int, history: History) -> None:
        self._pipelines = pipelines
        self._limit_bytes = limit_bytes
        self._history = history
        self._run = secrets.token_hex(8)  # shows a reader that the numbers of samples have restarted

    def document(self, after: int = 0, opened: Collection[int] = ()) -> dict[str, Any]:
        """The content of `/overview`.

        Its size depends on the number of pipelines, and on what is opened: a worker may have hundreds of pipelines with
        hundreds of partitions each.

        Args:
            after: of the samples those whose number is greater.
            opened: the positions of the pipelines that have a `card`; those that there are not are ignored.
        """
        return {
            "run": self._run,
            "version": VERSION,
            "status": health(self._pipelines)["status"],
            "running_s": round(self._history.running_s, 1),
            "in_flight_bytes": sum(each.flow_report.in_flight_bytes for each in self._pipelines),
            "limit_bytes": self._limit_bytes,
            "samples": self._history.times(after),
            "pipelines": [
                self._pipeline(number, pipeline, after, opened=number in opened)
                for number, pipeline in enumerate(self._pipelines)
            ],
        }

    def _pipeline(self, number: int, pipeline: PipelineReport, after: int, *, opened: bool) -> dict[str, Any]:
        partitions = _partitions(pipeline)
        lags = [each["lag"] for each in partitions if each["lag"] is not None]
        row = {
            "name": pipeline.settings.name,
            "state": state_of(pipeline),
            "reason": reason_of(pipeline),
            "recent": self._history.recent(number),
            "lag": sum(lags) if lags else None,
            "dead_letters": pipeline.stats.dead_letters,
        }
        if opened:
            row["card"] = {
                **_card(pipeline, partitions),
                "store_calls": self._history.store_calls(number),
                "rates": self._history.rates(number, after),
            }
        return row


def _card(pipeline: PipelineReport, partitions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    settings, stats, flow = pipeline.settings, pipeline.stats, pipeline.flow_report
    shown = heapq.nlargest(MOST_PARTITIONS, partitions, key=lambda each: each["lag"] or 0)
    error_at = pipeline.last_error_at
    return {
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
        "restarts": stats.restarts,
        "in_flight_bytes": flow.in_flight_bytes,
        "read_ahead_bytes": flow.read_ahead_bytes,
        "pending_chunked_messages": flow.pending_messages,
        "pending_chunked_bytes": flow.pending_bytes,
        "partitions_assigned": len(partitions),
        "partitions_paused": sum(each["paused"] for each in partitions),
        "partitions": sorted(shown, key=lambda each: (each["topic"], each["partition"])),
    }


def _partitions(pipeline: PipelineReport) -> list[dict[str, Any]]:
    flow = pipeline.flow_report
    return [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "committed": committed,
            "end": end,
            "lag": lag_of(position, committed, end),
            "paused": partition in flow.paused,
        }
        for partition, (position, committed, end) in flow.positions.items()
    ]
