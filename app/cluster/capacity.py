"""Warnings about topics with a limit that is too low for the pipeline's records, or a retention that is too short.

Also about topics that accept no records now, because too few of their replicas are in sync.

Nothing is refused: `chunk.max.message.bytes`, thresholds and `retention.ms` define possible records, not actual ones.
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
    """Warns if a topic accepts no records now. A pipeline waits until it does, so this is not an error."""
    for topic in (plan.sink, plan.dead_letters):
        if topic is not None and topic.shortage is not None:
            yield topic.shortage


def _assembled(pipeline: PipelineSettings, plan: Plan) -> Iterator[str]:
    """Warns if the output topic does not accept the largest message that may be assembled."""
    chunks = pipeline.chunks
    if not chunks.expects_chunks or chunks.splits or pipeline.offloads:
        return
    largest = chunks.limits.message_bytes + HEADERLESS_OVERHEAD_BYTES
    sink = plan.sink
    if sink.max_message_bytes >= largest:
        return
    yield (
        f"chunk.max.message.bytes is {chunks.limits.message_bytes:,}, and max.message.bytes of output topic "
        f"{sink.name} is {sink.max_message_bytes:,}: a larger assembled message {_then(plan)}; raise the topic's limit "
        f"to {largest:,} plus key and headers, lower chunk.max.message.bytes, or add offload or chunk to "
        "transforms"
    )


def _inflated(pipeline: PipelineSettings, plan: Plan) -> Iterator[str]:
    """Warns if the output topic accepts no inflated value at all, for example because its limit was not raised."""
    chunks = pipeline.chunks
    if "inflate" not in pipeline.transforms or chunks.expects_chunks or chunks.splits or pipeline.offloads:
        return
    sink, threshold = plan.sink, pipeline.threshold_bytes
    if sink.max_message_bytes > threshold + HEADERLESS_OVERHEAD_BYTES:
        return
    yield (
        f"max.message.bytes of output topic {sink.name} is {sink.max_message_bytes:,}: no inflated value over "
        f"large.message.threshold.bytes ({threshold:,}) fits, and a value that does not fit {_then(plan)}; raise the "
        "topic's limit above the largest value, or set the threshold with which the values were offloaded"
    )


def _then(plan: Plan) -> str:
    return (
        "stops the pipeline"
        if plan.dead_letters is None
        else f"is written to dead-letter topic {plan.dead_letters.name}"
    )


def _dead_letters(plan: Plan) -> Iterator[str]:
    """Warns if dead-letter records may be deleted too early: they have the timestamps of the original records."""
    dead = plan.dead_letters
    if dead is None or dead.retention_ms == FOREVER:
        return
    for source in plan.sources:
        if source.retention_ms == FOREVER or source.retention_ms > dead.retention_ms:
            yield (
                f"retention.ms of the dead-letter topic {dead.name} is {dead.retention_ms:,}, and of topic "
                f"{source.name} {source.retention_ms:,}: a dead-letter record has the timestamp of the original, so "
                "that of an old record may be deleted immediately; raise retention.ms of the dead-letter topic above "
                "that of the source topic"
            )
