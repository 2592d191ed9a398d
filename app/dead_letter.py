"""Dead letters: a record that can never succeed, whole, with what went wrong in its headers.

Source of the headers: Kafka Connect, KIP-298 "Error Handling in Connect", `errors.deadletterqueue.context.headers`.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from transforms.record import Header, Record

if TYPE_CHECKING:
    from app.lane import SourceRecord

__all__ = ["dead_letter"]

_PREFIX = "__connect.errors."
_MAX_MESSAGE_BYTES = 2_048
_MAX_TRACE_BYTES = 8_192


def dead_letter(source: SourceRecord, error: BaseException, *, pipeline: str, stage: str, context: bool) -> Record:
    """The record for the dead-letter topic: key, value, headers and timestamp as they were read.

    Args:
        source: the record as it was read.
        error: why it can never succeed.
        pipeline: the pipeline's name.
        stage: the transforms of the pipeline, as Connect names the stage.
        context: whether to add the headers `__connect.errors.*`.
    """
    headers: list[Header] = list(source.headers)
    if context:
        trace = "".join(traceback.format_exception(error))
        headers += [
            (_PREFIX + "topic", source.topic.encode()),
            (_PREFIX + "partition", b"%d" % source.partition),
            (_PREFIX + "offset", b"%d" % source.offset),
            (_PREFIX + "connector.name", pipeline.encode()),
            (_PREFIX + "task.id", b"0"),
            (_PREFIX + "stage", b"TRANSFORMATION"),
            (_PREFIX + "class.name", stage.encode()),
            (_PREFIX + "exception.class.name", f"{type(error).__module__}.{type(error).__qualname__}".encode()),
            (_PREFIX + "exception.message", _bounded(str(error), _MAX_MESSAGE_BYTES)),
            (_PREFIX + "exception.stacktrace", _bounded(trace, _MAX_TRACE_BYTES)),
        ]
    return Record(source.key, source.value, tuple(headers), source.timestamp)


def _bounded(text: str, limit: int) -> bytes:
    """UTF-8 of no more than `limit` bytes, whatever stands in `text`; its end, where a trace says why."""
    encoded = text.encode(errors="backslashreplace")
    if len(encoded) <= limit:
        return encoded
    mark = "…".encode()
    return mark + encoded[len(mark) - limit :].decode(errors="ignore").encode()
