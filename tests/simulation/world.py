"""The world of one history: a cluster, a store, workers, what writes the source, what goes wrong."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

from app.config.parsing import parse
from app.pipeline import service
from tests.simulation.clock import installed
from tests.simulation.cluster import Cluster
from tests.simulation.cuts import Cuts
from tests.simulation.defect import Defect
from tests.simulation.delivered import Delivered
from tests.simulation.faults import Weather
from tests.simulation.loop import SimulatedLoop, StuckError
from tests.simulation.losses import Losses
from tests.simulation.network import Network, take_the_place_of_connections
from tests.simulation.ownership import Ownership
from tests.simulation.promises import Broken, Promises
from tests.simulation.scenario import cut, drawn
from tests.simulation.source import Source
from tests.simulation.steering import TOPIC, Steering
from tests.simulation.store import SimulatedStore, StoreWorld
from tests.simulation.storm import ACTS, Storm
from tests.simulation.story import codes, exchange, request_name
from tests.simulation.sweep import Sweep
from tests.simulation.worker import Worker

__all__ = ["Broken", "World"]

# What differs from one fault to the next of a kind.
_PLACE = re.compile(r"worker \d+, broker \d+, |\d+\.\d+ s |(?<=put |get )[\w-]+ ")
_VARIES = re.compile(r"\d+(?:[.,]\d+)*")
_CALM_S = 300.0  # after this time without faults, all must be done

# Nothing of them is collected: the coroutines of what was killed would go on to clean up.
_ended: list[Any] = []


class World:
    """Runs the history of one seed.

    Args:
        seed: from which all is drawn.
        cuts: what is left out.
        tallies: whether all that happens is counted.
        aloud: whether the requests that matter are told too.

    Attributes:
        told: what has happened, each with the virtual time.
        happened: the names of the faults and acts that there were, in order.
        requests: when each request came, from which worker, to which broker, of which API.
        tally: how often each thing happened.
        tolerates: whether records that can never succeed become dead letters.
    """

    def __init__(
        self,
        seed: int,
        cuts: Cuts = Cuts(),  # noqa: B008  # frozen
        *,
        tallies: bool = False,
        aloud: bool = False,
    ) -> None:
        self.seed = seed
        self.requests: list[tuple[float, int, int, int]] = []
        self.tally: Counter[str] = Counter()
        self.tallies, self._aloud = tallies, aloud
        random.seed(seed)
        self.told: list[str] = []
        self._only = cuts.only
        self.happened: list[str] = []
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
        self._outside = contextvars.Context()
        self.sweep = Sweep(self)
        self._ownership = Ownership()
        self.defect = Defect()
        self._storm = Storm(self, self.tell)
        self._numbers = itertools.count(1)
        self._restores: list[tuple[Callable[..., Any], Any]] = []

    def stream(self, name: str) -> Random:
        """A random stream of its own: what is left out of one part of a history changes no other part's draws."""
        return Random(f"{self.seed} {name}")

    def tell(self, text: str) -> None:
        """Notes what happens."""
        self.told.append(f"{self.loop.now_s - 1000:8.3f} {text}")

    def happens(self, name: str, text: str) -> bool:
        """Notes a fault or an act; False if it is left out. Its name is the same in each history of the seed."""
        if self._only is not None and name not in self._only:
            return False
        self.happened.append(name)
        self.tell(f"({name}) {text}")
        if self.tallies:
            self.tally[f"happened: {_PLACE.sub('', text)}"] += 1
        return True

    def _fate(self, worker: int, node: int, request: Any) -> Any:
        self.requests.append((self.loop.now_s, worker, node, -1 if request is None else request.API_KEY))
        return self.weather.fate(worker, node, request)

    def _sends(self, worker: Worker, request: Any) -> None:
        wrong = self._ownership.sent(worker, request) or self.steering.sends(worker, request)
        if wrong is not None and self.promises.broken is None:
            self.promises.broken = wrong

    def _seen(self, worker: int, node: int, request: Any, fields: Mapping[str, Any]) -> None:
        if self.tallies:
            self.tally[f"request: {request_name(request)}"] += 1
            for code in codes(fields):
                self.tally[f"answer of {request_name(request)}: error {code}"] += 1
        text = exchange(request, fields) if self._aloud else None
        if text is not None:
            self.tell(f"worker {worker} -> broker {node}: {text}")

    @property
    def alive(self) -> list[Worker]:
        """The workers that run."""
        return [each for each in self.workers if each.alive]

    def new_worker(self, former: Worker | None = None) -> None:
        """One more worker starts, with the id of a former one if members are static."""
        number = next(self._numbers)
        chance = self.stream(f"worker {number}")
        seen = partial(self._seen, number) if self._aloud or self.tallies else None
        network = Network(self.cluster, chance, partial(self._fate, number), self._outside, seen)
        member = number if former is None else former.member
        settings = self.settings
        if self.scenario.static:
            settings = parse(self.scenario.document(member, tolerant=self.tolerates))
        worker = Worker(self.loop, number, network, settings, chance, self.tell, self._hangs, member)
        worker.tolerates = self.tolerates
        network.sends = partial(self._sends, worker)
        self.workers.append(worker)
        worker.begin()

    def _hangs(self) -> bool:
        return self.store.hangs

    def run(self) -> None:
        """Runs it, to the end.

        Raises:
            Broken: a promise was not kept.
        """
        assert installed(), "a history runs in the processes of tests.simulation.processes alone"
        take_the_place_of_connections()
        scenario = self.scenario
        self.cluster.create("raw", scenario.partitions)
        self.cluster.create("out", scenario.partitions, max_message_bytes="4000")
        self.cluster.create("dead", 1)
        if self.steering.by_topic:
            self.cluster.create(TOPIC, 1, cleanup_policy="compact")
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
            for worker in self.workers:
                worker.threads.give_up()
            _ended.append(self)

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


class _Logs(logging.Handler):
    """What the workers log: an error with a traceback is one of ours."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        promises = self._world.promises
        if record.exc_info and record.exc_info[0] is not None and promises.broken is None:
            text = logging.Formatter().formatException(record.exc_info)
            if Defect.is_in(text):
                return
            promises.broken = f"the log of {record.name} has: {record.getMessage()}\n{text}"
        if self._world.tallies:
            self._world.tally[f"log: {_VARIES.sub('#', record.getMessage())}"] += 1
        if record.name.startswith("wideload") or record.levelno >= logging.ERROR:
            self._world.tell(f"[{record.name}] {record.getMessage()}")
