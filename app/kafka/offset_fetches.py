"""Requests for committed offsets: they wait until the coordinator of the group has all that was committed.

A coordinator answers from its partitions of `__consumer_offsets`, up to their high watermarks. After a kill of all
brokers a leader has the high watermark of its disk, which may be seconds old, until its followers fetch again. Its
first answers then are older offsets, or none (Kafka 4.1: for up to 1.4 s). Meanwhile it refuses to tell the latest
offset of such a partition (KIP-207). So that is asked for first, by the same connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import GroupIdNotFound
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest

from app.kafka.gate import Call, Gate, Place, Send
from app.kafka.stable_offsets import FetchStableOffsets
from app.kafka.troubles import OFFSETS, UNANSWERED_S, Troubles
from transforms.logger_name import logger_name

log = logging.getLogger(logger_name(__name__))

_TOPIC = "__consumer_offsets"
_CONSUMER, _READ_UNCOMMITTED, _LATEST = -1, 0, -1
_TOPIC_AUTHORIZATION_FAILED = 29
_NOT_COORDINATOR = 16
# COORDINATOR_NOT_AVAILABLE and REQUEST_TIMED_OUT: aiokafka ends by them, where it should look for another coordinator.
_AWAY = (15, 7)
# OFFSET_NOT_AVAILABLE, which was LEADER_NOT_AVAILABLE before version 5 of the request. Not KAFKA_STORAGE_ERROR:
# a broker answers it for each replica on a disk that has failed, until it restarts, and others lead these partitions.
_BEHIND = (5, 78)


class OffsetFetches:
    """Holds back the requests of one client for committed offsets, as the module says. Belongs to one event loop.

    It waits for all partitions of `__consumer_offsets` that the coordinator leads: each kind of broker has its own way
    to choose the one of a group. Without Describe on that topic nothing is held back, and the log says so once.

    Args:
        client: of a consumer, started or not.
        backoff_s: how long to wait before the coordinator is asked again.
        troubles: get what is waited for; None if nobody reads them.
    """

    def __init__(self, client: AIOKafkaClient, backoff_s: float, troubles: Troubles | None = None) -> None:
        self._backoff_s = backoff_s
        self._troubles = troubles or Troubles("")
        self._partitions = 0
        self._told = False
        Gate.of(client).set(Place.OFFSETS, dict.fromkeys((OffsetFetchRequest, FetchStableOffsets), self._held_back))

    async def _held_back(self, call: Call, send: Send) -> Any:
        waiting = object()
        try:
            while behind := await self._behind(call):
                more = f" and {len(behind) - 1} more" if behind[1:] else ""
                self._troubles.note(OFFSETS, waiting, call.address, f"{behind[0]}{more}", patience_s=UNANSWERED_S)
                await asyncio.sleep(self._backoff_s)
        finally:
            self._troubles.end(OFFSETS, waiting)
        response = await send()
        if isinstance(call.request, OffsetFetchRequest):
            _tell_errors(call.request, response)
        return response

    async def _behind(self, call: Call) -> Sequence[int]:
        """The partitions that a broker leads, and of which it does not know yet what is committed."""
        if not self._partitions:
            self._partitions = await self._count(call)
        if not self._partitions:
            return ()
        wanted = [(_TOPIC, [(number, _LATEST) for number in range(self._partitions)])]
        response = await call.ask(OffsetRequest(_CONSUMER, _READ_UNCOMMITTED, wanted))
        return [number for _, found in response.topics for number, code, *_ in found if code in _BEHIND]

    async def _count(self, call: Call) -> int:
        """How many partitions there are; 0 if the broker does not tell."""
        response = await call.ask(MetadataRequest([_TOPIC], allow_auto_topic_creation=False))
        for code, *_, partitions in response.topics:
            if code == _TOPIC_AUTHORIZATION_FAILED and not self._told:
                self._told = True
                log.info(
                    "committed offsets are taken as the brokers tell them: after a kill of all brokers these may be "
                    "old; grant Describe on topic %s, and the right ones are waited for",
                    _TOPIC,
                )
            return len(partitions)
        return 0


def _tell_errors(request: OffsetFetchRequest, response: Any) -> None:
    """Gives the error of a whole response to each of its partitions, as before version 2, so that aiokafka knows it.

    A coordinator that moves or loads the group answers with such an error, and without partitions. aiokafka looks at
    the errors of partitions alone: for it, nothing would be committed. That is so if a broker does not know the group:
    Kafka has no such error here, but other brokers do.
    """
    if code := getattr(response, "error_code", 0):
        code = 0 if code == GroupIdNotFound.errno else code
        response.topics = [
            (topic, [(number, -1, "", code) for number in numbers]) for topic, numbers in request._partitions or ()
        ]
    response.topics = [
        (topic, [(*rest, _NOT_COORDINATOR if code in _AWAY else code) for *rest, code in partitions])
        for topic, partitions in response.topics
    ]
