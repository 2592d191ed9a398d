"""Requests for committed offsets: they wait until the coordinator of the group knows all committed offsets.

A coordinator answers from its partitions of `__consumer_offsets`, up to their high watermarks. After all brokers were
killed, a leader has the high watermark of its disk, which may be seconds old, until its followers fetch again. Until
then it returns older offsets, or none (Kafka 4.1: for up to 1.4 s), but it refuses to report the latest offset of such
a partition (KIP-207). Therefore this offset is requested first, on the same connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import GroupIdNotFound, KafkaError
from aiokafka.protocol.commit import OffsetFetchRequest, OffsetFetchRequest_v3, OffsetFetchResponse_v3
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.structs import OffsetAndMetadata

from app.kafka.gate import Call, Gate, Place, Send
from app.kafka.queries import Query, check_code, version
from app.kafka.structs import by_topic
from app.kafka.troubles import OFFSETS, UNANSWERED_S, Troubles
from transforms.logger_name import logger_name

log = logging.getLogger(logger_name(__name__))

_TOPIC = "__consumer_offsets"
_CONSUMER, _READ_UNCOMMITTED, _LATEST = -1, 0, -1
_TOPIC_AUTHORIZATION_FAILED = 29
_NOT_COORDINATOR = 16
_UNSTABLE = 88  # UNSTABLE_OFFSET_COMMIT, which aiokafka does not know
# COORDINATOR_NOT_AVAILABLE and REQUEST_TIMED_OUT: aiokafka fails, where it should look for another coordinator.
_AWAY = (15, 7)
# OFFSET_NOT_AVAILABLE, which was LEADER_NOT_AVAILABLE before version 5 of the request. Not KAFKA_STORAGE_ERROR:
# a broker returns it for each replica on a failed disk, until it restarts, and others lead these partitions.
_BEHIND = (5, 78)


class FetchOffsets(Query):
    """The committed offsets of partitions, for the coordinator of the group; from Kafka 2.5 on.

    With `stable`, only those that no open transaction can change any more (KIP-447).
    """

    VERSION = version(
        "9.7 group_id:text topics:[topic:text partitions:[int32]] require_stable:boolean",
        "throttle_time_ms:int32 topics:[topic:text partitions:[partition:int32 offset:int64 leader_epoch:int32 "
        "metadata:text error_code:int16]] error_code:int16",
    )

    def __init__(self, group: str, partitions: Collection[TopicPartition], *, stable: bool) -> None:
        topics: list[Any] = [(topic, numbers, {}) for topic, numbers in by_topic(partitions)]
        super().__init__(group_id=group, topics=topics, require_stable=stable)

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


_Found = TypeVar("_Found")


async def ask_coordinator(
    client: AIOKafkaClient, group: str, query: Query, read: Callable[[Any], _Found | None], backoff_s: float
) -> _Found:
    """The content of a response of the group's coordinator, which is asked again while `read` returns None.

    Raises:
        KafkaError: the coordinator refuses.
    """
    while True:
        try:
            node = await client.coordinator_lookup(CoordinationType.GROUP, group)
            found = read(await client.send(node, query, group=ConnectionGroup.COORDINATION))
        except KafkaError as exc:
            if not exc.retriable:
                raise
        else:
            if found is not None:
                return found
        await asyncio.sleep(backoff_s)


class OffsetFetches:
    """Holds back the requests of one client for committed offsets; see the module. Belongs to one event loop.

    aiokafka's requests are sent as `FetchOffsets`. A response has `epochs`: partition, offset, leader epoch and
    metadata of each committed offset.

    The requests wait for all partitions of `__consumer_offsets` that the coordinator leads, as implementations of
    brokers differ in how they choose the partition of a group. Without Describe on that topic nothing is held back,
    which is logged once.

    Args:
        owner: a client, or an object that has one; see `Gate.of`.
        backoff_s: how long to wait before the coordinator is asked again.
        troubles: where to note what is waited for; None for nowhere.
    """

    def __init__(self, owner: Any, backoff_s: float, troubles: Troubles | None = None) -> None:
        self._backoff_s = backoff_s
        self._troubles = troubles or Troubles("")
        self._partitions = 0
        self._warned = False
        Gate.of(owner).set(Place.OFFSETS, dict.fromkeys((OffsetFetchRequest, FetchOffsets), self._held_back))

    async def _held_back(self, call: Call, send: Send) -> Any:
        request, places = call.request, list[TopicPartition]()
        if isinstance(request, OffsetFetchRequest):
            built = request.build(OffsetFetchRequest_v3)
            places = [TopicPartition(topic, number) for topic, numbers in built.topics for number in numbers]
            call.request = FetchOffsets(built.consumer_group, places, stable=False)
        waiting = object()
        try:
            while behind := await self._behind(call):
                more = f" and {len(behind) - 1} more" if behind[1:] else ""
                self._troubles.note(OFFSETS, waiting, call.address, f"{behind[0]}{more}", patience_s=UNANSWERED_S)
                await asyncio.sleep(self._backoff_s)
        finally:
            self._troubles.end(OFFSETS, waiting)
        response = await send()
        epochs = [
            (TopicPartition(topic, number), offset, epoch, metadata or "")
            for topic, partitions, _ in response.topics
            for number, offset, epoch, metadata, *_ in partitions
            if offset >= 0
        ]
        response = _as_aiokafkas(response, places) if request is not call.request else response
        response.epochs = epochs
        return response

    async def _behind(self, call: Call) -> Sequence[int]:
        """The partitions that a broker leads, and whose committed offsets it does not fully know yet."""
        if not self._partitions:
            self._partitions = await self._count(call)
        if not self._partitions:
            return ()
        wanted = [(_TOPIC, [(number, _LATEST) for number in range(self._partitions)])]
        response = await call.ask(OffsetRequest(_CONSUMER, _READ_UNCOMMITTED, wanted))
        return [number for _, found in response.topics for number, code, *_ in found if code in _BEHIND]

    async def _count(self, call: Call) -> int:
        """How many partitions there are; 0 if the broker does not report it."""
        response = await call.ask(MetadataRequest([_TOPIC], allow_auto_topic_creation=False))
        for code, *_, partitions in response.topics:
            if code == _TOPIC_AUTHORIZATION_FAILED and not self._warned:
                self._warned = True
                log.info(
                    "committed offsets may be outdated after all brokers were killed; grant Describe on topic %s to "
                    "let the pipeline wait for the current ones",
                    _TOPIC,
                )
            return len(partitions)
        return 0


def _as_aiokafkas(response: Any, places: Sequence[TopicPartition]) -> Any:
    """The response in the version that aiokafka reads, with the error of the whole response for each partition.

    A coordinator that moves or loads the group answers with such an error, and without partitions. aiokafka looks only
    at the errors of partitions, and would conclude that nothing is committed. This is right only if a broker does not
    know the group: Kafka does not return such an error here, but other brokers do.
    """
    code = 0 if response.error_code == GroupIdNotFound.errno else response.error_code
    found = [(topic, [row[:2] + row[3:5] for row in rows]) for topic, rows, _ in response.topics]
    if response.error_code:
        found = [(topic, [(number, -1, "", code) for number in numbers]) for topic, numbers in by_topic(places)]
    topics = [
        (topic, [(*rest, _NOT_COORDINATOR if code in _AWAY else code) for *rest, code in rows]) for topic, rows in found
    ]
    return OffsetFetchResponse_v3(response.throttle_time_ms, topics, 0)
