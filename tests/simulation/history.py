"""The history of one seed, whatever is simulated: its random streams, what happens in it, and how it is run."""

from __future__ import annotations

import contextvars
import itertools
import logging
import random
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Any, ClassVar

from tests.simulation.clock import installed
from tests.simulation.cluster import Cluster
from tests.simulation.cuts import Cuts
from tests.simulation.defect import Defect
from tests.simulation.faults import Weather
from tests.simulation.loop import SimulatedLoop, StuckError
from tests.simulation.network import Network, take_the_place_of_connections
from tests.simulation.promises import Broken
from tests.simulation.story import codes, exchange, request_name

__all__ = ["History"]

# What differs from one fault to the next of a kind.
_PLACE = re.compile(r"\w+ \d+, broker \d+, |\d+\.\d+ s |(?<=put |get )[\w-]+ ")
_VARIES = re.compile(r"\d+(?:[.,]\d+)*")

# Nothing of them is collected: the coroutines of what was killed would go on to clean up.
_ended: list[Any] = []


class History(ABC):
    """See the module. Who derives from it makes `loop`, `cluster` and `weather`, drawn from the streams.

    Args:
        seed: from which all is drawn.
        cuts: what is left out.
        tallies: whether all that happens is counted.
        aloud: whether the requests that matter are noted too.

    Attributes:
        told: what has happened, each with the virtual time.
        happened: the names of the faults and acts that there were, in order.
        requests: when each request came, from which process, to which broker, of which API.
        tally: how often each thing happened.
        loop: with virtual time.
        cluster: the brokers.
        weather: what becomes of requests.
    """

    KIND: ClassVar[str]
    """What the processes of the history are called."""

    loop: SimulatedLoop
    cluster: Cluster
    weather: Weather

    def __init__(self, seed: int, cuts: Cuts, *, tallies: bool, aloud: bool) -> None:
        random.seed(seed)
        self.seed = seed
        self.requests: list[tuple[float, int, int, int]] = []
        self.tally: Counter[str] = Counter()
        self.told: list[str] = []
        self.happened: list[str] = []
        self._only, self._tallies, self._aloud = cuts.only, tallies, aloud
        self._outside = contextvars.Context()
        self._numbers = itertools.count(1)

    @property
    @abstractmethod
    def broken(self) -> str | None:
        """The first promise that was found broken while the history went on; None if none was."""

    @abstractmethod
    def breaks(self, text: str) -> None:
        """Notes that a promise was not kept, unless another one was not before."""

    @abstractmethod
    async def _play(self) -> None:
        """All of it; raises `Broken`."""

    def stream(self, name: str) -> Random:
        """A random stream of its own: what is left out of one part of a history changes no other part's draws."""
        return Random(f"{self.seed} {name}")

    def number(self) -> int:
        """The number of the next process."""
        return next(self._numbers)

    def network(self, number: int) -> Network:
        """The way of a process to the brokers."""
        seen = partial(self._seen, number) if self._aloud or self._tallies else None
        chance = self.stream(f"{self.KIND} {number}")
        return Network(self.cluster, chance, partial(self._fate, number), self._outside, seen)

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
        """Notes what happens."""
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
        """Runs it, to the end.

        Raises:
            Broken: a promise was not kept.
        """
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
