"""The faults of a soak: what happens to workers, store and brokers, one at a time each, by chance."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from app.local.broker import EmbeddedBroker
from tests.faults.proxy import Cut, Down, Error, Fault, FaultProxy, Hang, Ok, Slow
from tests.integration.limits import alter_configs
from tests.integration.worker_process import WorkerProcess


class Brokers(Protocol):
    """What a soak wants of brokers, as `Cluster` has it. Those that have no nodes are not broken."""

    @property
    def bootstrap_servers(self) -> str: ...
    @property
    def nodes(self) -> Sequence[EmbeddedBroker]: ...
    def make_topic(self, name: str, partitions: int, **configs: str) -> None: ...
    def in_sync(self, topic: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Targets:
    """What can be broken.

    Attributes:
        brokers: three, of which two are enough; or others, which are left alone.
        proxy: before the store.
        victims: workers that may be killed; there is another one that is not.
        limited: a sink topic whose limit may be lowered, and the configuration that it has.
    """

    brokers: Brokers
    proxy: FaultProxy
    victims: tuple[WorkerProcess, ...]
    limited: tuple[str, dict[str, str]]


class Chaos:
    """Breaks things until it is stopped, and leaves all whole.

    Args:
        targets: what is broken.
        pause_s: the mean time between two faults of one target.
        scale: of the length of each fault.
        seed: of all chance. Each target has its own, whatever the others do meanwhile.

    Attributes:
        counts: of faults, by kind.
        broken: workers that are going to be started again here, and by nobody else.
    """

    def __init__(self, targets: Targets, *, pause_s: float, scale: float, seed: int) -> None:
        self._targets = targets
        self._pause_s = pause_s
        self._scale = scale
        self._seed = seed
        self._stopping = asyncio.Event()  # belongs to the loop that `run` runs in
        self.counts: Counter[str] = Counter()
        self.broken: set[WorkerProcess] = set()

    def stop(self) -> None:
        """Lets `run` end once everything is whole again."""
        self._stopping.set()

    async def run(self) -> None:
        """Breaks store, broker and each victim, independently of one another, until `stop`."""
        await asyncio.gather(
            self._loop("store", self._store),
            *((self._loop("broker", self._broker),) if self._targets.brokers.nodes else ()),
            self._loop("limit", self._limit),
            *(
                self._loop(f"worker {number}", partial(self._worker, victim))
                for number, victim in enumerate(self._targets.victims)
            ),
        )

    async def _loop(self, target: str, fault: Callable[[random.Random], Awaitable[None]]) -> None:
        chance = random.Random(f"{self._seed} {target}")
        while not self._stopping.is_set():
            await self._wait(chance.expovariate(1 / self._pause_s) + 1)
            if not self._stopping.is_set():
                await fault(chance)

    async def _wait(self, seconds: float) -> None:
        """Waits, less when all is to end."""
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    def _count(self, kind: str) -> None:
        self.counts[kind] += 1
        if not sys.stderr.isatty():
            print(f"{time.strftime('%H:%M:%S')} {kind}", file=sys.stderr, flush=True)

    def _seconds(self, chance: random.Random, least: float, most: float) -> float:
        return chance.uniform(least, most) * self._scale

    async def _store(self, chance: random.Random) -> None:
        faults: list[tuple[str, Fault, float, float]] = [
            ("store stopped", Down(), 2, 30),
            ("store stopped for 60 s", Down(), 60, 60),
            ("store hangs", Hang(), 5, 20),
            ("store slow, 2 s a request", Slow(2.0), 10, 30),
            ("store answers 503 to half", Error(503, 0.5), 10, 30),
            ("store full (507)", Error(507, 1.0, "InsufficientStorage"), 5, 20),
            ("uploads cut in the middle", Cut(300_000, "upload"), 5, 20),
            ("downloads cut in the middle", Cut(300_000, "download"), 5, 20),
        ]
        kind, fault, least, most = chance.choice(faults)
        self._count(kind)
        await asyncio.to_thread(self._targets.proxy.switch, fault)
        await self._wait(self._seconds(chance, least, most))
        await asyncio.to_thread(self._targets.proxy.switch, Ok())

    async def _broker(self, chance: random.Random) -> None:
        nodes = self._targets.brokers.nodes
        kind = chance.choice(("one restarted", "one killed (-9)", "one killed (-9)", "all stopped for 60 s"))
        self._count(f"brokers, {kind}")
        broken = nodes if kind.startswith("all") else [chance.choice(nodes)]
        for node in broken:
            # One that shuts down in order asks the others, who may be gone.
            await asyncio.to_thread(node.stop if kind == "one restarted" else node.kill)
        await self._wait(self._seconds(chance, 60, 60) if len(broken) > 1 else self._seconds(chance, 0, 20))
        await asyncio.gather(*(asyncio.to_thread(node.start) for node in broken))
        # With another one gone before this one has all, partitions would take nothing: that is no fault of ours.
        while not await self._whole():  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(1)

    async def _whole(self) -> bool:
        try:
            return await asyncio.to_thread(self._targets.brokers.in_sync, self._targets.limited[0])
        except Exception:  # noqa: BLE001  # no broker answers yet
            return False

    async def _limit(self, chance: random.Random) -> None:
        topic, config = self._targets.limited
        self._count("max.message.bytes lowered and raised")
        if await self._altered(topic, {**config, "max.message.bytes": "400000"}):
            await self._wait(self._seconds(chance, 5, 20))
            while not await self._altered(topic, config):  # noqa: ASYNC110  # nobody says when the broker is back
                await asyncio.sleep(1)
        await self._wait(60 * self._scale)

    async def _altered(self, topic: str, config: dict[str, str]) -> bool:
        try:
            await asyncio.wait_for(alter_configs(self._targets.brokers.bootstrap_servers, topic, config), 20)
        except Exception:  # noqa: BLE001  # the broker may be away just now
            return False
        return True

    async def _worker(self, worker: WorkerProcess, chance: random.Random) -> None:
        kind = chance.choice(("killed (-9)", "killed (-9)", "terminated", "paused"))
        if worker.process is None or worker.process.poll() is not None:
            return  # it has ended by itself, and is going to be started again
        self.broken.add(worker)
        self._count(f"worker {kind}")
        if kind == "paused":
            worker.process.send_signal(signal.SIGSTOP)
            await self._wait(self._seconds(chance, 3, 25))
            worker.process.send_signal(signal.SIGCONT)
        else:
            if kind == "terminated":
                worker.process.send_signal(signal.SIGTERM)
                try:
                    await asyncio.to_thread(worker.wait, 60)
                except Exception:  # noqa: BLE001  # one that does not end is a finding of its own
                    self._count("worker did not end within 60 s of SIGTERM")
            await asyncio.to_thread(worker.kill)
            await self._wait(self._seconds(chance, 0, 5))
            worker.start()
        self.broken.discard(worker)
