"""Leader epochs of a consumer (KIP-320): they show that a log is no longer the one that was read.

After an unclean election, or if a broker has lost what it had not flushed, the end of a log is gone, and other records
may be written at these offsets. The offset alone does not show this, however long the new log is; the epoch of the last
record that was read does. Therefore:

- metadata contains the epoch of each partition's leader, and a fetch names this epoch: a leader of another epoch
  refuses it;
- before the first fetch from the leader of another epoch, that leader is asked where its log has the end of the epoch
  that was read last. If this is before the offset at which reading continues, the logs diverge there;
- a committed offset carries the epoch of the record before it, so that the next consumer can ask as well.

aiokafka implements none of this. Its requests and their responses are changed at the gate. It treats a log that was cut
as an offset out of range; `LeaderEpochs.cut` has the details. `transforms/epoch_history` decides what follows for a
partition.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    IncompatibleBrokerVersion,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest, MetadataResponse_v5
from aiokafka.protocol.transaction import TxnOffsetCommitRequest

from app.kafka.gate import Call, Gate, Place, Send, Versions
from app.kafka.offset_fetches import FetchOffsets
from app.kafka.queries import Query, knows, metadata_answer, version
from transforms.epoch_history import NO_EPOCH, Cut, PartitionEpochs, Reading

_NONE = 0
_NOT_LEADER, _OUT_OF_RANGE = NotLeaderForPartitionError.errno, OffsetOutOfRangeError.errno
_FORBIDDEN = TopicAuthorizationFailedError.errno
_UNKNOWN_TO_AIOKAFKA = (74, 75)  # FENCED_LEADER_EPOCH and UNKNOWN_LEADER_EPOCH
# aiokafka has these requests in versions that lack the epoch. They are sent in one that has it, if the broker supports
# that, and a response is converted to the version that aiokafka reads.
_FETCH_WITH_EPOCH = 9  # the first version of a fetch that has the epoch of the leader
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
    metadata_answer("error_code:int16 topic:text is_internal:boolean"),
    flexible=False,
)


class LeaderEpochs:
    """Watches one consumer. Belongs to its event loop.

    If brokers do not support all these requests, the consumer reads by offsets alone.

    Args:
        client: of the consumer.
        assignment: returns aiokafka's state of the assigned partitions, another object after each rebalance.
        pause_s: how long a response is held back if a leader does not report where its log has the end of an epoch.
    """

    # State that changes: `_leaders`, with metadata; `_partitions`, with each assignment.

    def __init__(self, client: AIOKafkaClient, assignment: Callable[[], object], pause_s: float) -> None:
        self._client = client
        self._assignment = assignment
        self._pause_s = pause_s
        self._leaders: dict[TopicPartition, int] = {}
        self._of: object = None
        self._partitions: defaultdict[TopicPartition, PartitionEpochs] = defaultdict(PartitionEpochs)
        Gate.of(client).set(
            Place.EPOCHS,
            {
                FetchRequest: self._fetch,
                MetadataRequest: self._ask_for_leaders,
                OffsetCommitRequest: self._commit,
                OffsetFetchRequest: self._fetch_offsets,
                FetchOffsets: self._fetch_offsets,
            },
        )

    # --- reading -----------------------------------------------------------------------------------------------------

    def carry(self, client: AIOKafkaClient) -> None:
        """Adds epochs to the offsets that the client of a producer commits in transactions."""
        Gate.of(client).set(Place.EPOCHS, {TxnOffsetCommitRequest: self._commit})

    def read(self, partition: TopicPartition, offset: int, epoch: int) -> None:
        """Notes that a batch was read which starts at this offset; -1 is an unknown epoch."""
        self._assigned()[partition].read(offset, epoch)

    def cut(self, partition: TopicPartition) -> Cut | None:
        """Where the log was cut below the offset at which reading was to continue; None if it was not."""
        return self._assigned()[partition].cut

    def compared(self, partition: TopicPartition, offset: int) -> bool:
        """Whether the current leader, by metadata, has reported where its log diverges from what was read."""
        return self._assigned()[partition].is_compared(offset, self._leaders.get(partition, NO_EPOCH))

    def begin(self, partition: TopicPartition, at: Cut | None) -> None:
        """Notes that a partition is read again, in a log that was replaced altogether, or cut at `at`."""
        self._assigned()[partition].restart(at)

    def _assigned(self) -> defaultdict[TopicPartition, PartitionEpochs]:
        of = self._assignment()
        if of is not self._of:
            self._of, self._partitions = of, defaultdict(PartitionEpochs)
        return self._partitions

    # --- commits and metadata ----------------------------------------------------------------------------------------

    async def _commit(self, call: Call, send: Send) -> Any:
        call.change(self._with_epochs)
        return await send()

    def _with_epochs(self, struct: Any, versions: Versions) -> Any:
        made = _COMMIT if struct.API_KEY == _COMMIT.API_KEY else _COMMIT_IN_TRANSACTION
        if not knows(versions, made):
            return struct
        assigned = self._assigned()
        topics = [
            (
                topic,
                [
                    (number, offset, assigned[TopicPartition(topic, number)].epoch_to_commit(offset, note), note)
                    for number, offset, note in offsets
                ],
            )
            for topic, offsets in struct.topics
        ]
        if made is _COMMIT:
            return made(struct.consumer_group, struct.consumer_group_generation_id, struct.consumer_id, None, topics)
        return made(struct.transactional_id, struct.group_id, struct.producer_id, struct.producer_epoch, topics)

    async def _fetch_offsets(self, _: Call, send: Send) -> Any:
        response = await send()
        for partition, offset, epoch, metadata in response.epochs:
            self._assigned()[partition].committed(offset, epoch, metadata)
        return response

    async def _ask_for_leaders(self, call: Call, send: Send) -> Any:
        call.change(_asking_for_epochs)
        response = await send()
        if response.API_VERSION != _METADATA.API_VERSION:
            return response
        topics = []
        for code, topic, is_internal, partitions in response.topics:
            rest = []
            for error, number, leader, epoch, *more in partitions:
                self._leaders[TopicPartition(topic, number)] = epoch
                rest.append((error, number, leader, *more))
            topics.append((code, topic, is_internal, rest))
        others = response.throttle_time_ms, response.brokers, response.cluster_id, response.controller_id
        return MetadataResponse_v5(*others, topics)

    # --- fetches -----------------------------------------------------------------------------------------------------

    async def _fetch(self, call: Call, send: Send) -> Any:
        # Called for each fetch, which has all partitions of a broker.
        of, assigned, now_s = self._assignment(), self._assigned(), asyncio.get_running_loop().time()
        readings: dict[TopicPartition, Reading] = {}
        changed: dict[TopicPartition, Reading] = {}
        looks = False  # check the answers partition by partition, if it is not known what was read
        for topic, wanted in call.request.topics:
            for number, offset, _ in wanted:
                place = TopicPartition(topic, number)
                reading = assigned[place].reading(offset, self._leaders.get(place, NO_EPOCH), now_s)
                readings[place] = reading
                if reading.compares:
                    changed[place] = reading
                elif reading.epoch == NO_EPOCH:
                    looks = True
        refused = await self._compare(assigned, changed) if changed else {}

        def fenced(struct: Any, _: Versions) -> Any:
            if struct.API_VERSION >= _FETCH_WITH_EPOCH:
                epochs = iter(readings.values())
                struct.topics = [
                    (topic, [(row[0], next(epochs).leader, *row[2:]) for row in rows]) for topic, rows in struct.topics
                ]
            return struct

        call.change(fenced)
        response = await send()
        if of is not self._assignment():
            return response  # of a former assignment
        if _judge(response, assigned, readings, refused, looks=looks):
            await asyncio.sleep(self._pause_s)
        return response

    async def _compare(
        self, assigned: Mapping[TopicPartition, PartitionEpochs], readings: Mapping[TopicPartition, Reading]
    ) -> Mapping[TopicPartition, int]:
        """Compares the logs of leaders with what was read; returns the errors of partitions that must not be read.

        Args:
            assigned: the partitions of the current assignment, which may change before the answer.
            readings: what to compare.

        Raises:
            KafkaError: a leader does not answer.
        """
        asked: defaultdict[int | None, dict[TopicPartition, Reading]] = defaultdict(dict)
        for place, reading in readings.items():
            asked[self._client.cluster.leader_for_partition(place)][place] = reading
        refused: dict[TopicPartition, int] = {}
        for node, wanted in asked.items():
            ends: Mapping[TopicPartition, tuple[int, int, int]] = {}
            if node not in (None, -1):
                try:
                    ends = FetchEpochEnds.ends(await self._client.send(node, FetchEpochEnds(wanted)))
                except IncompatibleBrokerVersion:
                    ends = dict.fromkeys(wanted, (_NONE, NO_EPOCH, -1))
            for place, reading in wanted.items():
                code, epoch, end = ends.get(place, (_NOT_LEADER, NO_EPOCH, -1))
                if code != _NONE:
                    refused[place] = code if code == _FORBIDDEN else _NOT_LEADER
                elif not assigned[place].is_same(reading, epoch, end):
                    refused[place] = _OUT_OF_RANGE
        return refused


def _judge(
    response: Any,
    assigned: Mapping[TopicPartition, PartitionEpochs],
    readings: Mapping[TopicPartition, Reading],
    refused: Mapping[TopicPartition, int],
    *,
    looks: bool,
) -> bool:
    """Replaces records of refused partitions by errors, and errors that aiokafka does not know by others.

    Returns:
        Whether to hold the response back, as leaders must be asked again.
    """
    held = _NOT_LEADER in refused.values()
    fenced = response.API_VERSION >= _FETCH_WITH_EPOCH
    for topic, rows in response.topics:
        for at, (number, code, *rest) in enumerate(rows):
            if code == _NONE and not looks and not refused:
                continue
            place, given = TopicPartition(topic, number), code
            if code in _UNKNOWN_TO_AIOKAFKA:
                given = _NOT_LEADER
            elif code in (_NONE, _OUT_OF_RANGE) and place in refused:
                given = refused[place]  # a shorter log lacks the offset, which may be reported only with the cut
            elif code == _OUT_OF_RANGE and readings[place].older:
                given, held = _NOT_LEADER, True  # reported by a former leader; another one may have the offset
            elif code == _NONE and fenced:
                assigned[place].fetched(readings[place])
            if given != code:
                rows[at] = number, given, *rest
    return held


def _asking_for_epochs(struct: Any, versions: Versions) -> Any:
    """aiokafka's metadata request, in the version whose response has epochs."""
    if not knows(versions, _METADATA):
        return struct
    return _METADATA(struct.topics, struct.allow_auto_topic_creation)


class FetchEpochEnds(Query):
    """Asks a leader where the epochs end in its logs, for any number of partitions; for consumers from Kafka 2.3 on.

    Args:
        asked: for each partition, what was read last, and the epoch of its leader.
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
        """By partition: the error, 0 for none; the greatest epoch that is not above the requested one; and its end."""
        return {
            TopicPartition(topic, number): (code, epoch, offset)
            for topic, partitions in response.topics
            for code, number, epoch, offset in partitions
        }
