"""The gate of an aiokafka client: it opens each of the client's connections, and each request passes through it.

aiokafka sends most requests with its client's `send`, and some, such as those for metadata, directly. All of them use
the `send` of a connection, and all connections come from `_get_conn`: the gate replaces these two.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from enum import IntEnum, auto
from functools import partial
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import CloseReason
from aiokafka.errors import RequestTimedOutError
from aiokafka.protocol.metadata import MetadataRequest

from app.kafka.shielded import shielded

_START_S = 1.0  # how long a cancelled start may wait for its answer
_SHARES = 3
_TOPIC_CREATION = 4  # the first version of the metadata request that can forbid it

Versions = Mapping[int, tuple[int, int]]
"""The versions that a broker supports, by the key of the API."""

_Client = TypeVar("_Client", AIOKafkaConsumer, AIOKafkaProducer, AIOKafkaAdminClient)


class Place(IntEnum):
    """The place of an interceptor, in the order in which they act on a request: from its sender to the connection.

    Each receives the request as changed by those before it, and the response as changed by those after it.
    """

    RECORDS = auto()  # keeps the records of a response for the fetcher, so all others have changed it before
    TRANSACTIONS = auto()  # sends a request again, through all of those after it
    EPOCHS = auto()  # replaces errors that ERRORS reports by errors that the fetcher knows
    ERRORS = auto()  # while it holds a response back, HEALTH does not count the broker as silent
    MEMBER = auto()  # adds its id to the versions that EPOCHS has chosen
    REFUSALS = auto()
    THROTTLE = auto()
    HEALTH = auto()  # measures the time of a broker from when it gets the request, after a wait for a quota
    OFFSETS = auto()  # sends another request first, once the connection may be used
    TOPICS = auto()  # those from here on are independent of each other
    PRODUCE = auto()
    RECEIVE = auto()


@dataclass(frozen=True, slots=True)
class Connect:
    """Stands for a request: a connection is opened. The response is the connection, or None if that has failed."""

    address: str


@dataclass(slots=True, eq=False)
class Call:
    """A request on its way through the gate.

    Attributes:
        connection: the one that sends it; None for `Connect`.
        request: of aiokafka, or a `Query`.
        answered: False for a request without a response.
        timeout_s: how long to wait for the response, if that is longer than the client's time-out.
    """

    connection: Any
    request: Any
    answered: bool = True
    timeout_s: float = 0.0
    _changes: list[Callable[[Any, Versions], Any]] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Host and port of the broker."""
        if self.connection is None:
            return str(self.request.address)
        return f"{self.connection.host}:{self.connection.port}"

    def change(self, change: Callable[[Any, Versions], Any]) -> None:
        """Adds a function that changes the request, encoded in the broker's version, after earlier functions."""
        self._changes.append(change)

    def prepare(self, versions: Versions) -> Any:
        """What the connection sends; it calls this as it does for requests of aiokafka."""
        struct = self.request.prepare(versions)
        for change in self._changes:
            struct = change(struct, versions)
        return struct

    async def ask(self, request: Any) -> Any:
        """The response to another request on the same connection, without interceptors."""
        return await Call(self.connection, request).leave()

    async def leave(self) -> Any:
        """Sends the request, and returns the response.

        Raises:
            RequestTimedOutError: there was none in time, and the connection is closed. Otherwise aiokafka's client
                would close it, and raise a KeyError if another request has already removed it: this error would end
                aiokafka's fetcher or sender.
            KafkaError: there was none.
        """
        connection = self.connection
        usual_s = connection._request_timeout
        connection._request_timeout = max(usual_s, self.timeout_s)
        try:  # it reads the time-out before the first await
            answer = type(connection).send(connection, self, expect_response=self.answered)
        finally:
            connection._request_timeout = usual_s
        try:
            return await answer
        except TimeoutError as exc:
            connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
            raise RequestTimedOutError from exc


Send = Callable[[], Awaitable[Any]]
Handler = Callable[[Call, Send], Awaitable[Any]]
"""Answers a call, usually with the response that the function returns."""


class Gate:
    """The gate of one client, which has not been started. Use `Gate.of`.

    When the client starts, the addresses of `bootstrap.servers` share the time-out of a request. aiokafka allows each
    of them the whole time-out: where the start itself is bounded by this time, an address that never answers would
    leave nothing for the others. If there are more than three, each still gets a third, as a login takes time.

    No connection stays open if the client is closed during an operation. aiokafka forgets the connection of a cancelled
    start, and keeps one that opens after the close: both end with a traceback when they are garbage-collected. Calls to
    a closed client fail or return soon, whereas aiokafka would connect again, and calls that wait for its next
    metadata, which never comes, would wait forever.
    """

    def __init__(self, client: AIOKafkaClient) -> None:
        self.client = client
        self._closed = False
        self._places: dict[Place, Mapping[type, Handler]] = {}
        self._handlers: dict[type, list[Handler]] = {}
        self._connect, self._close, self._bootstrap = client._get_conn, client.close, client.bootstrap
        client._get_conn, client.close, client.bootstrap = self._connection, self._closing, self._started

    @classmethod
    def of(cls, owner: Any) -> Gate:
        """The gate of a client, or of the client of a consumer, a producer or an admin client."""
        client = owner.client if hasattr(owner, "client") else getattr(owner, "_client", owner)
        gate = getattr(client._get_conn, "__self__", None)
        return gate if isinstance(gate, Gate) else cls(client)

    def set(self, place: Place, handlers: Mapping[type, Handler]) -> None:
        """Sets an interceptor: a handler for each kind of request; `object` stands for all kinds but `Connect`."""
        self._places[place] = handlers
        self._handlers.clear()

    def answer(self, call: Call, send: Send) -> Awaitable[Any]:
        """The answer to a call: of the interceptors, and in the end of `send`."""
        kind = type(call.request)
        handlers = self._handlers.get(kind)
        if handlers is None:
            behind = [self._places[place] for place in sorted(self._places, reverse=True)]
            found = [each.get(kind) or (None if kind is Connect else each.get(object)) for each in behind]
            handlers = self._handlers[kind] = [each for each in found if each is not None]
        for handle in handlers:
            send = partial(handle, call, send)
        return send()

    async def _connection(self, node_id: Any, **options: Any) -> Any:
        client = self.client
        found = client._conns.get((node_id, options.get("group", 0)))
        if found is None or not found.connected():  # rare
            if self._closed:
                return None
            broker = client.cluster.broker_metadata(node_id)  # asked first: the next metadata may forget it
            address = f"{broker.host}:{broker.port}" if broker is not None else f"number {node_id}"
            found = await self.answer(Call(None, Connect(address)), partial(self._opened, node_id, **options))
        if found is not None and "send" not in vars(found):
            held = weakref.ref(found)  # a connection must not keep itself alive

            def send(request: Any, expect_response: bool = True) -> Awaitable[Any]:  # noqa: FBT001, FBT002  # as aiokafka's
                call = Call(held(), request, expect_response)
                return self.answer(call, call.leave)

            found.send = send
        return found

    async def _opened(self, node_id: Any, **options: Any) -> Any:
        connection = await self._connect(node_id, **options)
        if self._closed and connection is not None:
            connection.close()
            return None
        return connection

    async def apart(self, node_id: int, group: object) -> Any:
        """A connection to a broker that bypasses the gate, or None; calls with the same `group` share one.

        The client closes it when it is closed itself, and may open others at the same time.
        """
        apart = copy(self.client)
        apart._get_conn_lock_value = None
        return await AIOKafkaClient._get_conn(apart, node_id, group=group)

    async def _started(self) -> None:
        client, whole_ms = self.client, self.client._request_timeout_ms
        client._request_timeout_ms = whole_ms // (min(len(client.hosts), _SHARES) or 1)
        start = asyncio.get_running_loop().create_task(self._bootstrap())
        try:
            await shielded(start)
        except asyncio.CancelledError:
            try:
                await asyncio.wait([start], timeout=_START_S)
            finally:
                start.cancel()
            raise
        finally:
            client._request_timeout_ms = whole_ms

    async def _closing(self) -> None:
        self._closed = True
        await self._close()
        looking = self.client._md_update_fut or asyncio.get_running_loop().create_future()
        if not looking.done():
            looking.set_result(False)
        self.client._md_update_fut = looking


def create_no_topics(owner: _Client) -> _Client:
    """Prevents the metadata requests of a client, which has not been started, from creating topics; returns it.

    Brokers with `auto.create.topics.enable = true`, which is Kafka's default, create a topic that does not exist when a
    client requests its metadata by name, unless the request forbids that. A client that still asks for a deleted topic
    would recreate it, with the brokers' default number of partitions. Not for clients that an application configures:
    whether these create topics is its user's decision.
    """

    def asked(call: Call, send: Send) -> Awaitable[Any]:
        call.change(forbidding)
        return send()

    def forbidding(struct: Any, _: Versions) -> Any:
        if struct.API_VERSION >= _TOPIC_CREATION:
            struct.allow_auto_topic_creation = False
        return struct

    Gate.of(owner).set(Place.TOPICS, {MetadataRequest: asked})
    return owner
