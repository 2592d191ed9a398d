"""A client whose requests and connections are watched."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import RequestTimedOutError
from aiokafka.protocol.metadata import MetadataRequest, MetadataResponse_v5
from aiokafka.structs import BrokerMetadata

from app.kafka.watched_client import (
    Send,
    close_for_good,
    leave_no_connection,
    prepared,
    remade,
    time_out_in_any_case,
    watch_connections,
    watch_requests,
    watch_sends,
)


async def test_handlers_are_around_each_other() -> None:
    """The last one is asked first; each gets the broker's address, and decides what the caller gets."""
    client, seen = AIOKafkaClient(), []

    async def answer(node_id: int, request: str, *, group: int = 0) -> str:
        return f"{request} {node_id} {group}"

    def handler(name: str) -> Any:
        async def handle(address: str, request: str, send: Send) -> str:
            seen.append((name, address, request))
            return f"{name}({await send()})"

        return handle

    client.send = answer
    watch_requests(client, handler("first"))
    watch_requests(client, handler("last"))
    assert await client.send(7, "ping", group=1) == "last(first(ping 7 1))"
    assert seen == [("last", "number 7", "ping"), ("first", "number 7", "ping")]


async def test_connections_are_told_once() -> None:
    """A connection that is open already is not told again."""
    client: Any = AIOKafkaClient()
    client.cluster.update_metadata(MetadataResponse_v5(0, [(1, "b1", 9, None)], None, 1, []))
    told: list[tuple[object, ...]] = []
    connection: Connection | None = None

    class Connection:
        def connected(self) -> bool:
            return True

    async def connect(node_id: int, *, group: int = 0) -> object | None:
        client._conns[node_id, group] = connection
        return connection

    client._get_conn = connect
    watch_connections(client, lambda address, reached, seconds: told.append((address, reached, seconds < 1)))
    assert await client._get_conn(1) is None
    connection = Connection()
    for _ in range(2):
        assert await client._get_conn(1, group=1) is connection
    assert told == [("b1:9", None, True), ("b1:9", connection, True)]


async def test_each_request_of_a_connection_is_handled_once() -> None:
    """By each handler, though several callers waited for the connection and were all told of it.

    The last one is asked first, but for one that stays next to the connection.
    """
    client, opened, seen = AIOKafkaClient(), asyncio.Event(), []

    class Connection:
        async def send(self, request: str, expect_response: bool = True) -> str:  # noqa: FBT001, FBT002
            return f"{request}, {expect_response}"

    only = Connection()

    async def connect(_: int) -> Connection:
        await opened.wait()
        return only

    def handler(name: str) -> Any:
        async def handle(connection: object, request: str, send: Send) -> str:
            assert connection is only
            seen.append((name, request))
            return f"{name}({await send()})"

        return handle

    client._get_conn = connect
    watch_sends(client, handler("first"))
    watch_sends(client, handler("inner"), innermost=True)
    watch_sends(client, handler("last"))
    waiting = [asyncio.create_task(client._get_conn(1)) for _ in range(2)]
    opened.set()
    assert await asyncio.gather(*waiting) == [only, only]
    assert await only.send("ping") == "last(first(inner(ping, True)))"
    assert seen == [("last", "ping"), ("first", "ping"), ("inner", "ping")]


async def test_connection_that_comes_too_late_is_closed() -> None:
    """A client that is closed while it connects leaves no open connection behind."""
    client: Any = AIOKafkaClient()
    began, opened, closed = asyncio.Event(), asyncio.Event(), []

    class Connection:
        def close(self) -> None:
            closed.append(self)

    async def connect(node_id: int) -> Connection:
        began.set()
        await opened.wait()
        return Connection()

    client._get_conn = connect
    leave_no_connection(client)
    opening = asyncio.create_task(client._get_conn(1))
    await began.wait()
    await client.close()
    opened.set()
    assert await opening is None
    assert len(closed) == 1


def test_requests_are_remade_within_each_other() -> None:
    """An inner change gets what the outer one has made; behind each block the request is as it was before."""
    request = MetadataRequest(["t"])
    versions = {3: (0, 5)}
    told: list[Any] = []

    def other(struct: Any, known: Any) -> str:
        told.append((struct.topics, known))
        return "another"

    with prepared(request, lambda struct: setattr(struct, "topics", ["u"])):
        with remade(request, other):
            assert request.prepare(versions) == "another"
        assert request.prepare(versions).topics == ["u"]
    assert told == [(["u"], versions)]
    assert request.prepare(versions).topics == ["t"]
    assert "prepare" not in vars(request)


async def test_a_closed_client_keeps_nobody_waiting() -> None:
    """A batch that has failed waits for the next look at the cluster, which never comes: its task would stay."""
    client = AIOKafkaClient()
    look = client.force_metadata_update()
    await close_for_good(client)
    await asyncio.sleep(0)
    assert look.done()
    assert not await client.force_metadata_update()
    assert not await client.ready(1)


async def test_a_client_that_is_closed_for_good_stays_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What asks it for metadata, or for a connection, goes on without: it would wait for ever, or connect again."""
    tried: list[str] = []
    monkeypatch.setattr("aiokafka.client.create_conn", lambda host, *_, **__: tried.append(host))
    client = AIOKafkaClient()
    monkeypatch.setattr(client.cluster, "broker_metadata", lambda _: BrokerMetadata(1, "broker", 9092, None))
    await close_for_good(client)
    assert not await asyncio.wait_for(client.force_metadata_update(), 20)
    assert not await client.ready(1)
    assert tried == []


class _SilentConnection:
    """One that never answers, and that another request forgets meanwhile."""

    def __init__(self, client: AIOKafkaClient) -> None:
        self._client = client

    def connected(self) -> bool:
        return True

    async def send(self, request: object, *, expect_response: bool) -> None:
        self._client._conns.clear()
        raise TimeoutError


async def test_a_request_times_out_though_its_connection_is_forgotten() -> None:
    """aiokafka closes the connection of a request that has timed out; there may be none, or a KeyError of another."""
    client = AIOKafkaClient()
    time_out_in_any_case(client)
    client._conns[1, 0] = _SilentConnection(client)
    with pytest.raises(RequestTimedOutError):
        await client.send(1, MetadataRequest([]), group=0)
    with pytest.raises(KeyError, match="of another"):
        await _failing(KeyError("of another"))


async def _failing(error: Exception) -> None:
    client = AIOKafkaClient()

    async def fail(*_: object, **__: object) -> None:
        raise error

    client.send = fail
    time_out_in_any_case(client)
    await client.send(1, MetadataRequest([]), group=0)
