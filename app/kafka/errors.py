"""The errors of Kafka's clients that other rooms distinguish; `app.kafka.clients` has the messages for users."""

from __future__ import annotations

from aiokafka.errors import (
    IllegalOperation,
    InvalidProducerEpoch,
    KafkaError,
    KafkaTimeoutError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    ProducerFenced,
)

from transforms.errors import WideloadError

__all__ = [
    "FENCED",
    "GroupMovedOnError",
    "IllegalOperation",
    "KafkaError",
    "KafkaTimeoutError",
    "NoOffsetForPartitionError",
    "OffsetOutOfRangeError",
]

FENCED = (ProducerFenced, InvalidProducerEpoch)
"""Another producer has the `transactional.id` now."""


class GroupMovedOnError(WideloadError):
    """The group does not accept offsets of this member any more, as its partitions are being reassigned."""
