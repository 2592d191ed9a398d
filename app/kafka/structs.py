"""Named tuples for positions in Kafka's logs and members of groups, with functions of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from aiokafka.partitioner import murmur2
from aiokafka.structs import OffsetAndMetadata, RecordMetadata, TopicPartition

__all__ = ["Member", "OffsetAndMetadata", "RecordMetadata", "TopicPartition", "by_topic", "partition_of"]


class Member(NamedTuple):
    """A member of a group, as it was when the group gave it its partitions.

    Attributes:
        generation: of the group; -1 if it was not a member any more.
        id: of the member.
        instance: its `group.instance.id`; None for none.
    """

    generation: int
    id: str
    instance: str | None


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that Java's clients choose for records with this key."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions


def by_topic(places: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """The numbers of the partitions of each topic."""
    found: dict[str, list[int]] = defaultdict(list)
    for topic, number in places:
        found[topic].append(number)
    return list(found.items())
