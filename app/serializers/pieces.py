"""The error for a value that is a chunk, where one record is seen at a time."""

from __future__ import annotations

from collections.abc import Sequence

from transforms.chunk import piece_text
from transforms.errors import SerializationError
from transforms.record import Header

__all__ = ["refused_piece"]


def refused_piece(who: str, topic: str, headers: Sequence[Header]) -> SerializationError:
    """The error that `who` raises in place of a piece of a value; it says what reads the whole value."""
    return SerializationError(
        topic,
        "value",
        f"{who}: the value is a piece of a message, {piece_text(headers)}, and it sees one record at a time; read the "
        "topic with the DeserializingConsumer of wideload.serializers.aiokafka, .confluent or .kafka_python, with the "
        "LargeMessageSchema of wideload.serializers.faust, or behind a pipeline with the transform inflate or assemble",
        deserializing=True,
    )
