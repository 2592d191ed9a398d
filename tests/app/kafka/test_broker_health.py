"""Which brokers do not answer, as it follows from what clients are told."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import RequestTimedOutError
from aiokafka.protocol.group import JoinGroupRequest
from aiokafka.protocol.metadata import MetadataResponse_v5
from aiokafka.protocol.produce import ProduceRequest

from app.kafka.broker_health import BrokerHealth
from app.kafka.troubles import OF_BROKERS, REFUSED, Troubles
from tests.app.kafka.wired import Wire


class Client(AIOKafkaClient):  # type: ignore[misc]  # aiokafka has no types
    """A client whose connections and answers the test decides on."""

    def __init__(self) -> None:
        super().__init__(bootstrap_servers="boot:1")
        self.connects = True
        self.answer: Any = None
        self.leader = 1
        self.meet()

    def meet(self, *numbers: int) -> None:
        """Metadata with these brokers."""
        brokers = [(number, f"b{number}", 9, None) for number in numbers or (1,)]
        partitions: list[Any] = [(0, 0, 1, [1], [1], []), (0, 1, self.leader, [1], [1], [])]
        self.cluster.update_metadata(MetadataResponse_v5(0, brokers, None, 1, [(0, "t", False, partitions)]))

    async def _get_conn(self, node_id: int, *, group: int = 0, no_hint: bool = False) -> Any:
        if self.connects:
            self._conns[node_id, group] = Wire(self._answer)
        return self._conns.get((node_id, group))

    async def _answer(self, _: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return await self.answer() if callable(self.answer) else self.answer


JOIN = JoinGroupRequest.__new__(JoinGroupRequest)


@pytest.fixture
def now() -> list[float]:
    """The clock, to be set."""
    return [100.0]


def told(brokers: BrokerHealth) -> str | None:
    """What it says now."""
    return brokers.troubles.text(*OF_BROKERS)


def since(brokers: BrokerHealth, now: list[float]) -> str | None:
    """Since when, by the clock of the test, it reports that a broker does not answer."""
    text = told(brokers)
    if text is None:
        return None
    ago_s = (datetime.now(UTC) - datetime.fromisoformat(text.rpartition(" ")[2])).total_seconds()
    return f"{now[0] - ago_s:.0f}"


async def watched(now: list[float]) -> tuple[BrokerHealth, Client]:
    """Brokers, and the one client that they watch."""
    brokers, client = BrokerHealth(["t"], 0.5, Troubles("p", lambda: now[0])), Client()
    brokers.watch(client)
    return brokers, client


async def test_trouble_ends_with_the_next_connection(now: list[float]) -> None:
    """A broker that cannot be connected to does not answer, since the first time; once it can, all is well."""
    brokers, client = await watched(now)
    client.connects = False
    assert not await client.ready(1)
    first = told(brokers)
    assert first is not None
    assert first.startswith("broker b1:9 does not answer since 20")
    now[0] += 30
    assert not await client.ready(1)
    now[0] += 40
    assert told(brokers) is not None  # told again 40 s ago
    client.connects = True
    assert await client.ready(1)
    assert told(brokers) is None


async def test_trouble_of_a_request_that_timed_out(now: list[float]) -> None:
    """A broker that takes a request and does not answer it is told of, until it answers one."""
    brokers, client = await watched(now)
    client.answer = RequestTimedOutError()
    with pytest.raises(RequestTimedOutError):
        await client.send(1, object())
    assert "b1:9" in str(told(brokers))
    client.answer = None
    await client.send(1, object())
    assert told(brokers) is None


async def test_trouble_of_a_request_without_an_answer(now: list[float]) -> None:
    """One that waits for its answer is told of before it times out; one that may wait is not."""
    brokers, client = await watched(now)
    seen: list[str | None] = []

    async def late() -> None:
        for _ in range(2):
            seen.append(told(brokers))
            now[0] += 10.6

    client.answer = late
    await client.send(1, object())
    await client.send(1, JOIN)
    assert [bool(each) for each in seen] == [False, True, False, False]
    assert told(brokers) is None


async def test_a_broker_does_not_answer_since_it_was_asked_first(now: list[float]) -> None:
    """The time that is reported stays, whether a request is still waiting or has timed out, until an answer comes."""
    brokers, client = await watched(now)
    seen: set[str | None] = set()

    async def hang() -> None:
        for _ in range(4):
            now[0] += 10.5
            seen.add(since(brokers, now))
        raise RequestTimedOutError

    client.answer = hang
    for gap in (0.0, 1.0, 200.0):  # for the last one, nobody asks for longer than a broker is reported
        now[0] += gap
        with pytest.raises(RequestTimedOutError):
            await client.send(1, object())
        seen.add(since(brokers, now))
    assert seen <= {None, "99", "100"}, "its text has whole seconds"
    assert len(seen) > 1
    client.answer = None
    await client.send(1, object())
    assert told(brokers) is None


async def test_trouble_of_a_broker_that_nobody_needs(now: list[float]) -> None:
    """A broker that has left the cluster, or that nobody has asked for a minute, is no trouble."""
    brokers, client = await watched(now)
    client.connects = False
    await client.ready(1)
    client.meet(2)
    assert told(brokers) is None
    client.meet(1, 2)
    assert told(brokers) is not None
    now[0] += 60
    assert told(brokers) is None


async def test_trouble_of_a_partition_without_a_leader(now: list[float]) -> None:
    """A partition that has no leader holds its records up, though each broker answers."""
    brokers, client = await watched(now)
    client.leader = -1
    client.meet()
    assert str(told(brokers)).startswith("topic t, partition 1 without a leader since 20")
    client.leader = 1
    client.meet()
    assert told(brokers) is None


async def test_silence_ends_with_the_answer_of_any(now: list[float]) -> None:
    """None answers for so long only where nobody has answered meanwhile."""
    brokers, client = await watched(now)
    client.connects = False
    await client.ready(1)
    now[0] += 5
    assert (await asyncio.wait_for(brokers.silent(5), 1)).startswith("no broker answers since 20")
    client.connects = True
    await client.ready(1)
    now[0] += 60
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(brokers.silent(5), 0.01)


async def test_writes_that_are_refused_for_too_few_replicas(now: list[float]) -> None:
    """They are reported by topic, since the first one, until a write to the same partition is answered otherwise."""
    brokers, client = await watched(now)
    request = ProduceRequest(required_acks=-1, timeout=1, topics=[], transactional_id=None)

    async def write(code: int, partition: int) -> None:
        client.answer = SimpleNamespace(topics=[("t", [(partition, code, 0)])])
        await client.send(1, request)
        now[0] += 1

    await write(19, 0)
    await write(20, 1)
    await write(0, 1)
    await write(19, 0)
    assert str(brokers.troubles.text(REFUSED)).startswith("topic t accepts no records: brokers answer that fewer")
    await write(6, 0)
    assert brokers.troubles.text(REFUSED) is None


async def test_silence_began_with_the_first_request_without_an_answer(now: list[float]) -> None:
    """It is as old as the request that times out, unless some broker has answered since, or the request may wait."""
    brokers, client = await watched(now)

    async def late(*, answered: bool = False) -> None:
        now[0] += 40
        if answered:
            brokers._answered("b2:9")
        raise RequestTimedOutError

    other = partial(late, answered=True)
    for request, answer, silent_s in ((object(), late, 40), (object(), other, 0), (JOIN, late, 0)):
        client.answer = answer
        brokers._answered("b2:9")
        with pytest.raises(RequestTimedOutError):
            await client.send(1, request)
        assert await asyncio.wait_for(brokers.silent(silent_s), 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(brokers.silent(silent_s + 1), 0.01)


async def test_waits_for_a_quota(now: list[float]) -> None:
    """A broker that lets a client wait is not away, and is told if the waits last; others are counted too."""
    waits: list[float] = []
    brokers, client = BrokerHealth(["t"], 0.5, Troubles("p", lambda: now[0]), throttled=waits.append), Client()
    own: list[float] = []
    brokers.watch(client, own.append)
    for seconds, wait_ms in ((0.0, 4_000), (4.5, 8_000)):
        now[0] += seconds
        client.answer = SimpleNamespace(throttle_time_ms=wait_ms)
        await client.send(1, "produce")
        assert told(brokers) is None
    assert waits == own == [4.0, 8.0]
    now[0] += 6
    said = str(told(brokers))
    assert said.startswith("broker b1:9 lets this client wait for a quota since 20")
    assert said.endswith(" (producer_byte_rate, consumer_byte_rate or request_percentage)")
    now[0] += 3
    assert told(brokers) is None


async def test_a_refusal_of_long_ago_is_forgotten(now: list[float]) -> None:
    """An answer that may mean a name counts for a minute: later errors have other reasons."""
    brokers, client = await watched(now)
    client.answer = SimpleNamespace(error_code=42)
    await client.send(1, object())
    client.answer = SimpleNamespace(error_code=0)
    now[0] += 59
    await client.send(1, object())
    assert brokers.refused == 42
    now[0] += 1
    assert brokers.refused is None
