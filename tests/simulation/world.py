"""The world of one history: a cluster, a store, workers, what writes the source, what goes wrong."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import random
from collections.abc import Mapping
from random import Random
from typing import Any

from app.config.parsing import parse
from app.pipeline import service
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Weather
from tests.simulation.loop import SimulatedLoop, StuckError
from tests.simulation.network import Network, install
from tests.simulation.promises import Broken, Promises
from tests.simulation.scenario import drawn
from tests.simulation.source import Source
from tests.simulation.store import SimulatedStore, StoreWorld
from tests.simulation.storm import ACTS, Storm
from tests.simulation.worker import Worker

__all__ = ["World", "run"]

_CALM_S = 300.0  # after this time without faults, all must be done

# Nothing of them is collected: the coroutines of what was killed would go on to clean up.
_ended: list[Any] = []


class World:
    """Runs the history of one seed.

    Args:
        seed: from which all is drawn.
        muted: the numbers of faults and acts that do not happen, so that a history becomes shorter.

    Attributes:
        told: what has happened, each with the virtual time.
        happened: how many faults and acts there were.
    """

    def __init__(self, seed: int, muted: frozenset[int] = frozenset()) -> None:
        self.seed = seed
        self.chance = chance = Random(seed)
        random.seed(seed)
        self.told: list[str] = []
        self._muted = muted
        self.happened = 0
        self.scenario = drawn(chance, ACTS)
        self.settings = parse(self.scenario.document())
        self.loop = SimulatedLoop(chance, shuffles=chance.random() < 0.5)
        self.weather = Weather(chance, self.scenario.rate, self.happens)
        self.store = StoreWorld(chance, self.tell)
        self.cluster = Cluster(self.loop, chance)
        self.workers: list[Worker] = []
        self.source = Source(self, chance)
        self.promises = Promises(self)
        self._outside = contextvars.Context()
        self._storm = Storm(self, chance, self.tell)
        self._numbers = itertools.count(1)

    def tell(self, text: str) -> None:
        """Notes what happens."""
        self.told.append(f"{self.loop.now_s - 1000:8.3f} {text}")

    def happens(self, text: str) -> bool:
        """Counts a fault or an act, and notes it; False if it is muted."""
        self.happened += 1
        if self.happened in self._muted:
            return False
        self.tell(f"({self.happened}) {text}")
        return True

    def act(self, name: str) -> None:
        """Lets an act of the storm happen, unless it is muted."""
        if self.happens(name):
            getattr(self._storm, name)()

    @property
    def alive(self) -> list[Worker]:
        """The workers that run."""
        return [each for each in self.workers if each.alive]

    def new_worker(self) -> None:
        """One more worker starts."""
        network = Network(self.cluster, self.chance, self.weather.fate, self._outside)
        worker = Worker(self.loop, next(self._numbers), network, self.settings, self.chance, self.tell)
        self.workers.append(worker)
        worker.begin()

    def run(self) -> None:
        """Runs it, to the end.

        Raises:
            Broken: a promise was not kept.
        """
        scenario = self.scenario
        self.cluster.create("raw", scenario.partitions)
        self.cluster.create("out", scenario.partitions, max_message_bytes="4000")
        self.cluster.create("dead", 1)
        self.cluster.committed = self.promises.committed
        self.cluster.transactions.ended = self.promises.transaction_committed
        setattr(service, "open_store", self._open_store)  # noqa: B010  # which it imports, and does not offer
        logs, root = _Logs(self), logging.getLogger()
        root.addHandler(logs)
        try:
            self.loop.run_until_complete(self._play())
        except StuckError as exc:
            raise Broken(f"stuck: {exc}") from exc
        finally:
            root.removeHandler(logs)
            _ended.append(self)

    def _open_store(self, config: Mapping[str, Any]) -> SimulatedStore:
        store = SimulatedStore(self.store)
        store.configure({name: value for name, value in config.items() if name != "large.message.payload.store.class"})
        return store

    async def _play(self) -> None:
        writing = self.loop.create_task(self.source.write())
        for _ in range(self.scenario.workers):
            self.new_worker()
        await self._storm.blow()
        await writing
        self._calm()
        await self._until_done()
        for worker in self.alive:
            worker.stop()
        stopping = [each.stopping for each in self.workers if each.stopping is not None and not each.process.dead]
        if stopping:
            await asyncio.wait(stopping)
        self.promises.check_end()

    def _calm(self) -> None:
        self.tell("calm")
        self.weather.calm = True
        self.store.down, self.store.rate, self.store.lying = False, 0.0, False
        for broker in self.cluster.brokers.values():
            broker.up = True
        for worker in self.workers:
            worker.thaw()
        if not self.alive:
            self.new_worker()

    async def _until_done(self) -> None:
        until_s, wait_s = self.loop.time() + _CALM_S, 0.2
        damaged = self.promises.damaged
        while (self.promises.left() or self.cluster.transactions.open) and not damaged.has_ended_all():
            for worker in self.alive:
                if damaged.ended(worker):
                    continue
                if worker.failed is not None and worker.proven:
                    raise Broken(f"{worker.process.name} has failed, which had worked: {worker.failed}")
                if worker.failed is not None:  # it could not start in the storm
                    worker.kill()
                    self.new_worker()
            if self.loop.time() > until_s:
                raise Broken(f"not done after {_CALM_S:.0f} s of calm: {self.promises.left()}")
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 1.3, 5.0)


class _Logs(logging.Handler):
    """What the workers log: an error with a traceback is one of ours."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        promises = self._world.promises
        if record.exc_info and record.exc_info[0] is not None and promises.broken is None:
            text = logging.Formatter().formatException(record.exc_info)
            promises.broken = f"the log of {record.name} has: {record.getMessage()}\n{text}"
        if record.name.startswith("wideload") or record.levelno >= logging.ERROR:
            self._world.tell(f"[{record.name}] {record.getMessage()}")


def run(seed: int, muted: frozenset[int] = frozenset()) -> tuple[World, str | None]:
    """Runs the history of a seed; its world, and what it has broken, or None."""
    world = World(seed, muted)
    try:
        world.run()
    except Broken as exc:
        return world, str(exc)
    return world, None


install()
