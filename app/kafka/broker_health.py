"""Which brokers do not answer the clients of a flow, and since when.

aiokafka waits for a broker that is down and tries again, and only its log says so. So each connection and each request
of a client is watched.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    KafkaConnectionError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    RequestTimedOutError,
)
from aiokafka.protocol.produce import ProduceRequest

from app.kafka.refusals import refusal
from app.kafka.throttles import Throttles
from app.kafka.watched_client import Send, leave_no_connection, share_start, watch_connections, watch_requests

__all__ = ["UNANSWERED_S", "BrokerHealth", "ago"]

UNANSWERED_S = 10.0
"""A broker or group that takes longer to answer is reported."""
_LOOK_S = 0.5
# A client that needs a broker asks it again sooner. If no client asks, it is not known whether the broker is down.
_FORGOTTEN_S = 60.0
# Requests that a broker answers when other members of a group have done something, or its replicas have.
_TOO_FEW = (NotEnoughReplicasError.errno, NotEnoughReplicasAfterAppendError.errno)
_PATIENT = ("JoinGroupRequest", "SyncGroupRequest", "OffsetFetchRequest", "FetchStableOffsets")


class BrokerHealth:
    """Which brokers answer the clients of one flow. Belongs to its event loop.

    Args:
        topics: each of their partitions must have a leader.
        fetch_wait_s: how long a broker may wait before it answers a fetch.
        throttled: gets each wait for a quota, in seconds.
        before: of the flow before this one; what did not answer its clients has not answered since then.
        clock: seconds that do not go back.

    Attributes:
        away: since when a broker has not answered, and when it was asked last, by address.
    """

    def __init__(
        self,
        topics: Collection[str],
        fetch_wait_s: float,
        *,
        throttled: Callable[[float], None] = lambda _: None,
        before: BrokerHealth | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topics = topics
        self._patience_s = UNANSWERED_S + fetch_wait_s
        self._clock = clock
        self._clients: list[AIOKafkaClient] = []
        self.away: dict[str, tuple[float, float]] = {} if before is None else before.away
        self._asked: dict[object, tuple[str, float]] = {}
        self._leaderless: dict[str, float] = {}
        self._silent_since_s: float | None = None
        self._answered_s = clock()
        self._refused: tuple[int, float] | None = None
        self._throttles = Throttles(throttled, clock=clock)
        self._short: dict[TopicPartition, float] = {}

    def watch(self, client: AIOKafkaClient, throttled: Callable[[float], None] | None = None) -> None:
        """Watches a client that has not been started, for as long as it lives.

        Its requests wait while a quota asks for that; `throttled` gets each such wait of its own, in seconds.
        """
        self._clients.append(client)
        self._throttles.watch(client, throttled)
        share_start(client)
        leave_no_connection(client)
        watch_connections(client, self._connected)
        watch_requests(client, self._watched)

    def _connected(self, address: str, connection: Any, seconds: float) -> None:
        if connection is None:
            self._missed(address, self._clock() - seconds)
        else:
            self._answered(address)

    async def _watched(self, address: str, request: Any, send: Send) -> Any:
        asked, asked_s = object(), self._clock()
        patient = type(request).__name__ in _PATIENT
        if not patient:
            self._asked[asked] = (address, asked_s)
        try:
            answer = await send()
        except (KafkaConnectionError, RequestTimedOutError):
            self._missed(address, self._clock() if patient else asked_s)
            raise
        finally:
            self._asked.pop(asked, None)
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
                    self._short.setdefault(TopicPartition(topic, number), self._clock())
                elif self._short:
                    self._short.pop(TopicPartition(topic, number), None)

    @property
    def short(self) -> Mapping[str, float]:
        """The topics for which brokers refuse each write, as too few replicas are in sync, and since when."""
        return {place.topic: since_s for place, since_s in sorted(self._short.items(), key=lambda each: -each[1])}

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

    @property
    def trouble(self) -> str | None:
        """Which brokers do not answer, or let clients wait, or which partitions have no leader; None if all is well."""
        now_s = self._clock()
        away = {address: since_s for address, (since_s, seen_s) in self.away.items() if now_s - seen_s < _FORGOTTEN_S}
        for address, asked_s in self._asked.values():
            # A request that waits for a quota goes out after that.
            if now_s - max(asked_s, self._throttles.until_s(address)) > self._patience_s:
                away[address] = min(asked_s, away.get(address, asked_s), self.away.get(address, (asked_s, 0))[0])
        known = {f"{each.host}:{each.port}" for client in self._clients for each in client.cluster.brokers()}
        reasons = [
            f"broker {address} does not answer since {ago(now_s - since_s)}"
            for address, since_s in sorted(away.items())
            if address in known
        ]
        reasons += [
            f"broker {address} lets this client wait for a quota since {ago(now_s - since_s)} (producer_byte_rate, "
            "consumer_byte_rate or request_percentage)"
            for address, since_s in sorted(self._throttles.since_s().items())
            if now_s - since_s > UNANSWERED_S
        ]
        return "; ".join(reasons or self._no_leaders(now_s)) or None

    def _no_leaders(self, now_s: float) -> list[str]:
        found = {
            f"topic {topic}, partition {number}"
            for client in self._clients
            for topic in self._topics
            for number in (client.cluster.partitions_for_topic(topic) or set())
            - (client.cluster.available_partitions_for_topic(topic) or set())
        }
        self._leaderless = {name: self._leaderless.get(name, now_s) for name in sorted(found)}
        if not found:
            return []
        names = list(self._leaderless)
        others = f" and {len(names) - 1} more" if names[1:] else ""
        return [f"{names[0]}{others} without a leader since {ago(now_s - min(self._leaderless.values()))}"]

    async def silent(self, seconds: float) -> str:
        """Waits until no broker has answered for so many seconds, though some were asked; says so."""
        while True:
            since_s = self._silent_since_s
            if since_s is not None and self._clock() - since_s >= seconds:
                return f"no broker answers since {ago(self._clock() - since_s)}"
            await asyncio.sleep(_LOOK_S)

    def _missed(self, address: str, asked_s: float) -> None:
        """Notes that a broker has not answered what it was asked then."""
        now_s = self._clock()
        if self._silent_since_s is None:
            self._silent_since_s = max(asked_s, self._answered_s)
        since_s, _ = self.away.get(address, (asked_s, now_s))
        self.away[address] = since_s, now_s

    def _answered(self, address: str) -> None:
        self._silent_since_s = None
        self._answered_s = self._clock()
        self.away.pop(address, None)


def ago(seconds: float) -> str:
    """The time so many seconds ago, for people, by the clock as it is now."""
    return datetime.fromtimestamp(time.time() - seconds, UTC).isoformat(timespec="seconds")
