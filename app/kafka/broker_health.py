"""Which brokers do not answer the clients of a flow, and since when; and how long they are to be left alone.

aiokafka waits for a broker that is down and tries again, and only its log says so. So each connection and each request
of a client is watched.

A broker answers a client that is over its quota, says for how long the client is to wait (KIP-219), and until then
reads nothing more from the connection. aiokafka still sends. The broker then seems to be away; after
`request.timeout.ms` aiokafka connects again, which the broker allows, and what has waited is sent again.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    KafkaConnectionError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    RequestTimedOutError,
)
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.group import JoinGroupRequest, SyncGroupRequest
from aiokafka.protocol.produce import ProduceRequest

from app.kafka.gate import Call, Connect, Gate, Place, Send
from app.kafka.offset_fetches import FetchOffsets
from app.kafka.refusals import refusal
from app.kafka.troubles import LEADERLESS, REFUSED, THROTTLED, UNANSWERED, UNANSWERED_S, Troubles, ago

_LOOK_S = 0.5
_CLOSED_S = 0.1  # how soon a request that waits notices that its connection is closed
_FORGOTTEN_S = 60.0
_TOO_FEW = (NotEnoughReplicasError.errno, NotEnoughReplicasAfterAppendError.errno)
# Requests that a broker answers when other members of a group have done something, or its replicas have.
_PATIENT = (JoinGroupRequest, SyncGroupRequest, OffsetFetchRequest, FetchOffsets)


class BrokerHealth:
    """Which brokers answer the clients of one flow. Belongs to its event loop.

    Args:
        topics: each of their partitions must have a leader.
        fetch_wait_s: how long a broker may wait before it answers a fetch.
        troubles: of the pipeline; what did not answer former flows has not answered since then.
        throttled: gets each wait for a quota, in seconds.
    """

    def __init__(
        self,
        topics: Collection[str],
        fetch_wait_s: float,
        troubles: Troubles,
        *,
        throttled: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._topics = topics
        self._patience_s = UNANSWERED_S + fetch_wait_s
        self._clock = troubles.clock
        self._clients: list[AIOKafkaClient] = []
        self._asked: dict[object, tuple[str, float]] = {}
        self._silent_since_s: float | None = None
        self._answered_s = self._clock()
        self._refused: tuple[int, float] | None = None
        self._throttled = throttled
        self._until: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()  # by connection
        self._turns: weakref.WeakKeyDictionary[Any, asyncio.Lock] = weakref.WeakKeyDictionary()
        self.troubles = troubles
        troubles.refresh = self._look
        troubles.only[UNANSWERED] = self._is_known

    def watch(self, client: AIOKafkaClient, throttled: Callable[[float], None] | None = None) -> None:
        """Watches a client that has not been started, for as long as it lives.

        Its requests wait while a quota asks for that; `throttled` gets each such wait of its own, in seconds.
        """
        self._clients.append(client)
        gate = Gate.of(client)
        gate.set(Place.HEALTH, {object: self._watched, Connect: self._watched})
        gate.set(Place.THROTTLE, {object: partial(self._held_back, throttled)})

    async def _held_back(self, throttled: Callable[[float], None] | None, call: Call, send: Send) -> Any:
        """Sends a request once the broker reads from the connection, or that is closed."""
        connection = call.connection
        if connection in self._until:
            # In turn, or timers for the same moment would change the order, also that of commits.
            async with self._turns.setdefault(connection, asyncio.Lock()):
                # Nothing waits for a connection that is closed: it refuses all. The time may grow.
                while (  # noqa: ASYNC110  # nothing public tells when a connection is closed
                    connection.connected() and (left_s := self._until[connection] - self._clock()) > 0
                ):
                    await asyncio.sleep(min(left_s, _CLOSED_S))
        response = await send()
        seconds = getattr(response, "throttle_time_ms", 0) / 1000
        if seconds > 0:
            self._until[connection] = until_s = self._clock() + seconds
            self.troubles.note(THROTTLED, call.address, seen_s=until_s, patience_s=UNANSWERED_S)
            self._throttled(seconds)
            if throttled is not None:
                throttled(seconds)
        return response

    async def _watched(self, call: Call, send: Send) -> Any:
        address, request, asked, asked_s = call.address, call.request, object(), self._clock()
        patient = isinstance(request, _PATIENT)
        if not patient:
            self._asked[asked] = (address, asked_s)
        try:
            answer = await send()
        except (KafkaConnectionError, RequestTimedOutError):
            self._missed(address, self._clock() if patient else asked_s)
            raise
        finally:
            self._asked.pop(asked, None)
        if answer is None and isinstance(request, Connect):
            self._missed(address, asked_s)
            return None
        self._answered(address)
        if isinstance(request, ProduceRequest):
            self._note_writes(answer)
        if (code := refusal(answer)) is not None:
            self._refused = code, self._clock()
        return answer

    def _note_writes(self, answer: Any) -> None:
        for topic, partitions in answer.topics:
            for number, code, *_ in partitions:
                if code in _TOO_FEW:
                    self.troubles.note(REFUSED, (topic, number), topic)
                elif self.troubles.has(REFUSED):
                    self.troubles.end(REFUSED, (topic, number))

    def forget(self, client: AIOKafkaClient) -> None:
        """Drops a client that is about to be stopped."""
        self._clients.remove(client)

    @property
    def refused(self) -> int | None:
        """The last error of an answer that may mean a name over its limit; None if there was none within a minute.

        A name that is refused is refused again, with each heartbeat or try. Those of long ago say nothing of it.
        """
        if self._refused is None or self._clock() - self._refused[1] >= _FORGOTTEN_S:
            return None
        return self._refused[0]

    def _look(self) -> None:
        for address, asked_s in self._asked.values():
            if self._clock() - asked_s > self._patience_s:
                self.troubles.note(UNANSWERED, address, since_s=asked_s)
        leaderless = {
            f"topic {topic}, partition {number}"
            for client in self._clients
            for topic in self._topics
            for number in (client.cluster.partitions_for_topic(topic) or set())
            - (client.cluster.available_partitions_for_topic(topic) or set())
        }
        self.troubles.note_all(LEADERLESS, sorted(leaderless))

    def _is_known(self, address: str) -> bool:
        brokers = (each for client in self._clients for each in client.cluster.brokers())
        return any(address == f"{each.host}:{each.port}" for each in brokers)

    async def silent(self, seconds: float) -> str:
        """Waits until no broker has answered for so many seconds, though some were asked; says so."""
        while True:
            since_s = self._silent_since_s
            if since_s is not None and self._clock() - since_s >= seconds:
                return f"no broker answers since {ago(self._clock() - since_s)}"
            await asyncio.sleep(_LOOK_S)

    def _missed(self, address: str, asked_s: float) -> None:
        """Notes that a broker has not answered what it was asked then."""
        if self._silent_since_s is None:
            self._silent_since_s = max(asked_s, self._answered_s)
        self.troubles.note(UNANSWERED, address, since_s=asked_s)

    def _answered(self, address: str) -> None:
        self._silent_since_s = None
        self._answered_s = self._clock()
        self.troubles.end(UNANSWERED, address)
