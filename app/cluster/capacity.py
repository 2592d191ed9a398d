"""Warnings of topics that are too small for records that a pipeline may write, or that delete dead letters too early.

And of topics that accept no records now, as too few of their replicas are in sync.

Nothing is refused: `chunk.max.message.bytes`, thresholds and `retention.ms` say which records may come, not which do.
"""

from __future__ import annotations

from collections.abc import Iterator

from app.cluster.preflight import Plan
from app.config.settings import PipelineSettings
from transforms.batch_size import HEADERLESS_OVERHEAD_BYTES
from transforms.retention import FOREVER


def warnings(pipeline: PipelineSettings, plan: Plan) -> list[str]:
    """The warnings about a pipeline, a sentence each."""
    return [*_in_sync(plan), *_assembled(pipeline, plan), *_inflated(pipeline, plan), *_dead_letters(plan)]


def _in_sync(plan: Plan) -> Iterator[str]:
    """Warns if a topic accepts no records now. A pipeline waits until it does, so this is no error."""
    for topic in (plan.sink, plan.dead_letters):
        if topic is not None and topic.shortage is not None:
            yield topic.shortage


def _assembled(pipeline: PipelineSettings, plan: Plan) -> Iterator[str]:
    """Warns if the sink does not take the largest message that may be assembled."""
    chunks = pipeline.chunks
    if not chunks.expects_chunks or chunks.splits or pipeline.offloads:
        return
    largest = chunks.limits.message_bytes + HEADERLESS_OVERHEAD_BYTES
    sink = plan.sink
    if sink.max_message_bytes >= largest:
        return
    yield (
        f"chunk.max.message.bytes is {chunks.limits.message_bytes:,}, and max.message.bytes of the sink {sink.name} is "
        f"{sink.max_message_bytes:,}: an assembled message over that {_then(plan)}; raise the topic's limit to "
        f"{largest:,} and room for key and headers, lower chunk.max.message.bytes, or add offload or chunk to "
        "transforms"
    )


def _inflated(pipeline: PipelineSettings, plan: Plan) -> Iterator[str]:
    """Warns if the sink takes no inflated value at all, as when nobody has raised its limit."""
    chunks = pipeline.chunks
    if "inflate" not in pipeline.transforms or chunks.expects_chunks or chunks.splits or pipeline.offloads:
        return
    sink, threshold = plan.sink, pipeline.threshold_bytes
    if sink.max_message_bytes > threshold + HEADERLESS_OVERHEAD_BYTES:
        return
    yield (
        f"max.message.bytes of the sink {sink.name} is {sink.max_message_bytes:,}: no inflated value that is over "
        f"large.message.threshold.bytes ({threshold:,}) fits, and a value that does not fit {_then(plan)}; raise the "
        "topic's limit above the largest value, or set the threshold with which the values were offloaded"
    )


def _then(plan: Plan) -> str:
    return "stops the pipeline" if plan.dead_letters is None else f"goes to topic {plan.dead_letters.name}"


def _dead_letters(plan: Plan) -> Iterator[str]:
    """Warns if letters may be deleted before anybody sees them: they have the timestamps of their records."""
    dead = plan.dead_letters
    if dead is None or dead.retention_ms == FOREVER:
        return
    for source in plan.sources:
        if source.retention_ms == FOREVER or source.retention_ms > dead.retention_ms:
            yield (
                f"retention.ms of the dead-letter topic {dead.name} is {dead.retention_ms:,}, and of topic "
                f"{source.name} {source.retention_ms:,}: a letter has the timestamp of its record, so the letter of an "
                "old record may be deleted at once; let the dead-letter topic keep records longer than the source does"
            )
