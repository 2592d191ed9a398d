"""The gate of a client: the order of interceptors, and what becomes of connections, starts and time-outs."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, NodeNotReadyError, RequestTimedOutError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest, MetadataResponse_v5
from aiokafka.structs import BrokerMetadata

from app.kafka import gate as gate_module
from app.kafka.admin import AdminClient
from app.kafka.gate import Call, Connect, Gate, Place, Send, create_no_topics
from tests.app.kafka.wired import Wire, wired

ROOT = Path(__file__).parents[3]
# Clients that applications configure: their library's habit stays.
OF_APPLICATIONS = ("app/serializers/", "app/chunks/", "app/kafka/configured_batches.py")
CLIENTS = {AIOKafkaConsumer.__name__, AIOKafkaProducer.__name__, AIOKafkaAdminClient.__name__}
VERSIONS = {MetadataRequest.API_KEY: (0, 12)}


async def prepared(call: Call) -> Any:
    """What goes out."""
    return call.prepare(VERSIONS)


async def test_interceptors_act_in_the_order_of_their_places() -> None:
    """However they were added: each changes what those before have made, and decides what they get."""
    seen: list[Any] = []
    client = wired(Wire(prepared))
    gate = Gate.of(client)
    assert Gate.of(client) is gate

    def handler(name: str) -> Any:
        async def handle(call: Call, send: Send) -> Any:
            def change(struct: Any, versions: Any) -> Any:
                assert versions is VERSIONS
                struct.topics = [*struct.topics, name]
                return struct

            seen.append((name, call.address))
            call.change(change)
            response = await send()
            seen.append((name, response.topics))
            return response

        return handle

    gate.set(Place.THROTTLE, {object: handler("last")})
    gate.set(Place.EPOCHS, {MetadataRequest: handler("first")})
    gate.set(Place.MEMBER, {FetchRequest: handler("another")})
    request = MetadataRequest(["t"])
    topics = ["t", "first", "last"]
    assert (await client.send(1, request)).topics == topics
    assert seen == [("first", "b1:9"), ("last", "b1:9"), ("last", topics), ("first", topics)]
    assert request.prepare(VERSIONS).topics == ["t"]

    async def past(call: Call, _: Send) -> Any:
        return await call.ask(MetadataRequest(["other"]))

    gate.set(Place.EPOCHS, {object: past})  # what an interceptor asks is nobody else's
    assert (await client.send(1, request)).topics == ["other"]


async def test_a_connection_is_opened_once() -> None:
    """Several requests may wait for it; each has the same gate. One that comes behind the close is closed."""
    client, opened, told = wired(), asyncio.Event(), list[Any]()
    client.cluster.update_metadata(MetadataResponse_v5(0, [(1, "b1", 9, None)], None, 1, []))
    wires = [Wire(prepared), Wire(prepared)]

    async def connect(node_id: int, **_: object) -> Wire:
        await opened.wait()
        if node_id == 1:
            client._conns[node_id, 0] = wires[0]
        return wires[node_id - 1]

    async def connecting(call: Call, send: Send) -> Any:
        told.append((call.address, await send()))
        return told[-1][1]

    client._get_conn = connect
    Gate.of(client).set(Place.HEALTH, {Connect: connecting})
    waiting = [asyncio.create_task(client.send(1, MetadataRequest([]))) for _ in range(2)]
    await asyncio.sleep(0)
    opened.set()
    await asyncio.gather(*waiting)
    await client.send(1, MetadataRequest([]))
    assert told == [("b1:9", wires[0])] * 2
    assert len(wires[0].asked) == 3
    opened.clear()
    opening = asyncio.create_task(client._get_conn(2))
    await asyncio.sleep(0)
    client._conns.clear()
    await client.close()
    opened.set()
    assert await opening is None
    assert not wires[1].open


async def test_a_closed_client_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for its next metadata, which never comes, goes on, and what asks it for a connection gets none."""
    tried: list[str] = []
    monkeypatch.setattr("aiokafka.client.create_conn", lambda host, *_, **__: tried.append(host))
    client = AIOKafkaClient()
    Gate.of(client)
    monkeypatch.setattr(client.cluster, "broker_metadata", lambda _: BrokerMetadata(1, "broker", 9092, None))
    look = client.force_metadata_update()
    await client.close()
    await asyncio.sleep(0)
    assert look.done()
    assert not await asyncio.wait_for(client.force_metadata_update(), 20)
    with pytest.raises(NodeNotReadyError):
        await client.send(1, MetadataRequest([]))
    assert tried == []


async def test_a_request_times_out_though_its_connection_is_forgotten() -> None:
    """aiokafka would raise KeyError; the connection is closed."""

    async def hang(_: Call) -> None:
        client._conns.clear()
        raise TimeoutError

    wire = Wire(hang)
    client = wired(wire)
    Gate.of(client)
    with pytest.raises(RequestTimedOutError):
        await client.send(1, MetadataRequest([]))
    assert not wire.open


@pytest.mark.parametrize(("addresses", "parts"), [(1, 1), (2, 2), (3, 3), (4, 3)])
async def test_addresses_share_the_start(addresses: int, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that never answers leaves time to the others; after the start a request has its whole time."""
    shares: list[int] = []

    async def connect(_host: str, _port: int, **options: Any) -> None:
        shares.append(options["request_timeout_ms"])
        raise ConnectionRefusedError

    monkeypatch.setattr("aiokafka.client.create_conn", connect)
    client = AIOKafkaClient(bootstrap_servers=["b:1"] * addresses, request_timeout_ms=9_000)
    Gate.of(client)
    with pytest.raises(KafkaError):
        await client.bootstrap()
    assert shares == [9_000 // parts] * addresses
    assert client._request_timeout_ms == 9_000


@pytest.mark.parametrize("outcome", ["answered", "cancelled"])
async def test_a_start_that_is_cancelled_leaves_nothing(outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets a moment for its answer; aiokafka would forget the connection, and leave it open."""
    began, let, ended = asyncio.Event(), asyncio.Event(), list[str]()

    async def connect(*_: object, **__: object) -> None:
        began.set()
        try:
            await let.wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        ended.append("answered")
        raise ConnectionRefusedError

    monkeypatch.setattr("aiokafka.client.create_conn", connect)
    monkeypatch.setattr(gate_module, "_START_S", 5 if outcome == "answered" else 0.01)
    client = AIOKafkaClient(bootstrap_servers="b:1")
    Gate.of(client)
    starting = asyncio.create_task(client.bootstrap())
    await began.wait()
    starting.cancel()
    if outcome == "answered":
        asyncio.get_running_loop().call_later(0.01, let.set)
    with pytest.raises(asyncio.CancelledError):
        await starting
    await asyncio.sleep(0)
    assert ended == [outcome]


@pytest.mark.parametrize("make", [AIOKafkaConsumer, AIOKafkaProducer, AdminClient])
async def test_no_request_creates_a_topic(make: Any) -> None:
    """Whatever the client asks for by name, a topic that does not exist stays so."""
    made = create_no_topics(make())
    client: AIOKafkaClient = made.client if make is AIOKafkaProducer else made._client
    client._conns[1, 0] = Wire(prepared)
    sent: Any = await client.send(1, MetadataRequest(["deleted"]))
    assert (sent.topics, sent.allow_auto_topic_creation) == (["deleted"], False)
    client._conns.clear()
    await (made.close() if make is AdminClient else made.stop())


def test_each_client_of_ours_is_made_so() -> None:
    """Where one is made, it goes to `create_no_topics` in the same function."""
    missing = []
    for path in (path for folder in ("app", "jobs") for path in (ROOT / folder).rglob("*.py")):
        place = str(path.relative_to(ROOT))
        if place.startswith(OF_APPLICATIONS):
            continue
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                called = {getattr(each.func, "id", "") for each in ast.walk(function) if isinstance(each, ast.Call)}
                if called & CLIENTS and create_no_topics.__name__ not in called:
                    missing.append(f"{place}: {function.name}")
    assert missing == []
