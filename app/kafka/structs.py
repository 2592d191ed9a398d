"""Places in Kafka's logs and what stands for them, as aiokafka has them: tuples with names."""

from __future__ import annotations

from aiokafka.partitioner import murmur2
from aiokafka.structs import OffsetAndMetadata, RecordMetadata, TopicPartition

__all__ = ["OffsetAndMetadata", "RecordMetadata", "TopicPartition", "partition_of"]


def partition_of(key: bytes, partitions: int) -> int:
    """The partition, of so many, that Java's clients choose for records with this key."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions
