"""The throttles of brokers: for how long they take nothing more from a client that is over its quota (KIP-219).

A broker answers a request at once, says for how long the client is to wait, and until then reads nothing more from the
connection. aiokafka sends all the same. The broker then seems to be away; after `request.timeout.ms` aiokafka
connects anew, which the broker takes, and what has waited is sent again.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import Any

from aiokafka.client import AIOKafkaClient

from app.kafka.gate import Call, Gate, Place, Send
from app.kafka.troubles import THROTTLED, UNANSWERED_S, Troubles

_PAUSE_S = 1.0  # between two waits that count as one
_LOOK_S = 0.1  # how soon a request notices that its connection is closed


class Throttles:
    """Holds the requests of clients back as long as their brokers ask for, or until the connection is closed.

    Belongs to one event loop.

    Args:
        told: gets each wait, in seconds.
        troubles: get waits that follow each other.
    """

    def __init__(self, told: Callable[[float], None], troubles: Troubles) -> None:
        self._told = told
        self._troubles = troubles
        self._clock = troubles.clock
        self._until: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        self._turns: weakref.WeakKeyDictionary[Any, asyncio.Lock] = weakref.WeakKeyDictionary()
        self._by_address: dict[str, float] = {}

    def watch(self, client: AIOKafkaClient, told: Callable[[float], None] | None = None) -> None:
        """Watches a client; `told` gets its waits, in seconds, when they begin."""

        async def held_back(call: Call, send: Send) -> Any:
            connection = call.connection
            if connection in self._until:
                # In turn, or timers for the same moment would change the order, also that of commits.
                async with self._turns.setdefault(connection, asyncio.Lock()):
                    # Nothing waits for a connection that is closed: it refuses all. The time may grow meanwhile.
                    while (  # noqa: ASYNC110  # nothing public tells when a connection is closed
                        connection.connected() and (left_s := self._until[connection] - self._clock()) > 0
                    ):
                        await asyncio.sleep(min(left_s, _LOOK_S))
            response = await send()
            seconds = getattr(response, "throttle_time_ms", 0) / 1000
            if seconds > 0:
                self._until[connection] = until_s = self._clock() + seconds
                self._note(call.address, until_s)
                self._told(seconds)
                if told is not None:
                    told(seconds)
            return response

        Gate.of(client).set(Place.THROTTLE, {object: held_back})

    def _note(self, address: str, until_s: float) -> None:
        before_s = self._by_address.get(address, 0.0)
        if self._clock() - before_s >= _PAUSE_S:
            self._troubles.end(THROTTLED, address)
        self._by_address[address] = until_s = max(until_s, before_s)
        self._troubles.note(THROTTLED, address, seen_s=until_s, patience_s=UNANSWERED_S)
