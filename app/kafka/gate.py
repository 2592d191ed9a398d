"""The gate of an aiokafka client: each of its connections is opened here, and each of its requests passes.

aiokafka sends most requests by its client's `send`, and some past it, as those for metadata. All of them leave by the
`send` of a connection, and all connections come from `_get_conn`: the gate stands at these two.
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

_START_S = 1.0  # a start that is cancelled may take so long to get its answer
_SHARES = 3
_TOPIC_CREATION = 4  # the first version of a request for metadata that may forbid it

Versions = Mapping[int, tuple[int, int]]
"""The versions that a broker knows, by the key of the API."""

_Client = TypeVar("_Client", AIOKafkaConsumer, AIOKafkaProducer, AIOKafkaAdminClient)


class Place(IntEnum):
    """Where an interceptor stands, in the order in which they act on a request: from who sends it to the connection.

    Each gets the request as those before it have changed it, and the response as those behind it have.
    """

    RECORDS = auto()  # keeps what the fetcher gets of a response, so all others have changed it before
    TRANSACTIONS = auto()  # sends a request again, past all of those behind
    EPOCHS = auto()  # gives the fetcher errors that it knows in the place of those that ERRORS reports
    ERRORS = auto()  # while it holds a response back, no broker is silent for HEALTH
    MEMBER = auto()  # adds its id to the versions that EPOCHS has chosen
    REFUSALS = auto()
    THROTTLE = auto()
    HEALTH = auto()  # the time that a broker takes begins when it gets the request, after a wait for a quota
    OFFSETS = auto()  # asks for something else first, once the connection may be used
    TOPICS = auto()  # those from here on have nothing to do with each other
    PRODUCE = auto()
    RECEIVE = auto()


@dataclass(frozen=True, slots=True)
class Connect:
    """In the place of a request: a connection is opened. The response is the connection, or None if that has failed."""

    address: str


@dataclass(slots=True, eq=False)
class Call:
    """A request on its way through the gate.

    Attributes:
        connection: which sends it; None for `Connect`.
        request: of aiokafka, or a `Query`.
        answered: False for a request that gets no response.
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
        """Sends what `change` makes of the request in the version for the broker; it gets what others have made."""
        self._changes.append(change)

    def prepare(self, versions: Versions) -> Any:
        """What the connection sends; it asks for that as for any request of aiokafka."""
        struct = self.request.prepare(versions)
        for change in self._changes:
            struct = change(struct, versions)
        return struct

    async def ask(self, request: Any) -> Any:
        """The response to another request on the same connection, past all interceptors."""
        return await Call(self.connection, request).leave()

    async def leave(self) -> Any:
        """Sends the request, and returns the response.

        Raises:
            RequestTimedOutError: there was none in time, and the connection is closed. Else aiokafka's client would
                close it, and raise KeyError if another request has forgotten it: that ends what fetches and sends.
            KafkaError: there was none.
        """
        connection = self.connection
        usual_s = connection._request_timeout
        connection._request_timeout = max(usual_s, self.timeout_s)
        try:  # it looks at the time-out before the first await
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
"""Answers a call, mostly by that which the function sends."""


class Gate:
    """Stands at one client, which has not been started. Use `Gate.of`.

    The addresses of `bootstrap.servers` share the time of a request when the client starts, three at most: aiokafka
    gives it to each, so one that never answers would leave nothing to the others, where the start is bounded by such a
    time. Of more than three, each still gets a third, as a login takes its time.

    No connection stays open when the client is closed in the middle of something. aiokafka forgets the connection of a
    start that is cancelled, and keeps one that opens behind the close: either ends with a traceback when its memory is
    freed. And whatever still asks a closed client for something fails soon, or goes on: aiokafka's connects again, and
    what waits for its next metadata, which never comes, would wait for ever.
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
        """The gate of a client, or of that which a consumer, a producer or an admin client sends by."""
        client = owner.client if hasattr(owner, "client") else getattr(owner, "_client", owner)
        gate = getattr(client._get_conn, "__self__", None)
        return gate if isinstance(gate, Gate) else cls(client)

    def set(self, place: Place, handlers: Mapping[type, Handler]) -> None:
        """Puts an interceptor in its place: what answers each kind of request; `object` is all but `Connect`."""
        self._places[place] = handlers
        self._handlers.clear()

    def answer(self, call: Call, send: Send) -> Awaitable[Any]:
        """What becomes of a call: by the interceptors, and in the end what `send` makes of it."""
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
        if found is None or not found.connected():  # else as for nearly each request
            if self._closed:
                return None
            broker = client.cluster.broker_metadata(node_id)  # asked first: the next metadata may forget it
            address = f"{broker.host}:{broker.port}" if broker is not None else f"number {node_id}"
            found = await self.answer(Call(None, Connect(address)), partial(self._opened, node_id, **options))
        if found is not None and "send" not in vars(found):
            held = weakref.ref(found)  # a connection must not hold itself

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
        """A connection to a broker past the gate, or None; the same one for the same `group`.

        The client closes it at its end, and may open others at the same time.
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
    """A client that has not been started; from now on, none of its requests for metadata creates a topic.

    Brokers with `auto.create.topics.enable = true`, which is Kafka's default, create a topic that does not exist when a
    client asks for it by name, unless the request forbids that. So a client that still asks for a deleted topic would
    bring it back, with the brokers' default number of partitions. Not for clients that an application configures:
    whether those create topics is for its user to say.
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
