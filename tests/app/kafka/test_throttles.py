"""The waits that brokers ask for."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from aiokafka.client import AIOKafkaClient

from app.kafka.throttles import Throttles
from app.kafka.troubles import Troubles


class Answer:
    """An answer with a time to wait."""

    def __init__(self, throttle_time_ms: int) -> None:
        self.throttle_time_ms = throttle_time_ms


class Connection:
    """One that notes when it is asked."""

    host, port = "b1", 9

    def __init__(self, *waits_ms: int) -> None:
        self._closed_fut = asyncio.get_running_loop().create_future()
        self.asked_s: list[float] = []
        self.asked: list[object] = []
        self._answers = [Answer(each) for each in waits_ms]

    async def send(self, request: object, *, expect_response: bool = True) -> Any:
        self.asked_s.append(time.monotonic())
        self.asked.append(request)
        return self._answers.pop(0)


async def test_requests_wait_as_long_as_the_broker_says() -> None:
    """A connection is asked nothing while its broker does not read from it; other connections are."""
    client: Any = AIOKafkaClient()
    held, free = Connection(200, 0), Connection(0)

    async def connect(node_id: int, *, group: int = 0) -> Connection:
        return held if node_id == 1 else free

    client._get_conn = connect
    throttles = Throttles(lambda _: None, Troubles("p"))
    throttles.watch(client)
    first: Any = await client._get_conn(1)
    other: Any = await client._get_conn(2)
    await first.send("produce")
    again = asyncio.create_task(first.send("produce"))
    await other.send("heartbeat")
    assert (held.asked, free.asked) == (["produce"], ["heartbeat"])
    await again
    before_s, after_s = held.asked_s
    assert after_s - before_s >= 0.2


async def test_requests_that_wait_keep_their_order() -> None:
    """As without a wait: of two commits of offsets the later one counts."""
    client: Any = AIOKafkaClient()
    connection = Connection(100, *[0] * 300)

    async def connect(_: int, *, group: int = 0) -> Connection:
        return connection

    client._get_conn = connect
    Throttles(lambda _: None, Troubles("p")).watch(client)
    watched: Any = await client._get_conn(1)
    await watched.send("first")
    await asyncio.gather(*(watched.send(number) for number in range(300)))
    assert connection.asked == ["first", *range(300)]


async def test_requests_do_not_wait_on_a_connection_that_is_closed() -> None:
    """They fail, as all do there: a producer that is stopped leaves no task for as long as the broker wants it to wait.

    The simulation's seeds 174 and 5101 at 71df1f1: `Sender._send_produce_req` was left.
    """
    client: Any = AIOKafkaClient()
    connection = Connection(600_000, 0)

    async def connect(_: int, *, group: int = 0) -> Connection:
        return connection

    client._get_conn = connect
    Throttles(lambda _: None, Troubles("p")).watch(client)
    watched: Any = await client._get_conn(1)
    await watched.send("first")
    waiting = asyncio.create_task(watched.send("second"))
    await asyncio.sleep(0)
    assert connection.asked == ["first"]
    connection._closed_fut.set_result(None)
    await asyncio.wait_for(waiting, 60)
    assert connection.asked == ["first", "second"]
