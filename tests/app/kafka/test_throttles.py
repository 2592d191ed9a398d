"""The waits that brokers ask for."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from app.kafka.broker_health import BrokerHealth
from app.kafka.troubles import Troubles
from tests.app.kafka.wired import Wire, wired


def throttled(*waits_ms: int) -> Wire:
    """A connection whose broker asks for these waits, one with each answer."""
    waits = list(waits_ms)

    async def answer(_: Any) -> Any:
        return SimpleNamespace(throttle_time_ms=waits.pop(0))

    return Wire(answer)


async def test_requests_wait_as_long_as_the_broker_says() -> None:
    """A connection is asked nothing while its broker does not read from it; other connections are."""
    held, free = throttled(200, 0), throttled(0)
    client = wired(held, free)
    BrokerHealth((), 0.5, Troubles("p")).watch(client)
    await client.send(1, "produce")
    began_s = time.monotonic()
    again = asyncio.create_task(client.send(1, "produce"))
    await client.send(2, "heartbeat")
    assert (held.asked, free.asked) == (["produce"], ["heartbeat"])
    await again
    assert time.monotonic() - began_s >= 0.19


async def test_requests_that_wait_keep_their_order() -> None:
    """As without a wait: of two commits of offsets the later one counts."""
    wire = throttled(100, *[0] * 300)
    client = wired(wire)
    BrokerHealth((), 0.5, Troubles("p")).watch(client)
    await client.send(1, "first")
    await asyncio.gather(*(client.send(1, number) for number in range(300)))
    assert wire.asked == ["first", *range(300)]


async def test_requests_do_not_wait_on_a_connection_that_is_closed() -> None:
    """They fail, as all do there: a producer that is stopped leaves no task for as long as the broker wants it to wait.

    The simulation's seeds 174 and 5101 at 71df1f1: `Sender._send_produce_req` was left.
    """
    wire = throttled(600_000, 0)
    client = wired(wire)
    BrokerHealth((), 0.5, Troubles("p")).watch(client)
    await client.send(1, "first")
    waiting = asyncio.create_task(client.send(1, "second"))
    await asyncio.sleep(0)
    assert wire.asked == ["first"]
    wire.close()
    await asyncio.wait_for(waiting, 60)
    assert wire.asked == ["first", "second"]
