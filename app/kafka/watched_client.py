"""A watched client: others see each try of an aiokafka client to connect, and each of its requests and responses."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import RequestTimedOutError

from app.kafka.shielded import shielded

__all__ = [
    "Send",
    "Versions",
    "close_for_good",
    "leave_no_connection",
    "prepared",
    "remade",
    "share_start",
    "time_out_in_any_case",
    "watch_connections",
    "watch_requests",
    "watch_sends",
]

_START_S = 1.0
_SHARES = 3

Send = Callable[[], Awaitable[Any]]

Versions = Mapping[int, tuple[int, int]]
"""The versions that a broker knows, by the key of the API."""


def watch_connections(client: AIOKafkaClient, tell: Callable[[str, Any, float], None]) -> None:
    """Calls `tell` after each try to connect: with the broker's address, the connection or None, and how long it took.

    Args:
        client: of a consumer or producer that has not been started.
        tell: called as long as the client lives.
    """
    connect = client._get_conn

    async def watched(node_id: Any, **options: Any) -> Any:
        before = client._conns.get((node_id, options.get("group", 0)))
        if before is not None and before.connected():
            return await connect(node_id, **options)  # each request comes through here
        address = _address(client, node_id)  # asked first: the next metadata may forget it
        clock = asyncio.get_running_loop().time
        began_s = clock()
        connection = await connect(node_id, **options)
        if connection is None or connection is not before:
            tell(address, connection, clock() - began_s)
        return connection

    client._get_conn = watched


def watch_sends(
    client: AIOKafkaClient, handle: Callable[[Any, Any, Send], Awaitable[Any]], *, innermost: bool = False
) -> None:
    """Lets `handle` answer each request of each connection, those too that do not go through the client's `send`.

    It gets the connection, the request, and a function that sends it. A later handler is around the former ones, but
    for one that is to be the innermost. Otherwise as `watch_connections`; but the client may have been started.
    """

    def take_over(_: str, connection: Any, _seconds: float) -> None:
        if connection is None:
            return
        if not isinstance(connection.send, _WatchedSend):
            connection.send = _WatchedSend(connection)
        if handle not in connection.send.handlers:  # who waits for the same connection tells of it too
            handlers = connection.send.handlers
            handlers.insert(0 if innermost else len(handlers), handle)

    for connection in client._conns.values():
        take_over("", connection, 0.0)
    watch_connections(client, take_over)


class _WatchedSend:
    """The `send` of one connection of aiokafka.

    Args:
        connection: it must not hold itself, and so is not held here.

    Attributes:
        handlers: of its requests, the outer ones last.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = weakref.ref(connection)
        self.handlers: list[Callable[[Any, Any, Send], Awaitable[Any]]] = []

    def __call__(self, request: Any, expect_response: bool = True) -> Any:  # noqa: FBT001, FBT002  # as aiokafka's
        connection = self._connection()
        assert connection is not None  # it is called by way of the connection
        send: Send = partial(type(connection).send, connection, request, expect_response=expect_response)
        for handle in self.handlers:
            send = partial(handle, connection, request, send)
        return send()


def time_out_in_any_case(client: AIOKafkaClient) -> None:
    """Lets a request of a client that has not been started time out, too, while another one connects again.

    aiokafka closes its connection then. If another request has found that closed and forgotten it, it raises KeyError,
    which ends the tasks that fetch and send.
    """
    send = client.send

    async def sent(node_id: Any, request: Any, **options: Any) -> Any:
        try:
            return await send(node_id, request, **options)
        except KeyError as exc:
            if not isinstance(exc.__context__, TimeoutError):
                raise
            raise RequestTimedOutError from exc

    client.send = sent


def share_start(client: AIOKafkaClient) -> None:
    """Lets the addresses of `bootstrap.servers` share the time of a request when the client starts, three at most.

    aiokafka gives it to each of them. So one that never answers would leave nothing to the others, where the start is
    bounded by such a time. Of more than three, each still gets a third, as a login takes its time.

    Args:
        client: it has not been started.
    """
    bootstrap = client.bootstrap

    async def started() -> None:
        whole_ms = client._request_timeout_ms
        client._request_timeout_ms = whole_ms // (min(len(client.hosts), _SHARES) or 1)
        try:
            await bootstrap()
        finally:
            client._request_timeout_ms = whole_ms

    client.bootstrap = started


def leave_no_connection(client: AIOKafkaClient) -> None:
    """Lets no connection stay open when the client, which has not been started, is closed in the middle of something.

    aiokafka forgets the connection of a start that is cancelled, and keeps one that opens behind the close. Either ends
    with a traceback when its memory is freed. So a start that is cancelled goes on until it has its answer, for a
    second at most.
    """
    connect, close, bootstrap = client._get_conn, client.close, client.bootstrap
    ended: list[bool] = []

    async def closing() -> None:
        ended.append(True)
        await close()

    async def connected(node_id: Any, **options: Any) -> Any:
        connection = await connect(node_id, **options)
        if ended and connection is not None:
            connection.close()
            return None
        return connection

    async def started() -> None:
        start = asyncio.get_running_loop().create_task(bootstrap())
        try:
            await shielded(start)
        except asyncio.CancelledError:
            try:
                await asyncio.wait([start], timeout=_START_S)
            finally:
                start.cancel()
            raise

    client._get_conn, client.close, client.bootstrap = connected, closing, started


async def close_for_good(client: AIOKafkaClient) -> None:
    """Closes a client so that whatever still asks it for something fails soon, or goes on.

    aiokafka's connects again, and what waits for its next metadata, which never comes, would wait for ever.
    """
    await client.close()
    client._get_conn = _no_connection
    looking = client._md_update_fut or asyncio.get_running_loop().create_future()
    if not looking.done():
        looking.set_result(False)
    client._md_update_fut = looking


async def _no_connection(*_: object, **__: object) -> None:
    """As `_get_conn` of a client whose brokers do not answer."""


def watch_requests(client: AIOKafkaClient, handle: Callable[[str, Any, Send], Awaitable[Any]]) -> None:
    """Lets `handle` answer each request: it gets the broker's address, the request, and a function that sends it.

    A later handler is around the former ones. Otherwise as `watch_connections`.
    """
    send = client.send

    async def watched(node_id: Any, request: Any, **options: Any) -> Any:
        return await handle(_address(client, node_id), request, lambda: send(node_id, request, **options))

    client.send = watched


@contextmanager
def prepared(request: Any, change: Callable[[Any], None]) -> Iterator[None]:
    """While a request is sent, lets `change` alter what aiokafka makes of it for the version of a broker."""

    def changed(struct: Any, _: Versions) -> Any:
        change(struct)
        return struct

    with remade(request, changed):
        yield


@contextmanager
def remade(request: Any, change: Callable[[Any, Versions], Any]) -> Iterator[None]:
    """While a request is sent, lets `change` send something else: from what aiokafka makes of it, and the versions.

    An inner `change` gets what the outer ones have made.
    """
    before, prepare = vars(request).get("prepare"), request.prepare
    request.prepare = lambda versions: change(prepare(versions), versions)
    try:
        yield
    finally:
        # They hold each other, and what was sent, until the next collection of cycles.
        if before is None:
            del request.prepare
        else:
            request.prepare = before


def _address(client: AIOKafkaClient, node_id: Any) -> str:
    """Host and port of a broker, for people; its number if the client does not know them."""
    broker = client.cluster.broker_metadata(node_id)
    return f"{broker.host}:{broker.port}" if broker is not None else f"number {node_id}"
