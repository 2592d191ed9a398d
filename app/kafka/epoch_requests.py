"""Requests with leader epochs (KIP-320): aiokafka has none of them, or has them in versions that lack the epoch.

A request of aiokafka's goes out in a version that has the epoch, where the broker knows it. The response comes back as
the version that aiokafka reads, and its rows are as in the schema of that: others read them by it. The fields are as in
Apache Kafka's `clients/src/main/resources/common/message`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aiokafka import TopicPartition
from aiokafka.protocol.metadata import MetadataResponse_v5

from app.kafka.gate import Versions
from app.kafka.queries import METADATA_PARTITIONS, Query, knows, metadata_answer, version
from transforms.epoch_history import Reading

FETCH_WITH_EPOCH = 9
"""The first version of a fetch that has the epoch of the leader."""

_CONSUMER = -1
_COMMIT_RESULTS = "[topic:text partitions:[partition:int32 error_code:int16]]"
_OFFSETS = "[topic:text partitions:[partition:int32 offset:int64 leader_epoch:int32 metadata:text]]"
_COMMIT = version(
    f"8.7 group:text generation:int32 member:text instance:text topics:{_OFFSETS}",
    f"throttle_time_ms:int32 topics:{_COMMIT_RESULTS}",
    flexible=False,
)
_COMMIT_IN_TRANSACTION = version(
    f"28.2 transactional_id:text group:text producer_id:int64 producer_epoch:int16 topics:{_OFFSETS}",
    f"throttle_time_ms:int32 errors:{_COMMIT_RESULTS}",
    flexible=False,
)
_METADATA = version(
    "3.7 topics:[text] allow_auto_topic_creation:boolean",
    metadata_answer(f"error_code:int16 topic:text is_internal:boolean partitions:{METADATA_PARTITIONS}"),
    flexible=False,
)


def committing_epochs(struct: Any, versions: Versions, before: Callable[[TopicPartition, int, str], int]) -> Any:
    """What aiokafka has made of a commit, in a transaction or not, with the epochs of the offsets.

    Args:
        struct: as aiokafka has made it.
        versions: of the broker.
        before: the epoch of an offset with metadata; -1 if it is not known.
    """
    made = _COMMIT if struct.API_KEY == _COMMIT.API_KEY else _COMMIT_IN_TRANSACTION
    if not knows(versions, made):
        return struct
    topics = [
        (topic, [(at, offset, before(TopicPartition(topic, at), offset, note), note) for at, offset, note in offsets])
        for topic, offsets in struct.topics
    ]
    if made is _COMMIT:
        return made(struct.consumer_group, struct.consumer_group_generation_id, struct.consumer_id, None, topics)
    return made(struct.transactional_id, struct.group_id, struct.producer_id, struct.producer_epoch, topics)


def asking_for_epochs(struct: Any, versions: Versions) -> Any:
    """What aiokafka has made of a request for metadata, so that the answer has epochs."""
    if not knows(versions, _METADATA):
        return struct
    return _METADATA(struct.topics, struct.allow_auto_topic_creation)


def take_leader_epochs(response: Any) -> tuple[Any, Mapping[TopicPartition, int]]:
    """Takes the epochs of the leaders out of metadata: gives the metadata without them, and the epochs by partition."""
    epochs: dict[TopicPartition, int] = {}
    if response.API_VERSION != _METADATA.API_VERSION:
        return response, epochs
    topics = []
    for code, topic, is_internal, partitions in response.topics:
        rest = []
        for error, number, leader, epoch, *more in partitions:
            epochs[TopicPartition(topic, number)] = epoch
            rest.append((error, number, leader, *more))
        topics.append((code, topic, is_internal, rest))
    others = response.throttle_time_ms, response.brokers, response.cluster_id, response.controller_id
    return MetadataResponse_v5(*others, topics), epochs


def fetching_from(struct: Any, leaders: Iterable[int]) -> Any:
    """A fetch that only the leaders of these epochs answer, one for each partition; if its version has them."""
    if struct.API_VERSION >= FETCH_WITH_EPOCH:
        epochs = iter(leaders)
        struct.topics = [
            (topic, [(row[0], next(epochs), *row[2:]) for row in partitions]) for topic, partitions in struct.topics
        ]
    return struct


class FetchEpochEnds(Query):
    """Where the log of a leader has the ends of epochs, of any number of partitions; for consumers from Kafka 2.3 on.

    Args:
        asked: of each partition what was read last, and the epoch of its leader.
    """

    VERSION = version(
        "23.3 replica_id:int32 topics:[topic:text partitions:[partition:int32 current_leader_epoch:int32 epoch:int32]]",
        "throttle_time_ms:int32 topics:[topic:text "
        "partitions:[error_code:int16 partition:int32 leader_epoch:int32 end_offset:int64]]",
        flexible=False,
    )

    def __init__(self, asked: Mapping[TopicPartition, Reading]) -> None:
        by_topic: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for place, reading in asked.items():
            by_topic[place.topic].append((place.partition, reading.leader, reading.epoch))
        super().__init__(replica_id=_CONSUMER, topics=list(by_topic.items()))

    @staticmethod
    def ends(response: Any) -> Mapping[TopicPartition, tuple[int, int, int]]:
        """By partition the error, 0 for none; the greatest epoch that is not above the one asked for; and its end."""
        return {
            TopicPartition(topic, number): (code, epoch, offset)
            for topic, partitions in response.topics
            for code, number, epoch, offset in partitions
        }
