"""The world of one history: a cluster, a store, workers, what writes the source, what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from app.config.parsing import parse
from app.pipeline import pipeline_store
from tests.simulation.cluster import Cluster
from tests.simulation.cuts import Cuts
from tests.simulation.defect import Defect
from tests.simulation.delivered import Delivered
from tests.simulation.faults import Weather
from tests.simulation.history import History
from tests.simulation.loop import SimulatedLoop
from tests.simulation.losses import Losses
from tests.simulation.ownership import Ownership
from tests.simulation.promises import Broken, Promises
from tests.simulation.scenario import cut, drawn
from tests.simulation.source import Source
from tests.simulation.steering import TOPIC, Steering
from tests.simulation.store import SimulatedStore, StoreWorld
from tests.simulation.storm import ACTS, Storm
from tests.simulation.sweep import Sweep
from tests.simulation.worker import Worker

__all__ = ["Broken", "World"]

_CALM_S = 300.0  # after this time without faults, all must be done


class World(History):
    """Runs the history of one seed.

    Attributes:
        tolerates: whether records that can never succeed become dead letters.
    """

    KIND = "worker"

    def __init__(
        self,
        seed: int,
        cuts: Cuts = Cuts(),  # noqa: B008  # frozen
        *,
        tallies: bool = False,
        aloud: bool = False,
    ) -> None:
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
        self.workers: list[Worker] = []
        self.source = Source(self, self.stream("source"))
        self.delivered = Delivered(self)
        self.tolerates = self.scenario.tolerance == "all"
        self.losses = Losses(self)
        self.promises = Promises(self)
        self.sweep = Sweep(self)
        self._ownership = Ownership()
        self.defect = Defect()
        self._storm = Storm(self, self.tell)
        self._restores: list[tuple[Callable[..., Any], Any]] = []

    @property
    def broken(self) -> str | None:
        return self.promises.broken

    def breaks(self, text: str) -> None:
        """See `History.breaks`."""
        if self.promises.broken is None:
            self.promises.broken = text

    def _sends(self, worker: Worker, request: Any) -> None:
        wrong = self._ownership.sent(worker, request) or self.steering.sends(worker, request)
        if wrong is not None:
            self.breaks(wrong)

    @property
    def alive(self) -> list[Worker]:
        """The workers that run."""
        return [each for each in self.workers if each.alive]

    def new_worker(self, former: Worker | None = None) -> None:
        """One more worker starts, with the id of a former one if members are static."""
        number = self.number()
        network = self.network(number)
        member = number if former is None else former.member
        settings = self.settings
        if self.scenario.static:
            settings = parse(self.scenario.document(member, tolerant=self.tolerates))
        worker = Worker(self.loop, number, network, settings, network.chance, self.tell, self._hangs, member)
        worker.tolerates = self.tolerates
        network.sends = partial(self._sends, worker)
        self.workers.append(worker)
        worker.begin()

    def _hangs(self) -> bool:
        return self.store.hangs

    def run(self) -> None:
        """See `History.run`."""
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
            for worker in self.workers:
                worker.threads.give_up()

    def _open_store(self, config: Mapping[str, Any]) -> SimulatedStore:
        store = SimulatedStore(self.store)
        store.configure({name: value for name, value in config.items() if name != "large.message.payload.store.class"})
        return store

    async def _play(self) -> None:
        writing = self.loop.create_task(self.source.write())
        asking = self.loop.create_task(self.steering.storm())
        for _ in range(self.scenario.workers):
            self.new_worker()
        await self._storm.blow()
        await asking
        await writing
        self._calm()
        await self.steering.settle()
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
        self.store.calm()
        for broker in self.cluster.brokers.values():
            broker.up = True
        for end, args in self._restores:
            end(*args)
        for worker in self.workers:
            worker.thaw()
        if not self.alive:
            self.new_worker()

    def restore(self, after_s: float, end: Callable[..., Any], *args: Any) -> None:
        """Ends what an act has done, after this time, or when the storm is over."""
        self._restores.append((end, args))
        self.loop.call_later(after_s, end, *args)

    async def _until_done(self) -> None:
        until_s, wait_s = self.loop.time() + _CALM_S, 0.2
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
                    self.new_worker(worker)
            if self.loop.time() > until_s:
                raise Broken(f"not done after {_CALM_S:.0f} s of calm: {self.promises.left()}")
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
        self.new_worker()
        (worker,) = self.alive
        until_s = self.loop.time() + _CALM_S
        while worker.failed is None and self.promises.left():
            if self.loop.time() > until_s:
                raise Broken(f"{worker.process.name} does not end in {_CALM_S:.0f} s, as another one has")
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
            self.new_worker()
