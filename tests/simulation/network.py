"""Connections to simulated brokers, in the place of aiokafka's: requests and responses stay objects.

A connection answers in order, one request at a time, as brokers do. Everything that can go wrong with a request goes
wrong here: what becomes of it is drawn by `Weather`.
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import aiokafka.client
import aiokafka.errors as kafka_errors
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.util import wait_for

import app.kafka.clients
from tests.simulation.answers import RELEASES, answer, refused, with_error
from tests.simulation.cluster import Broker, Cluster

_OFFSETS_IN_TRANSACTION = 28
_WITH_QUOTA = {0, 1}

NETWORK: contextvars.ContextVar[Network] = contextvars.ContextVar("network")  # the network of the process that runs


class Network:
    def __init__(
        self,
        cluster: Cluster,
        chance: Random,
        fate: Callable[[int, Any], Any],
        outside: contextvars.Context,
        seen: Callable[[int, Any, Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.cluster, self.chance, self.fate, self.outside, self.seen = cluster, chance, fate, outside, seen
        self.connections: dict[_Connection, None] = {}
        self.sends: Callable[[Any], None] = lambda _: None  # called with each request as it leaves the process
        self.dead = False

    def kill(self) -> None:
        self.dead = True
        for each in [*self.connections]:
            each.lose()


class _Connection(AIOKafkaConnection):  # type: ignore[misc]  # aiokafka has no types
    """See the module. What aiokafka calls a writer and a reader is missing."""

    def __init__(self, network: Network, host: str, port: int, **options: Any) -> None:
        super().__init__(host, port, **options)
        self._network = network
        self._broker: Broker | None = None
        self._line: collections.deque[tuple[Any, Any]] = collections.deque()
        self._open = False
        self._quiet_until_s = 0.0
        self._on_close_cb: Callable[..., None] | None

    def __del__(self) -> None: ...

    async def connect(self) -> Any:
        self._closed_fut = self._loop.create_future()
        network, draw = self._network, self._network.chance.random
        self._broker = network.cluster.brokers.get(self._port - 9000)
        await asyncio.sleep(draw() * 0.002)
        fate = network.fate(self._port - 9000, None)
        if fate == "silent" or (self._broker is not None and self._broker.silent and not self._broker.up):
            await asyncio.sleep(self._request_timeout)
            raise TimeoutError
        if self._broker is None or not self._broker.up or fate is not None:
            raise ConnectionRefusedError(111, f"Connect call failed ('{self._host}', {self._port})")
        self._open = True
        self._broker.connections[self] = None
        network.connections[self] = None
        self._versions = RELEASES[network.cluster.release]  # what ApiVersions says: one request less of each connection

    def connected(self) -> bool:
        return self._open

    def send(self, request: Any, expect_response: bool = True) -> Any:  # noqa: FBT001, FBT002  # as aiokafka's
        if not self._open:
            raise kafka_errors.KafkaConnectionError(f"No connection to broker at {self._host}:{self._port}")
        struct = request.prepare(self._versions)
        self._network.sends(struct)
        future = self._loop.create_future()
        self._line.append((struct, future))
        if len(self._line) == 1:
            self._go()
        return wait_for(future, self._request_timeout)

    def _later(self, seconds: float, call: Any, *args: Any) -> None:
        self._loop.call_later(seconds, call, *args, context=self._network.outside)

    def _go(self) -> None:
        quiet_s = max(0.0, self._quiet_until_s - self._loop.time())
        self._later(quiet_s + self._network.chance.random() * 0.002, self._arrive)

    def _arrive(self) -> None:
        assert self._broker is not None
        if self._is_lost and self._broker.up:
            self.cut("the machine of the broker was away")
        if not self._open or self._is_lost:
            return
        struct, _ = self._line[0]
        fate = self._network.fate(self._broker.number, struct)
        if fate is None:
            self._process(struct, self._reply)
        elif fate == "silent":
            pass  # and so is all behind it
        elif fate == "lost":
            self.cut("the connection broke before the request")
        elif fate == "unanswered":
            self._process(struct, lambda **_: self._later(0.001, self.cut, "the connection broke before the response"))
        elif fate == "stale":
            self._process(struct, lambda **_: None)  # processed, and no response ever
        elif isinstance(fate, float):
            self._delay(struct, fate)
        else:
            code, processed = fate
            if processed:
                self._process(struct, lambda **fields: self._reply(**with_error(struct, fields, code)))
            else:
                self._reply(**refused(struct, code))

    @property
    def _is_lost(self) -> bool:
        """Whether the machine of the broker has gone since, so that it knows nothing of the connection."""
        return self._broker is None or self not in self._broker.connections

    def _delay(self, struct: Any, seconds: float) -> None:
        self._later(seconds, self._late, struct)
        if struct.API_KEY == _OFFSETS_IN_TRANSACTION:  # or until the next producer of the id has sent its own
            self._network.cluster.late_offsets[struct.transactional_id] = struct

    def _late(self, struct: Any) -> None:
        if self._open and not self._is_lost:
            self._process(struct, self._reply)

    def _process(self, struct: Any, reply: Any) -> None:
        assert self._broker is not None
        number, seen = self._broker.number, self._network.seen
        if seen is None:
            self._network.cluster.handle(number, struct, reply)
            return

        def tell(**fields: Any) -> None:
            seen(number, struct, fields)
            reply(**fields)

        self._network.cluster.handle(number, struct, tell)

    def _reply(self, **fields: Any) -> None:
        if self._open and not self._is_lost:
            request, throttle_ms = self._line[0][0], self._network.cluster.throttle_ms
            if throttle_ms and request.API_KEY in _WITH_QUOTA:  # the broker answers, and reads nothing more for so long
                fields["throttle_time_ms"] = throttle_ms
                self._quiet_until_s = self._loop.time() + throttle_ms / 1000
            self._answer(answer(request, **fields))

    def _answer(self, response: Any) -> None:
        self._later(self._network.chance.random() * 0.002, self._deliver, response)

    def _deliver(self, response: Any) -> None:
        if not self._open or self._is_lost:
            return
        _, future = self._line.popleft()
        if not future.done():
            future.set_result(response)
        if self._line:
            self._go()

    def lose(self) -> None:
        """The process is gone; what has arrived is done all the same."""
        self._open = False
        if self._broker is not None:
            self._broker.connections.pop(self, None)

    def cut(self, reason: str) -> None:
        """The broker, or the network, ends the connection."""
        if self._open:
            self.close(CloseReason.CONNECTION_BROKEN, ConnectionResetError(104, reason))

    def close(self, reason: Any = None, exc: BaseException | None = None) -> Any:
        if self._open:
            self._open = False
            self._network.connections.pop(self, None)
            if self._broker is not None:
                self._broker.connections.pop(self, None)
            line, self._line = self._line, collections.deque()
            for _, future in line:
                if not future.done():
                    error = kafka_errors.KafkaConnectionError(f"Connection at {self._host}:{self._port} closed")
                    error.__cause__ = exc
                    future.set_exception(error)
            if self._on_close_cb is not None:
                self._on_close_cb(self, reason)
                self._on_close_cb = None
        if self._closed_fut is not None and not self._closed_fut.done():
            self._closed_fut.set_result(None)
        return self._closed_fut


async def _connect(host: str, port: int, **options: Any) -> Any:
    connection = _Connection(NETWORK.get(), host, port, **options)
    await connection.connect()
    return connection


def take_the_place_of_connections() -> None:
    """Lets all clients of this process connect to the brokers of `NETWORK`."""
    aiokafka.client.create_conn = _connect
    setattr(app.kafka.clients, "create_conn", _connect)  # noqa: B010  # which it imports, and does not offer
