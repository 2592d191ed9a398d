"""How long a rebalance stops a large group: `python -m benchmarks.rebalance --members 20 --members 100`.

All members are consumers in this one process, on one embedded broker. So it is a simulation: the group's protocol is
real, the network and the machines are not. A member that joins asks all others to join again; what is measured is the
longest time that any of them stood without partitions.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Self

import click
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from app.local.broker import EmbeddedBroker

_GROUP = "large"
_SESSION_MS = 45_000
_WAIT_S = 300.0


class _Stops(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """How long its member stood without partitions."""

    def __init__(self) -> None:
        self.since_s: float | None = None
        self.longest_s = 0.0
        self.assigned = asyncio.Event()

    async def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:  # noqa: ARG002
        self.since_s = time.monotonic()
        self.assigned.clear()

    async def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:  # noqa: ARG002
        if self.since_s is not None:
            self.longest_s = max(self.longest_s, time.monotonic() - self.since_s)
        self.assigned.set()


class _Group:
    def __init__(self, bootstrap: str, topic: str, *, static: bool) -> None:
        self._bootstrap, self._topic, self._static = bootstrap, topic, static
        self._stack = AsyncExitStack()
        self.stops: list[_Stops] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def add(self, number: int) -> AIOKafkaConsumer:
        """A member that has asked to join."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=f"{_GROUP}-{self._topic}-{'static' if self._static else 'dynamic'}",
            group_instance_id=f"member-{number}" if self._static else None,
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=_SESSION_MS,
            enable_auto_commit=False,
        )
        stops = _Stops()
        self.stops.append(stops)
        consumer.subscribe([self._topic], listener=stops)
        await consumer.start()
        self._stack.push_async_callback(consumer.stop)
        return consumer

    async def settled(self) -> None:
        """Waits until each member has an assignment, and for a moment nothing moves."""
        async with asyncio.timeout(_WAIT_S):
            while True:
                for each in self.stops:
                    await each.assigned.wait()
                await asyncio.sleep(3)  # a heartbeat interval, in which a member may still be asked to rejoin
                if all(each.assigned.is_set() for each in self.stops):
                    return


async def _measure(bootstrap: str, members: int, *, static: bool) -> float:
    """Seconds that the other members stood still while one of them was restarted."""
    topic = f"rebalance-{members}-{'static' if static else 'dynamic'}"
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, members, 1)])
    finally:
        await admin.close()
    async with _Group(bootstrap, topic, static=static) as group:
        joined = [group.add(number) for number in range(members)]
        consumers = await asyncio.gather(*joined)
        await group.settled()
        others = group.stops[1:]
        for each in others:
            each.longest_s = 0.0
        await consumers[0].stop()  # a static member does not leave the group by this
        del group.stops[0]
        await group.add(0)
        await group.settled()
        return max(each.longest_s for each in others)


@click.command()
@click.option("--members", type=click.IntRange(min=2), multiple=True, default=(20, 100), show_default=True)
def main(members: tuple[int, ...]) -> None:
    """Restart one member of a group of each size, with and without static membership; print how long others stop."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    shown = Table("members", "without group.instance.id", "with it")
    properties = {"group.initial.rebalance.delay.ms": "3000"}
    with EmbeddedBroker(properties, heap="1g", fast_start=False) as broker:
        for count in members:
            dynamic, static = (
                asyncio.run(_measure(broker.bootstrap_servers, count, static=static)) for static in (False, True)
            )
            shown.add_row(f"{count:,}", f"{dynamic:.1f} s", f"{static:.1f} s")
            Console().print(f"{count:,} members: {dynamic:.1f} s, static {static:.1f} s", highlight=False)
    Console().print(shown)


if __name__ == "__main__":
    main()
