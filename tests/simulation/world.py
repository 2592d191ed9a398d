"""The world of one history: a cluster, a store, workers, what writes the source, what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from app.config.parsing import parse
from app.pipeline import pipeline_store
from tests.simulation.cluster import Cluster
from tests.simulation.delivered import Delivered, Losses
from tests.simulation.faults import Weather
from tests.simulation.history import CALM_S, History
from tests.simulation.loop import SimulatedLoop
from tests.simulation.outcome import Cuts
from tests.simulation.promises import Broken, Ownership, Promises
from tests.simulation.scenario import cut, drawn
from tests.simulation.source import Source
from tests.simulation.steering import TOPIC, Steering
from tests.simulation.store import SimulatedStore, StoreWorld
from tests.simulation.storm import ACTS, Defect, Storm, Sweep
from tests.simulation.worker import Worker


class World(History):
    KIND = "worker"

    def __init__(self, seed: int, cuts: Cuts, *, tallies: bool, aloud: bool) -> None:
        super().__init__(seed, cuts, tallies=tallies, aloud=aloud)
        chance = self.stream("scenario")
        self.scenario = drawn(chance, ACTS)
        cut(self.scenario, cuts)
        self.steering = Steering(self)
        self.settings = parse(self.scenario.document())
        self.loop = SimulatedLoop(self.stream("loop"), shuffles=chance.random() < 0.5)
        self.weather = Weather(self.stream, self.scenario.rate, self.happens)
        self.store = StoreWorld(self.loop, self.stream("store"), self.tell, self.happens)
        self.cluster = Cluster(self.loop, self.stream("cluster"), self.scenario.release)
        self.actors: list[Worker] = []
        self.source = Source(self, self.stream("source"))
        self.delivered = Delivered(self)
        self.tolerates = self.scenario.tolerance == "all"  # whether records that can never succeed become dead letters
        self.losses = Losses(self)
        self.promises = Promises(self)
        self.sweep = Sweep(self)
        self._ownership = Ownership()
        self.defect = Defect()
        self._storm = Storm(self)
        self._restores: list[tuple[Callable[..., Any], Any]] = []

    def _sends(self, worker: Worker, request: Any) -> None:
        wrong = self._ownership.sent(worker, request) or self.steering.sends(worker, request)
        if wrong is not None:
            self.breaks(wrong)

    def new(self, former: Worker | None = None) -> None:
        """One more worker starts, with the id of a former one if members are static."""
        worker = Worker(self, former)
        worker.network.sends = partial(self._sends, worker)
        worker.begin()

    def run(self) -> None:
        scenario = self.scenario
        self.cluster.create("raw", scenario.partitions)
        self.cluster.create("out", scenario.partitions, max_message_bytes="4000")
        self.cluster.create("dead", 1)
        if self.steering.by_topic:
            self.cluster.create(TOPIC, 1, cleanup_policy="compact")
        self.cluster.committed = self.promises.committed
        self.cluster.transactions.ended = self.promises.transaction_committed
        setattr(pipeline_store, "open_store", self._open_store)  # noqa: B010  # which it imports, and does not offer
        try:
            super().run()
        finally:
            for worker in self.actors:
                worker.threads.give_up()

    def _open_store(self, config: Mapping[str, Any]) -> SimulatedStore:
        store = SimulatedStore(self.store)
        store.configure({name: value for name, value in config.items() if name != "large.message.payload.store.class"})
        return store

    async def _play(self) -> None:
        writing = self.loop.create_task(self.source.write())
        asking = self.loop.create_task(self.steering.storm())
        for _ in range(self.scenario.workers):
            self.new()
        await self._storm.blow()
        await asking
        await writing
        self.calm()
        self.store.calm()
        for end, args in self._restores:
            end(*args)
        if not self.alive:
            self.new()
        await self.steering.settle()
        await self._until_done()
        for worker in self.alive:
            worker.stop()
        stopping = [each.stopping for each in self.actors if each.stopping is not None and not each.process.dead]
        if stopping:
            await asyncio.wait(stopping)
        self.promises.check_end()

    def restore(self, after_s: float, end: Callable[..., Any], *args: Any) -> None:
        """Ends what an act has done, after this time, or when the storm is over."""
        self._restores.append((end, args))
        self.loop.call_later(after_s, end, *args)

    async def _until_done(self) -> None:
        until_s, wait_s = self.loop.time() + CALM_S, 0.2
        while self.promises.left() or self.cluster.transactions.open:
            if not self.tolerates and any(self._poisoned(each) for each in self.alive):
                await self._start_again()
                self._tolerate()
            for worker in self.alive:
                if self._poisoned(worker) or worker.replaced:
                    continue
                foreseen = self.promises.damaged.stopped(worker) or Defect.is_in(worker.failed)
                if worker.failed is not None and worker.proven and not foreseen:
                    raise Broken(f"{worker.process.name} has failed, which had worked: {worker.failed}")
                if worker.failed is not None:  # it could not start in the storm
                    worker.kill()
                    self.new(worker)
            if self.loop.time() > until_s:
                raise Broken(f"not done after {CALM_S:.0f} s of calm: {self.promises.left()}")
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 1.3, 5.0)

    def _poisoned(self, worker: Worker) -> bool:
        """Whether it has ended for a record that can never succeed, as it is to without dead letters."""
        if worker.failed is None or worker.tolerates:
            return False
        return self.delivered.poison(worker.failed) or self.promises.damaged.ended(worker)

    async def _start_again(self) -> None:
        """Starts a worker where one has ended: in the calm it must come as far as it can before it ends, too."""
        for worker in self.alive:
            worker.stop()
        self.new()
        (worker,) = self.alive
        until_s = self.loop.time() + CALM_S
        while worker.failed is None and self.promises.left():
            if self.loop.time() > until_s:
                raise Broken(f"{worker.process.name} does not end in {CALM_S:.0f} s, as another one has")
            await asyncio.sleep(0.5)
        for lacking in (self.promises.damaged.lacking(worker), self.delivered.held_up(worker.failed or "")):
            if lacking is not None:
                raise Broken(lacking)

    def _tolerate(self) -> None:
        """Somebody sees that the pipeline has failed, and starts all workers with dead letters."""
        self.tell("from now on there are dead letters")
        self.tolerates = True
        self.settings = parse(self.scenario.document(tolerant=True))
        for worker in self.alive:
            worker.kill()
            self.new()
