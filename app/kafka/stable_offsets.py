"""The request for committed offsets that no open transaction can change any more (KIP-447)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import GroupIdNotFound
from aiokafka.structs import OffsetAndMetadata

from app.kafka.queries import Query, check_code, version
from app.kafka.structs import by_topic

_UNSTABLE = 88  # UNSTABLE_OFFSET_COMMIT, which aiokafka does not know


class FetchStableOffsets(Query):
    """The committed offsets of partitions, for the coordinator of the group; from Kafka 2.5 on.

    Args:
        group: its id.
        partitions: whose offsets.
    """

    VERSION = version(
        "9.7 group_id:text topics:[topic:text partitions:[int32]] require_stable:boolean",
        "throttle_time_ms:int32 topics:[topic:text partitions:[partition:int32 offset:int64 leader_epoch:int32 "
        "metadata:text error_code:int16]] error_code:int16",
    )

    def __init__(self, group: str, partitions: Collection[TopicPartition]) -> None:
        topics: list[Any] = [(topic, numbers, {}) for topic, numbers in by_topic(partitions)]
        super().__init__(group_id=group, topics=topics, require_stable=True)

    @staticmethod
    def commits(response: Any) -> Mapping[TopicPartition, OffsetAndMetadata] | None:
        """The partitions of a response that have a committed offset; None if an open transaction may change one.

        Raises:
            KafkaError: the coordinator refuses.
        """
        if response.error_code != GroupIdNotFound.errno:  # of a group without commits, by brokers other than Kafka
            check_code(response.error_code)
        found = {}
        for topic, partitions, _ in response.topics:
            for partition, offset, _, metadata, code, _ in partitions:
                if code == _UNSTABLE:
                    return None
                check_code(code)
                if offset >= 0:
                    found[TopicPartition(topic, partition)] = OffsetAndMetadata(offset, metadata or "")
        return found

    @staticmethod
    def epochs(response: Any) -> Iterator[tuple[TopicPartition, int, int, str]]:
        """Partition, offset, leader epoch and metadata of each committed offset of a response."""
        for topic, partitions, _ in response.topics:
            for partition, offset, epoch, metadata, *_ in partitions:
                if offset >= 0:
                    yield TopicPartition(topic, partition), offset, epoch, metadata or ""
