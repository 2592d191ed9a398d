"""Whether topics take what a pipeline may have to write: messages that it assembles, and dead letters.

Neither is refused: `chunk.max.message.bytes` and `max.message.bytes` say what could come, not what does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from transforms.size import HEADERLESS_OVERHEAD_BYTES

if TYPE_CHECKING:
    from app.preflight import Plan
    from app.settings import PipelineSettings

__all__ = ["warnings"]


def warnings(pipeline: PipelineSettings, plan: Plan) -> list[str]:
    """What is to be warned of, a sentence each."""
    return [*_of_sink(pipeline, plan), *_of_dead_letters(plan)]


def _of_sink(pipeline: PipelineSettings, plan: Plan) -> Iterator[str]:
    """Of messages that are assembled, and then too large for the sink as they are."""
    chunks = pipeline.chunks
    if not chunks.assembles or chunks.splits or pipeline.offloads:
        return
    largest = chunks.limits.message_bytes + HEADERLESS_OVERHEAD_BYTES
    sink, dead = plan.sink, plan.dead_letters
    if sink.max_message_bytes >= largest:
        return
    if dead is not None and dead.max_message_bytes >= largest:
        then = f"goes to topic {dead.name}"
    elif dead is not None:
        then = f"stops the pipeline if topic {dead.name}, whose limit is {dead.max_message_bytes:,}, refuses it too"
    else:
        then = "stops the pipeline"
    yield (
        f"chunk.max.message.bytes is {chunks.limits.message_bytes:,}, and max.message.bytes of the sink {sink.name} is "
        f"{sink.max_message_bytes:,}: a message that is assembled and over that {then}; let the topic have "
        f"{largest:,} and room for key and headers, lower chunk.max.message.bytes, or add offload or chunk to "
        "transforms"
    )


def _of_dead_letters(plan: Plan) -> Iterator[str]:
    """Of records that could be read and, if they fail, not be kept."""
    dead = plan.dead_letters
    if dead is None:
        return
    for source in plan.sources:
        if source.max_message_bytes > dead.max_message_bytes:
            yield (
                f"max.message.bytes of the dead-letter topic {dead.name} is {dead.max_message_bytes:,}, and of topic "
                f"{source.name} {source.max_message_bytes:,}: a record that fails and is over the former stops the "
                "pipeline; raise it to the latter, and more where producers compress"
            )
