"""Which brokers do not answer, as it follows from what clients are told, and the waits that they ask for."""

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

from app.kafka import broker_health
from app.kafka.broker_health import BrokerHealth
from app.kafka.troubles import OF_BROKERS, REFUSED, Troubles
from tests.app.kafka.wired import Clock, Wire, wired

JOIN = JoinGroupRequest.__new__(JoinGroupRequest)


class Watched(AIOKafkaClient):  # type: ignore[misc]  # aiokafka has no types
    """A client whose connections and answers the test decides on, and the `brokers` that watch it by a `clock`."""

    def __init__(self) -> None:
        super().__init__(bootstrap_servers="boot:1")
        self.connects = True
        self.answer: Any = None
        self.meet()
        self.clock, self.waits = Clock(), list[float]()
        troubles = Troubles("p", self.clock)
        self.brokers = BrokerHealth(["t"], 0.5, troubles, throttled=self.waits.append)
        self.brokers.watch(self)

    def meet(self, *numbers: int, leader: int = 1) -> None:
        """Metadata with these brokers."""
        brokers = [(number, f"b{number}", 9, None) for number in numbers or (1,)]
        partitions: list[Any] = [(0, 0, 1, [1], [1], []), (0, 1, leader, [1], [1], [])]
        self.cluster.update_metadata(MetadataResponse_v5(0, brokers, None, 1, [(0, "t", False, partitions)]))

    @property
    def told(self) -> str:
        """What is reported now."""
        return str(self.brokers.troubles.text(*OF_BROKERS))

    @property
    def since(self) -> str | None:
        """Since when, by the clock of the test, it is reported that a broker does not answer."""
        if self.told == "None":
            return None
        ago_s = (datetime.now(UTC) - datetime.fromisoformat(self.told.rpartition(" ")[2])).total_seconds()
        return f"{self.clock.now_s - ago_s:.0f}"

    async def silence(self, seconds: float) -> str:
        """What is said if no broker has answered for so long."""
        return await asyncio.wait_for(self.brokers.silent(seconds), 0.01)

    async def _get_conn(self, node_id: int, *, group: int = 0, no_hint: bool = False) -> Any:
        if self.connects:
            self._conns[node_id, group] = Wire(self._answer)
        return self._conns.get((node_id, group))

    async def _answer(self, _: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return await self.answer() if callable(self.answer) else self.answer


@pytest.fixture
async def client() -> Watched:
    return Watched()


async def test_trouble_ends_with_the_next_connection(client: Watched) -> None:
    """A broker that cannot be connected to does not answer, since the first time; once it can, all is well."""
    client.connects = False
    assert not await client.ready(1)
    assert client.told.startswith("broker b1:9 does not answer since 20")
    client.clock.now_s += 5
    assert (await client.silence(5)).startswith("no broker answers since 20")
    client.clock.now_s += 25
    assert not await client.ready(1)
    client.clock.now_s += 40
    assert client.told != "None", "reported again 40 s ago"
    client.connects = True
    assert await client.ready(1)
    assert client.told == "None"
    client.clock.now_s += 60
    with pytest.raises(TimeoutError):
        await client.silence(5)


async def test_trouble_of_a_request_without_an_answer(client: Watched) -> None:
    """One that waits for its answer is told of before it times out; one that may wait is not."""
    seen: list[str] = []

    async def late() -> None:
        for _ in range(2):
            seen.append(client.told)
            client.clock.now_s += 10.6

    client.answer = late
    await client.send(1, object())
    await client.send(1, JOIN)
    assert [each != "None" for each in seen] == [False, True, False, False]
    assert client.told == "None"


async def test_a_broker_does_not_answer_since_it_was_asked_first(client: Watched) -> None:
    """The time that is reported stays, whether a request is still waiting or has timed out, until an answer comes."""
    seen: set[str | None] = set()

    async def hang() -> None:
        for _ in range(4):
            client.clock.now_s += 10.5
            seen.add(client.since)
        raise RequestTimedOutError

    client.answer = hang
    for gap in (0.0, 1.0, 200.0):  # for the last one, nobody asks for longer than a broker is reported
        client.clock.now_s += gap
        with pytest.raises(RequestTimedOutError):
            await client.send(1, object())
        seen.add(client.since)
    assert seen <= {None, "99", "100"}, "its text has whole seconds"
    assert len(seen) > 1
    client.answer = None
    await client.send(1, object())
    assert client.told == "None"


async def test_trouble_of_a_broker_that_nobody_needs(client: Watched) -> None:
    """A broker that has left the cluster, or that nobody has asked for a minute, is no trouble."""
    client.connects = False
    await client.ready(1)
    seen = []
    for numbers, passes_s in (((2,), 0), ((1, 2), 0), ((1, 2), 60)):
        client.meet(*numbers)
        client.clock.now_s += passes_s
        seen.append(client.told != "None")
    assert seen == [False, True, False]


async def test_trouble_of_a_partition_without_a_leader(client: Watched) -> None:
    """A partition that has no leader holds its records up, though each broker answers."""
    client.meet(leader=-1)
    assert client.told.startswith("topic t, partition 1 without a leader since 20")
    client.meet()
    assert client.told == "None"


async def test_writes_that_are_refused_for_too_few_replicas(client: Watched) -> None:
    """They are reported by topic, since the first one, until a write to the same partition is answered otherwise."""
    request = ProduceRequest(required_acks=-1, timeout=1, topics=[], transactional_id=None)
    seen = []
    for code, partition in ((19, 0), (20, 1), (0, 1), (19, 0), (6, 0)):
        client.answer = SimpleNamespace(topics=[("t", [(partition, code, 0)])])
        await client.send(1, request)
        client.clock.now_s += 1
        seen.append(client.brokers.troubles.text(REFUSED))
    assert [bool(each) for each in seen] == [True, True, True, True, False]
    assert str(seen[3]).startswith("topic t accepts no records: brokers answer that fewer")


async def test_silence_began_with_the_first_request_without_an_answer(client: Watched) -> None:
    """It is as old as the request that times out, unless some broker has answered since, or the request may wait."""

    async def late(*, answered: bool = False) -> None:
        client.clock.now_s += 40
        if answered:
            client.brokers._answered("b2:9")
        raise RequestTimedOutError

    other = partial(late, answered=True)
    for request, answer, silent_s in ((object(), late, 40), (object(), other, 0), (JOIN, late, 0)):
        client.answer = answer
        client.brokers._answered("b2:9")
        with pytest.raises(RequestTimedOutError):
            await client.send(1, request)
        assert await client.silence(silent_s)
        with pytest.raises(TimeoutError):
            await client.silence(silent_s + 1)


async def test_a_refusal_of_long_ago_is_forgotten(client: Watched) -> None:
    """An answer that may mean a name counts for a minute: later errors have other reasons."""
    client.answer = SimpleNamespace(error_code=42)
    await client.send(1, object())
    client.answer = SimpleNamespace(error_code=0)
    client.clock.now_s += 59
    await client.send(1, object())
    assert client.brokers.refused == 42
    client.clock.now_s += 1
    assert client.brokers.refused is None


# --- quotas ----------------------------------------------------------------------------------------------------------


async def test_waits_for_a_quota_are_told(client: Watched) -> None:
    """A broker that lets a client wait is not away, and is told if the waits last; others are counted too."""
    own: list[float] = []
    client.brokers.watch(client, own.append)
    for seconds, wait_ms in ((0.0, 4_000), (4.5, 8_000)):
        client.clock.now_s += seconds
        client.answer = SimpleNamespace(throttle_time_ms=wait_ms)
        await client.send(1, "produce")
        assert client.told == "None"
    assert client.waits == own == [4.0, 8.0]
    client.clock.now_s += 6
    assert client.told.startswith("broker b1:9 makes this client wait for a quota since 20")
    assert client.told.endswith(" (producer_byte_rate, consumer_byte_rate or request_percentage)")
    client.clock.now_s += 3
    assert client.told == "None"


def throttled(*waits_ms: int) -> Wire:
    """A connection whose broker asks for these waits, one with each answer."""
    waits = list(waits_ms)

    async def answer(_: Any) -> Any:
        return SimpleNamespace(throttle_time_ms=waits.pop(0))

    return Wire(answer)


async def test_requests_wait_as_long_as_the_broker_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed connection lets none wait any longer, and other connections go on meanwhile."""
    monkeypatch.setattr(broker_health, "_CLOSED_S", 0)
    held, free, clock = throttled(600_000, 600_000, 0), throttled(0), Clock()
    client = wired(held, free)
    BrokerHealth((), 0.5, Troubles("p", clock)).watch(client)
    await client.send(1, "first")
    second = asyncio.create_task(client.send(1, "second"))
    clock.now_s += 599.9
    await client.send(2, "heartbeat")
    for _ in range(9):
        await asyncio.sleep(0)
    assert held.asked == ["first"]
    clock.now_s += 0.1
    await asyncio.wait_for(second, 60)
    late = asyncio.create_task(client.send(1, "late"))
    await asyncio.sleep(0)
    assert held.asked == ["first", "second"]
    held.close()
    await asyncio.wait_for(late, 60)
    assert held.asked[-1] == "late"


async def test_requests_that_wait_keep_their_order() -> None:
    """As without a wait: of two commits of offsets the later one counts."""
    wire = throttled(100, *[0] * 300)
    client = wired(wire)
    BrokerHealth((), 0.5, Troubles("p")).watch(client)
    await client.send(1, "first")
    await asyncio.gather(*(client.send(1, number) for number in range(300)))
    assert wire.asked == ["first", *range(300)]
