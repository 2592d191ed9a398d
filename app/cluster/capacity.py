"""Whether topics take, and keep, what a pipeline may have to write: what it assembles or inflates, and dead letters.

Nothing is refused: `chunk.max.message.bytes`, thresholds and `retention.ms` say what could come, not what does.
"""

from __future__ import annotations

from collections.abc import Iterator

from app.cluster.preflight import Plan
from app.config.settings import PipelineSettings
from transforms.batch_size import HEADERLESS_OVERHEAD_BYTES
from transforms.retention import FOREVER

__all__ = ["warnings"]


def warnings(pipeline: PipelineSettings, plan: Plan) -> list[str]:
    """What is to be warned of, a sentence each."""
    return [*_of_sink(pipeline, plan), *_of_inflated(pipeline, plan), *_of_dead_letters(plan)]


def _of_sink(pipeline: PipelineSettings, plan: Plan) -> Iterator[str]:
    """Of messages that are assembled, and then too large for the sink as they are."""
    chunks = pipeline.chunks
    if not chunks.assembles or chunks.splits or pipeline.offloads:
        return
    largest = chunks.limits.message_bytes + HEADERLESS_OVERHEAD_BYTES
    sink = plan.sink
    if sink.max_message_bytes >= largest:
        return
    yield (
        f"chunk.max.message.bytes is {chunks.limits.message_bytes:,}, and max.message.bytes of the sink {sink.name} is "
        f"{sink.max_message_bytes:,}: a message that is assembled and over that {_then(plan)}; let the topic have "
        f"{largest:,} and room for key and headers, lower chunk.max.message.bytes, or add offload or chunk to "
        "transforms"
    )


def _of_inflated(pipeline: PipelineSettings, plan: Plan) -> Iterator[str]:
    """Of payloads none of which the sink would take, as where nobody has raised its limit."""
    if "inflate" not in pipeline.transforms or pipeline.chunks.assembles or pipeline.chunks.splits or pipeline.offloads:
        return
    sink, threshold = plan.sink, pipeline.threshold_bytes
    if sink.max_message_bytes > threshold + HEADERLESS_OVERHEAD_BYTES:
        return
    yield (
        f"max.message.bytes of the sink {sink.name} is {sink.max_message_bytes:,}: no inflated value that is over "
        f"large.message.threshold.bytes ({threshold:,}) fits, and one that does not {_then(plan)}; let the topic have "
        "room for the largest value, or give the threshold by which values were offloaded"
    )


def _then(plan: Plan) -> str:
    return "stops the pipeline" if plan.dead_letters is None else f"goes to topic {plan.dead_letters.name}"


def _of_dead_letters(plan: Plan) -> Iterator[str]:
    """Of letters that would go before anybody looks: they have the timestamps of their records."""
    dead = plan.dead_letters
    if dead is None or dead.retention_ms == FOREVER:
        return
    for source in plan.sources:
        if source.retention_ms == FOREVER or source.retention_ms > dead.retention_ms:
            yield (
                f"retention.ms of the dead-letter topic {dead.name} is {dead.retention_ms:,}, and of topic "
                f"{source.name} {source.retention_ms:,}: a letter has the timestamp of its record, so one of an old "
                "record may be deleted at once; let the dead-letter topic keep records for longer than the source does"
            )
