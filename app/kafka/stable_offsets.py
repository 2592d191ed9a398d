"""The request for committed offsets that no open transaction can change any more (KIP-447)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import GroupIdNotFound, for_code
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Int64
from aiokafka.structs import OffsetAndMetadata

from app.kafka.queries import TEXT, Query, fields, rows, version

__all__ = ["FetchStableOffsets"]

_UNSTABLE = 88  # UNSTABLE_OFFSET_COMMIT, which aiokafka does not know
_COMMITS = rows(partition=Int32, offset=Int64, leader_epoch=Int32, metadata=TEXT, error_code=Int16)


class FetchStableOffsets(Query):
    """The committed offsets of partitions, for the coordinator of the group; from Kafka 2.5 on.

    Args:
        group: its id.
        partitions: whose offsets.
    """

    VERSIONS = (
        version(
            9,
            7,
            fields(group_id=TEXT, topics=rows(topic=TEXT, partitions=Array(Int32)), require_stable=Boolean),
            fields(throttle_time_ms=Int32, topics=rows(topic=TEXT, partitions=_COMMITS), error_code=Int16),
        ),
    )

    def __init__(self, group: str, partitions: Collection[TopicPartition]) -> None:
        by_topic: dict[str, list[int]] = defaultdict(list)
        for partition in partitions:
            by_topic[partition.topic].append(partition.partition)
        no_tags: Mapping[int, bytes] = {}
        topics = [(topic, numbers, no_tags) for topic, numbers in by_topic.items()]
        super().__init__(group_id=group, topics=topics, require_stable=True)

    @staticmethod
    def commits(response: Any) -> Mapping[TopicPartition, OffsetAndMetadata] | None:
        """The partitions of a response that have a committed offset; None if an open transaction may change one.

        Raises:
            KafkaError: the coordinator refuses.
        """
        if response.error_code != GroupIdNotFound.errno:  # of a group without commits, by brokers other than Kafka
            _raise(response.error_code)
        found = {}
        for topic, partitions, _ in response.topics:
            for partition, offset, _, metadata, code, _ in partitions:
                if code == _UNSTABLE:
                    return None
                _raise(code)
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


def _raise(code: int) -> None:
    error = for_code(code)
    if error.errno != 0:
        raise error
