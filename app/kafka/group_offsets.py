"""What a group has committed, and where the logs that it reads begin and end, asked over the connection of an admin."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest

from app.kafka.admin import AdminClient
from app.kafka.offset_fetches import OffsetFetches

__all__ = ["by_topic", "committed_offsets", "log_bounds", "places_of"]

_AGAIN_S = 0.1
_CONSUMER, _READ_COMMITTED = -1, 1
_EARLIEST, _LATEST = -2, -1


def by_topic(places: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """The numbers of the partitions of each topic."""
    found: dict[str, list[int]] = defaultdict(list)
    for place in places:
        found[place.topic].append(place.partition)
    return list(found.items())


async def places_of(connection: AdminClient, topics: Sequence[str]) -> Sequence[TopicPartition]:
    """The partitions of topics that exist.

    Raises:
        KafkaError: there was no response.
    """
    response = await connection.send(MetadataRequest(list(topics), allow_auto_topic_creation=False))
    return [
        TopicPartition(topic["topic"], row["partition"])
        for topic in response.to_object()["topics"]
        for row in topic["partitions"]
    ]


async def committed_offsets(
    connection: AdminClient, group: str, places: Sequence[TopicPartition], within_s: float
) -> Mapping[TopicPartition, int]:
    """The committed offsets of the partitions that have one; asked again until the coordinator has them all.

    Raises:
        KafkaError: the user may not see the group, there was no response, or the coordinator has not all of them after
            so many seconds.
    """
    OffsetFetches(connection.client, _AGAIN_S)
    until_s = time.monotonic() + within_s
    while True:
        try:
            node = await connection.find_coordinator(group)
            response = await connection.send(OffsetFetchRequest(group, by_topic(places)), node)
            rows = [(topic, *row) for topic, partitions in response.topics for row in partitions]
            for *_, code in rows:
                _raise(code)
        except KafkaError as exc:
            if not exc.retriable or time.monotonic() + _AGAIN_S > until_s:
                raise
            await asyncio.sleep(_AGAIN_S)
        else:
            return {TopicPartition(topic, number): offset for topic, number, offset, *_ in rows if offset >= 0}


async def log_bounds(
    connection: AdminClient, places: Sequence[TopicPartition]
) -> Mapping[TopicPartition, tuple[int, int]]:
    """The offset of the first record of each partition, and the one behind the last that can be read.

    Raises:
        KafkaError: the user may not describe a topic, or the leader of a partition does not answer.
    """
    wanted = {*places}
    names = [name for name, _ in by_topic(places)]
    response = await connection.send(MetadataRequest(names, allow_auto_topic_creation=False))
    led: dict[int, list[TopicPartition]] = defaultdict(list)
    for topic in response.to_object()["topics"]:
        _raise(topic["error_code"])
        for row in topic["partitions"]:
            place = TopicPartition(topic["topic"], row["partition"])
            if place in wanted:
                _raise(row["error_code"])
                led[row["leader"]].append(place)
    first, last = [
        {
            place: offset
            for leader, those in led.items()
            for place, offset in (await _offsets(connection, leader, those, which)).items()
        }
        for which in (_EARLIEST, _LATEST)
    ]
    return {place: (first[place], last[place]) for place in places}


async def _offsets(
    connection: AdminClient, leader: int, places: Sequence[TopicPartition], which: int
) -> Mapping[TopicPartition, int]:
    wanted = [(topic, [(number, which) for number in numbers]) for topic, numbers in by_topic(places)]
    response = await connection.send(OffsetRequest(_CONSUMER, _READ_COMMITTED, wanted), leader)
    found = {}
    for topic, rows in response.topics:
        for number, code, _, offset, *_ in rows:
            _raise(code)
            found[TopicPartition(topic, number)] = offset
    return found


def _raise(code: int) -> None:
    error = for_code(code)
    if error.errno != 0:
        raise error
