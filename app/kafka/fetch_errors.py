"""Fetches that a broker refuses with an error that aiokafka's consumer does not handle.

The consumer logs such an error, and immediately sends the fetch to the same broker again, endlessly. The broker's disk
may have failed (KAFKA_STORAGE_ERROR), and another broker may lead the partition now. Therefore the response is held
back for a moment, the client updates its metadata, and the error is reported.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnknownError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest

from app.kafka.gate import Call, Gate, Place, Send
from app.kafka.troubles import UNANSWERED_S, UNREADABLE, Troubles

_NONE = 0
# Unknown to aiokafka, and returned after any change of a leader, while the client or a broker does not know it yet.
_SOON_OVER = {74: "FENCED_LEADER_EPOCH", 75: "UNKNOWN_LEADER_EPOCH"}
# With the other errors that aiokafka does not know, by Kafka's `Errors`.
_NAMES = {**_SOON_OVER, 76: "UNSUPPORTED_COMPRESSION_TYPE", 78: "OFFSET_NOT_AVAILABLE"}
_ELSEWHERE = (NotLeaderForPartitionError.errno, UnknownTopicOrPartitionError.errno)
# The consumer handles these.
_FORESEEN = (*_ELSEWHERE, OffsetOutOfRangeError.errno, TopicAuthorizationFailedError.errno)


class FetchErrors:
    """Watches the responses to the fetches of one client. Belongs to its event loop.

    Args:
        client: of a consumer.
        pause_s: how long a response with such an error is held back.
        troubles: where to note the partitions that cannot be read.
    """

    def __init__(self, client: AIOKafkaClient, pause_s: float, troubles: Troubles) -> None:
        self._troubles = troubles
        self._client = client
        self._pause_s = pause_s
        Gate.of(client).set(Place.ERRORS, {FetchRequest: self._fetched})

    async def _fetched(self, _: Call, send: Send) -> Any:
        answer = await send()
        if self._note(answer):
            self._client.force_metadata_update()
            await asyncio.sleep(self._pause_s)
        return answer

    def _note(self, answer: Any) -> bool:
        """Notes the partitions that a response refuses; True if there are any."""
        refuses = False
        for topic, partitions in answer.topics:
            for number, code, *_ in partitions:
                if code == _NONE:
                    if self._troubles.has(UNREADABLE):
                        self._troubles.end(UNREADABLE, TopicPartition(topic, number))
                elif code not in _FORESEEN:
                    refuses = True
                    patience_s = UNANSWERED_S if code in _SOON_OVER else 0.0
                    place = TopicPartition(topic, number)
                    self._troubles.note(UNREADABLE, place, *place, _name(code), patience_s=patience_s)
        return refuses


def follow_leaders(consumer: AIOKafkaConsumer) -> None:
    """Makes a consumer update its metadata when a broker refuses a lookup of offsets, as it is not the leader.

    If there is no committed offset, aiokafka asks the same broker again until `metadata.max.age.ms` is over, 5 minutes
    by default, and reads nothing until then.
    """
    gate = Gate.of(consumer)

    async def looked_up(_: Call, send: Send) -> Any:
        response = await send()
        if any(code in _ELSEWHERE for _, partitions in response.topics for _, code, *_ in partitions):
            gate.client.force_metadata_update()
        return response

    gate.set(Place.ERRORS, {OffsetRequest: looked_up})


def _name(code: int) -> str:
    if code in _NAMES:
        return _NAMES[code]
    error = for_code(code)
    unknown = error is UnknownError and code != UnknownError.errno
    return f"Kafka's error {code}, which this version of Wideload does not know," if unknown else error.__name__
