"""The request for committed offsets that no open transaction can change any more (KIP-447)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import for_code
from aiokafka.protocol.types import Boolean, Int16, Int32, Schema
from aiokafka.structs import OffsetAndMetadata

from app.kafka.queries import ASKED_OFFSETS, COMMITTED_OFFSETS, TAGS, TEXT, Query, version

__all__ = ["FetchStableOffsets"]

_UNSTABLE = 88  # UNSTABLE_OFFSET_COMMIT, which aiokafka does not know


class FetchStableOffsets(Query):
    """The committed offsets of partitions, for the coordinator of the group; from Kafka 2.5 on.

    Args:
        group: its id.
        partitions: of which.
    """

    VERSIONS = (
        version(
            9,
            7,
            Schema(("group_id", TEXT), ASKED_OFFSETS, ("require_stable", Boolean), TAGS),
            Schema(("throttle_time_ms", Int32), COMMITTED_OFFSETS, ("error_code", Int16), TAGS),
        ),
    )

    def __init__(self, group: str, partitions: Collection[TopicPartition]) -> None:
        by_topic: dict[str, list[int]] = defaultdict(list)
        for partition in partitions:
            by_topic[partition.topic].append(partition.partition)
        topics: list[tuple[str, list[int], dict[int, bytes]]] = [
            (topic, numbers, {}) for topic, numbers in by_topic.items()
        ]
        super().__init__(group_id=group, topics=topics, require_stable=True)

    @staticmethod
    def commits(answer: Any) -> Mapping[TopicPartition, OffsetAndMetadata] | None:
        """Those partitions of an answer that have a committed offset; None where a transaction has to end first.

        Raises:
            KafkaError: the coordinator refuses.
        """
        _raise(answer.error_code)
        found = {}
        for topic, partitions, _ in answer.topics:
            for partition, offset, _, metadata, code, _ in partitions:
                if code == _UNSTABLE:
                    return None
                _raise(code)
                if offset >= 0:
                    found[TopicPartition(topic, partition)] = OffsetAndMetadata(offset, metadata or "")
        return found


def _raise(code: int) -> None:
    error = for_code(code)
    if error.errno != 0:
        raise error
