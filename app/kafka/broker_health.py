"""Which brokers do not answer the clients of a flow, since when, and how long a quota forbids to send to them.

aiokafka waits for a broker that is down and tries again, and reports this only in its log. Therefore each connection
and each request of a client is watched.

If a client exceeds its quota, the broker still answers, reports how long the client has to wait (KIP-219), and until
then reads nothing more from the connection. aiokafka keeps sending, so the broker seems to be unavailable; after
`request.timeout.ms` aiokafka opens another connection, which the broker allows, and sends the waiting requests again.
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
_CLOSED_S = 0.1  # how soon a waiting request notices that its connection is closed
_FORGOTTEN_S = 60.0
_TOO_FEW = (NotEnoughReplicasError.errno, NotEnoughReplicasAfterAppendError.errno)
# Requests that a broker answers when other members of a group have done something, or its replicas have.
_PATIENT = (JoinGroupRequest, SyncGroupRequest, OffsetFetchRequest, FetchOffsets)


class BrokerHealth:
    """Which brokers answer the clients of one flow. Belongs to its event loop.

    Args:
        topics: each of their partitions must have a leader.
        fetch_wait_s: how long a broker may wait before it answers a fetch.
        troubles: of the pipeline; a broker that did not answer former flows has not answered since then.
        throttled: called with each wait for a quota, in seconds.
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

        Its requests wait while a quota requires that; `throttled` is called with each such wait of this client, in
        seconds.
        """
        self._clients.append(client)
        gate = Gate.of(client)
        gate.set(Place.HEALTH, {object: self._watched, Connect: self._watched})
        gate.set(Place.THROTTLE, {object: partial(self._held_back, throttled)})

    async def _held_back(self, throttled: Callable[[float], None] | None, call: Call, send: Send) -> Any:
        """Sends a request once the broker reads from the connection again, or the connection is closed."""
        connection = call.connection
        if connection in self._until:
            # In turn: timers for the same moment would change the order, even that of commits.
            async with self._turns.setdefault(connection, asyncio.Lock()):
                # Nothing waits for a closed connection, which refuses every request. The time may grow.
                while (  # noqa: ASYNC110  # aiokafka has no public event for a closed connection
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
        """The last error that may mean a name over its limit; None if there was none within a minute.

        A refused name is refused again with each heartbeat or try, so an older error is irrelevant.
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
        """Waits until no broker has answered for so many seconds, though some were asked; returns a message."""
        while True:
            since_s = self._silent_since_s
            if since_s is not None and self._clock() - since_s >= seconds:
                return f"no broker answers since {ago(self._clock() - since_s)}"
            await asyncio.sleep(_LOOK_S)

    def _missed(self, address: str, asked_s: float) -> None:
        """Notes that a broker has not answered a request that was sent at `asked_s`."""
        if self._silent_since_s is None:
            self._silent_since_s = max(asked_s, self._answered_s)
        self.troubles.note(UNANSWERED, address, since_s=asked_s)

    def _answered(self, address: str) -> None:
        self._silent_since_s = None
        self._answered_s = self._clock()
        self.troubles.end(UNANSWERED, address)
