"""Pipelines as connectors of Kafka Connect: the JSON that its REST API returns for them.

A pipeline is a `sink` connector to Connect's clients: it reads topics as a member of a consumer group, and its offsets
are those of that group. What this worker does for it is its task 0. A stopped connector has no tasks, as in Connect.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from app.config.effective import pipeline_values, shown_value
from app.config.secret import without_secrets
from app.pipeline.report import PipelineReport

CLASS = "wideload.Pipeline"
"""The `connector.class` of each pipeline."""

TYPE = "sink"
TASK = 0

# Connect has no state for a task that has not begun, but for one that no worker has yet.
_STATES: Mapping[str, str] = {"STARTING": "UNASSIGNED"}


def worker_id(port: int) -> str:
    """The name of this worker among others: Connect has host and port here."""
    return f"{socket.gethostname()}:{port}"


def config_text(value: object) -> str:
    """A value as Connect's configurations have it: all are strings. Secrets are `***`."""
    value = shown_value(value)
    if isinstance(value, bool):
        return str(value).lower()
    # A URL may contain a password that is not declared as one.
    return without_secrets(",".join(map(str, value)) if isinstance(value, list | tuple) else str(value))


def config(pipeline: PipelineReport) -> dict[str, str]:
    """The keys of a pipeline with all defaults, and the two that Connect's clients look for."""
    values = pipeline_values(pipeline.settings)
    return {
        "name": pipeline.settings.name,
        "connector.class": CLASS,
        **{name: config_text(value) for name, value in values.items() if value is not None and value != ()},
    }


def info(pipeline: PipelineReport) -> dict[str, Any]:
    """`GET /connectors/{name}`."""
    name = pipeline.settings.name
    return {
        "name": name,
        "config": config(pipeline),
        "tasks": [] if _stopped(pipeline) else [{"connector": name, "task": TASK}],
        "type": TYPE,
    }


def status(pipeline: PipelineReport, worker: str, *, restarting: bool = False) -> dict[str, Any]:
    """`GET /connectors/{name}/status`. `restarting`: a restart has just been asked for."""
    state = _state(pipeline, worker, restarting=restarting)
    return {
        "name": pipeline.settings.name,
        "connector": state,
        "tasks": [] if _stopped(pipeline) else [{"id": TASK, **state}],
        "type": TYPE,
    }


def task_status(pipeline: PipelineReport, worker: str) -> dict[str, Any] | None:
    """`GET /connectors/{name}/tasks/0/status`; None if the pipeline has no task now."""
    return None if _stopped(pipeline) else {"id": TASK, **_state(pipeline, worker)}


def tasks(pipeline: PipelineReport) -> list[dict[str, Any]]:
    """`GET /connectors/{name}/tasks`."""
    if _stopped(pipeline):
        return []
    return [{"id": {"connector": pipeline.settings.name, "task": TASK}, "config": config(pipeline)}]


def topics(pipeline: PipelineReport) -> dict[str, Any]:
    """`GET /connectors/{name}/topics`: those it reads and those it writes."""
    settings = pipeline.settings
    used = [*settings.topics, settings.output_topic]
    if settings.dead_letter_topic is not None:
        used.append(settings.dead_letter_topic)
    return {settings.name: {"topics": used}}


def offsets(pipeline: PipelineReport) -> dict[str, Any]:
    """`GET /connectors/{name}/offsets`: the committed offsets of the partitions that this worker has.

    A stopped pipeline has none: other workers commit for its former partitions, or an operator alters their offsets.
    """
    positions = {} if _stopped(pipeline) else pipeline.flow_report.positions
    return {
        "offsets": [
            {
                "partition": {"kafka_topic": partition.topic, "kafka_partition": partition.partition},
                "offset": {"kafka_offset": committed},
            }
            for partition, (_, committed, _) in sorted(positions.items())
            if committed is not None
        ]
    }


def _stopped(pipeline: PipelineReport) -> bool:
    return pipeline.status == "STOPPED"


def _state(pipeline: PipelineReport, worker: str, *, restarting: bool = False) -> dict[str, Any]:
    if restarting:
        return {"state": "RESTARTING", "worker_id": worker}
    state = {"state": _STATES.get(pipeline.status, pipeline.status), "worker_id": worker}
    # Connect's monitors look nowhere else, so the reason why the records of a running pipeline wait is here, too.
    failing = pipeline.status == "FAILED" or (pipeline.status == "RESTARTING" and pipeline.failing_since is not None)
    reason = pipeline.last_error if failing else pipeline.degraded or pipeline.awaited
    return state if reason is None else {**state, "trace": reason}
