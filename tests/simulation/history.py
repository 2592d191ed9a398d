"""The history of one seed, whatever is simulated: its random streams, what happens in it, and how it is run."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import random
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from random import Random
from typing import Any, ClassVar

from tests.simulation.clock import installed
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Weather, codes, exchange, request_name
from tests.simulation.loop import PROCESS, Process, SimulatedLoop, StuckError
from tests.simulation.network import NETWORK, Network, take_the_place_of_connections
from tests.simulation.outcome import Cuts
from tests.simulation.promises import Broken
from tests.simulation.storm import Defect

CALM_S = 300.0  # after this time without faults, all must be done

# What differs from one fault to the next of a kind.
_PLACE = re.compile(r"\w+ \d+, broker \d+, |\d+\.\d+ s |(?<=put |get )[\w-]+ ")
_VARIES = re.compile(r"\d+(?:[.,]\d+)*")

# Nothing of them is collected: the coroutines of what was killed would go on to clean up.
_ended: list[Any] = []


class History(ABC):
    """See the module. Who derives from it makes `loop`, `cluster` and `weather`, drawn from the streams."""

    KIND: ClassVar[str]  # what the processes of the history are called

    loop: SimulatedLoop  # with virtual time
    cluster: Cluster  # the brokers
    weather: Weather  # what becomes of requests

    def __init__(self, seed: int, cuts: Cuts, *, tallies: bool, aloud: bool) -> None:
        random.seed(seed)
        self.seed = seed
        # When each request came, from which process, to which broker, of which API
        self.requests: list[tuple[float, int, int, int]] = []
        self.tally: Counter[str] = Counter()  # how often each thing happened
        self.told: list[str] = []  # what has happened, each with the virtual time
        self.happened: list[str] = []  # the names of the faults and acts that there were, in order
        self.broken: str | None = None  # the first promise that was found broken while the history went on
        self.actors: list[Any] = []
        self._only, self._tallies, self._aloud = cuts.only, tallies, aloud
        self._outside = contextvars.Context()
        self._numbers = itertools.count(1)

    @abstractmethod
    def new(self, former: Any = None) -> None:
        """Starts one more process, in the place of a former one perhaps."""

    @abstractmethod
    async def _play(self) -> None: ...

    @property
    def alive(self) -> list[Any]:
        return [each for each in self.actors if each.alive]

    def breaks(self, text: str) -> None:
        """Notes that a promise was not kept, unless another one was not before."""
        if self.broken is None:
            self.tell(f"BROKEN: {text}")
            self.broken = text

    async def until(self, left: Callable[[], object], what: str, calm_s: float = CALM_S) -> None:
        """Waits until nothing is left; raises `Broken` if that takes too long."""
        until_s, wait_s = self.loop.time() + calm_s, 0.2
        while found := left():
            if self.broken is not None:
                raise Broken(self.broken)
            if self.loop.time() > until_s:
                raise Broken(f"{what} after {calm_s:.0f} s of calm: {found}")
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 1.3, 5.0)

    def calm(self) -> None:
        self.tell("calm")
        self.weather.calm = True
        for broker in self.cluster.brokers.values():
            broker.up = True
        for actor in self.actors:
            actor.thaw()

    def check_left(self) -> None:
        """Raises `Broken` for what processes that came to their end have left behind."""
        if self.broken is not None:
            raise Broken(self.broken)
        ended = {each.process for each in self.actors if not each.process.dead}
        for task in self.loop.tasks:
            process = task.context.get(PROCESS)
            if not task.done() and process in ended:
                raise Broken(f"{process.name} has left a task: {task.get_coro().__qualname__}")  # type: ignore[union-attr]
        if self.loop.troubles:
            raise Broken(f"the event loop reports {self.loop.troubles[0]}")

    def stream(self, name: str) -> Random:
        """A random stream of its own: what is left out of one part of a history changes no other part's draws."""
        return Random(f"{self.seed} {name}")

    def network(self) -> tuple[int, Network]:
        """The number of the next process, and its way to the brokers."""
        number = next(self._numbers)
        seen = partial(self._seen, number) if self._aloud or self._tallies else None
        chance = self.stream(f"{self.KIND} {number}")
        return number, Network(self.cluster, chance, partial(self._fate, number), self._outside, seen)

    def _fate(self, process: int, node: int, request: Any) -> Any:
        self.requests.append((self.loop.now_s, process, node, -1 if request is None else request.API_KEY))
        return self.weather.fate(process, node, request)

    def _seen(self, process: int, node: int, request: Any, fields: Mapping[str, Any]) -> None:
        if self._tallies:
            self.tally[f"request: {request_name(request)}"] += 1
            for code in codes(fields):
                self.tally[f"answer of {request_name(request)}: error {code}"] += 1
        text = exchange(request, fields) if self._aloud else None
        if text is not None:
            self.tell(f"{self.KIND} {process} -> broker {node}: {text}")

    def tell(self, text: str) -> None:
        self.told.append(f"{self.loop.now_s - 1000:8.3f} {text}")

    def happens(self, name: str, text: str) -> bool:
        """Notes a fault or an act; False if it is left out. Its name is the same in each history of the seed."""
        if self._only is not None and name not in self._only:
            return False
        self.happened.append(name)
        self.tell(f"({name}) {text}")
        if self._tallies:
            self.tally[f"happened: {_PLACE.sub('', text)}"] += 1
        return True

    def logged(self, record: logging.LogRecord) -> None:
        """Notes what a process has logged. A traceback breaks a promise, unless it is that of a `Defect`."""
        if record.exc_info and record.exc_info[0] is not None and self.broken is None:
            text = logging.Formatter().formatException(record.exc_info)
            if Defect.is_in(text):
                return
            self.breaks(f"the log of {record.name} has: {record.getMessage()}\n{text}")
        if self._tallies:
            self.tally[f"log: {_VARIES.sub('#', record.getMessage())}"] += 1
        if record.name.startswith("wideload") or record.levelno >= logging.ERROR:
            self.tell(f"[{record.name}] {record.getMessage()}")

    def run(self) -> None:
        assert installed(), "a history runs in the processes of tests.simulation.processes alone"
        take_the_place_of_connections()
        logs, root = _Logs(self), logging.getLogger()
        root.addHandler(logs)
        try:
            self.loop.run_until_complete(self._play())
        except StuckError as exc:
            raise Broken(f"stuck: {exc}") from exc
        finally:
            root.removeHandler(logs)
            _ended.append(self)


class _Logs(logging.Handler):
    def __init__(self, history: History) -> None:
        super().__init__(logging.INFO)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        self._history.logged(record)


class Actor(ABC):
    """A process of a history, which can be killed, stand still, or come to its end."""

    def __init__(self, history: Any, kind: str) -> None:
        self.history = history
        self.number, self.network = history.network()
        self.process, self.chance = Process(f"{kind} {self.number}"), self.network.chance
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self.process)
        self.context.run(NETWORK.set, self.network)
        history.actors.append(self)

    def tell(self, text: str) -> None:
        self.history.tell(f"{self.process.name} {text}")

    def task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.history.loop.create_task(work, context=self.context)
        return task

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it runs, and nobody has asked it to stop."""

    def kill(self) -> None:
        self.tell("is killed")
        self.process.dead = True
        self.network.kill()

    def freeze(self, seconds: float) -> None:
        """It stands still, and then goes on as if nothing had happened."""
        self.tell(f"stands still for {seconds} s")
        self.process.frozen = True
        self.history.loop.call_later(seconds, self.thaw)

    def thaw(self) -> None:
        if self.process.frozen and not self.process.dead:
            self.tell("goes on")
            self.process.thaw(self.history.loop)
