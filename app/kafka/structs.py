"""Places in Kafka's logs and what stands for them, as aiokafka has them: tuples with names."""

from __future__ import annotations

from aiokafka.structs import OffsetAndMetadata, RecordMetadata, TopicPartition

__all__ = ["OffsetAndMetadata", "RecordMetadata", "TopicPartition"]
