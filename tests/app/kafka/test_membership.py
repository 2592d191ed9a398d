"""Membership of a group, at brokers of which some do not answer."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.group import JoinGroupRequest, SyncGroupRequest
from aiokafka.protocol.metadata import MetadataResponse_v5

from app.kafka import membership
from app.kafka.gate import Gate
from app.kafka.membership import Coordinator, Membership
from tests.app.kafka.wired import Wire, wired

FIND_COORDINATOR, LEAVE_GROUP, API_VERSIONS = 10, 13, 18
EVERYTHING = (FIND_COORDINATOR, LEAVE_GROUP, API_VERSIONS)
NOT_COORDINATOR, UNKNOWN_MEMBER, NOT_ALLOWED = 16, 25, 30


class Broker:
    """Calls a broker the coordinator, and answers a member that leaves by an error.

    Requests that it `swallows` it never answers, as if its machine was gone; `asked` are the keys of all.
    """

    def __init__(self, coordinator: int, *, swallows: Collection[int] = (), error: int = 0) -> None:
        self._answers = {
            FIND_COORDINATOR: struct.pack(">hihi", 0, coordinator, 0, 0),
            LEAVE_GROUP: struct.pack(">h", error),
            API_VERSIONS: struct.pack(">hi6h", 0, 2, FIND_COORDINATOR, 0, 0, LEAVE_GROUP, 0, 0),
        }
        self._swallows = swallows
        self.asked: list[int] = []
        self.reached = asyncio.Event()
        self.serving: list[Any] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one connection, to its end."""
        self.serving.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                key, _, number = struct.unpack_from(">hhi", await reader.readexactly(size))
                self.asked.append(key)
                self.reached.set()
                if key not in self._swallows:
                    writer.write(struct.pack(">ii", 4 + len(self._answers[key]), number) + self._answers[key])
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


class Member(Coordinator):
    """aiokafka's coordinator of a member of group `g`; `known` is the broker that it takes for the coordinator."""

    def __init__(self, client: AIOKafkaClient, known: int | None, instance_id: str | None) -> None:
        self.gate, self.client = Gate.of(client), client
        self.group_id, self.member_id, self.coordinator_id = "g", "m", known
        self._group_instance_id: Any = instance_id

    def reset_generation(self) -> None:
        """See aiokafka."""
        self.member_id = ""

    async def leave(self) -> None:
        """As at the end of a consumer."""
        await self._maybe_leave_group()
        assert self.member_id == ""


@asynccontextmanager
async def joined(*brokers: Broker, known: int | None = 1, instance_id: str | None = None) -> AsyncIterator[Member]:
    """A member of a group; brokers have the numbers 1, 2 and so on."""
    client = AIOKafkaClient()
    servers = [await asyncio.start_server(broker.serve, "127.0.0.1", 0) for broker in brokers]
    try:
        places = [(number, *server.sockets[0].getsockname(), None) for number, server in enumerate(servers, 1)]
        client.cluster.update_metadata(MetadataResponse_v5(0, places, None, 1, []))
        yield Member(client, known, instance_id)
    finally:
        await client.close()
        for server in servers:
            server.close()
        await asyncio.gather(*(task for broker in brokers for task in broker.serving))


async def test_it_leaves_beside_a_client_that_connects() -> None:
    """aiokafka connects to one broker at a time, and waits up to `request.timeout.ms` for one whose machine is gone."""
    gone, coordinator = Broker(2, swallows=EVERYTHING), Broker(2)
    async with joined(gone, coordinator, known=2) as member:
        fetching = asyncio.create_task(member.client.ready(1))
        await gone.reached.wait()
        await member.leave()
        assert not fetching.done()
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
    assert LEAVE_GROUP in coordinator.asked


@pytest.mark.parametrize(
    ("first", "known"),
    [
        ({"swallows": EVERYTHING}, 1),
        ({"swallows": (LEAVE_GROUP,)}, 1),
        ({"error": NOT_COORDINATOR, "coordinator": 3}, 1),
        ({"error": NOT_COORDINATOR, "coordinator": 3}, None),
    ],
    ids=["connects no more", "answers no more", "has moved", "is not known"],
)
async def test_it_leaves_where_the_coordinator_is_another_one(
    first: dict[str, Any], known: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are asked which broker is the coordinator now, though one of them is gone as well."""
    monkeypatch.setattr(membership, "_PATIENCE_S", 0.05)
    former, gone, coordinator = Broker(**{"coordinator": 1, **first}), Broker(1, swallows=EVERYTHING), Broker(3)
    async with joined(former, gone, coordinator, known=known) as member:
        await member.leave()
    assert former.reached.is_set() or known is None
    assert coordinator.asked[-1] == LEAVE_GROUP


@pytest.mark.parametrize("error", [0, UNKNOWN_MEMBER, NOT_ALLOWED])
async def test_it_asks_once_where_it_has_left_or_may_not(
    error: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says what it may not."""
    monkeypatch.setattr(membership, "_PATIENCE_S", 60)
    coordinator = Broker(1, error=error)
    async with joined(coordinator) as member:
        await member.leave()
    assert coordinator.asked == [API_VERSIONS, LEAVE_GROUP]
    assert ("group g could not be left" in caplog.text) == (error == NOT_ALLOWED)


async def test_it_gives_up_in_time(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A stop is quick, also where no broker answers."""
    monkeypatch.setattr(membership, "_LEAVE_S", 0.2)
    async with joined(Broker(1, swallows=EVERYTHING)) as member, asyncio.timeout(5):
        await member.leave()
    assert "group g was not left in time" in caplog.text


async def test_a_static_member_leaves_once_it_is_dynamic() -> None:
    """Before that its place is kept for it: it comes back within its session, and gets the same partitions."""
    broker = Broker(1)
    async with joined(broker, instance_id="pod-0") as member:
        await member._leave()
        assert broker.asked == []
        member.become_dynamic()
        await member.leave()
    assert LEAVE_GROUP in broker.asked


@pytest.mark.usefixtures("unlogged")
@pytest.mark.parametrize("fails", ["never", "before", "as it ends"])
async def test_heartbeat_that_has_not_begun_ends(fails: str) -> None:
    """Its CancelledError must not end the rebalance that ends it; nor need the event loop say why it has failed."""

    async def beat() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            if fails == "as it ends":
                await asyncio.sleep(60)
        raise KafkaConnectionError("it broke")

    coordinator = Coordinator.__new__(Coordinator)
    coordinator._heartbeat_task = beating = asyncio.create_task(beat())
    if fails != "never":
        await asyncio.sleep(0)
    for _ in range(2):
        await coordinator._stop_heartbeat_task()
        ended: Any = coordinator._heartbeat_task
        assert (beating.cancelled(), ended) == (fails == "never", None)


class Joining(Wire):
    """A connection to broker 1, over which a member joins; its answer comes when a test wills."""

    host, port = "broker", 1

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.answered = asyncio.get_running_loop().create_future()

    async def _answer(self, _: Any) -> Any:
        return await self.answered

    def close(self, reason: object = None, exc: BaseException | None = None) -> None:
        """Fails what waits, as aiokafka's does."""
        self.answered.set_exception(KafkaConnectionError("closed"))


@pytest.mark.parametrize("answered", [False, True])
async def test_a_join_follows_the_group_to_another_coordinator(
    monkeypatch: pytest.MonkeyPatch, *, answered: bool
) -> None:
    """A machine that is gone ends no connection: the member would wait for as long as a rebalance may take."""
    monkeypatch.setattr(membership, "_LOOK_S", 0.001)
    connection = Joining()
    client = wired(connection)
    found: list[Any] = [2, KafkaConnectionError("it broke"), 1, 2, 1, 7, 2, 2]  # broker 7 is not known

    async def look_up(*_: object) -> int:
        if answered and len(found) == 1:
            connection.answered.set_result(SimpleNamespace(error_code=0))
        node = found.pop(0)
        if isinstance(node, Exception):
            raise node
        return int(node)

    monkeypatch.setattr(client, "coordinator_lookup", look_up)
    brokers = {number: SimpleNamespace(host="broker", port=number) for number in (1, 2)}
    monkeypatch.setattr(client.cluster, "broker_metadata", brokers.get)
    Membership(client, "g", 60)
    before = asyncio.all_tasks()
    joining = client.send(1, JoinGroupRequest.__new__(JoinGroupRequest))
    if answered:
        assert (await joining).error_code == 0
    else:
        with pytest.raises(KafkaConnectionError, match="closed"):
            await joining
    assert (found, asyncio.all_tasks()) == ([], before)


@pytest.mark.parametrize(("code", "told"), [(14, 27), (0, 0), (16, 16)])
async def test_a_coordinator_that_loads_lets_a_member_join_again(code: int, told: int) -> None:
    """It has lost the rebalance that it is to end; aiokafka would end by its error."""
    connection = Joining()
    client = wired(connection)
    Membership(client, "g", 60)
    connection.answered.set_result(SimpleNamespace(error_code=code))
    response = await client.send(1, SyncGroupRequest.__new__(SyncGroupRequest))
    assert response.error_code == told
