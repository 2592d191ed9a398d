"""A history without the worker's pipeline: a cluster, and clients that are processes of their own.

Each kind of client has a module with a class that derives from `Play`; `plays` names them.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.simulation.cluster import Cluster
from tests.simulation.faults import Weather
from tests.simulation.history import Actor, History
from tests.simulation.loop import SimulatedLoop
from tests.simulation.outcome import Cuts
from tests.simulation.promises import Broken
from tests.simulation.storm import Acts


@dataclass(slots=True)
class PlayScenario:
    workers: int = 0  # actors at the start
    records: int = 0  # that are written, about


class PlayActor(Actor):
    """A process of a play: it works until it is asked to end, or comes to its end."""

    def __init__(self, play: Any, kind: str) -> None:
        super().__init__(play, kind)
        self.play = play
        self.stopping = False  # whether it was asked to end; what it runs looks at this
        self.tell("starts")
        self.work_task = self.task(self.work())

    @abstractmethod
    async def work(self) -> None: ...

    def stop(self) -> None:
        self.tell("is asked to end")
        self.stopping = True

    @property
    def alive(self) -> bool:
        return not self.ended and not self.stopping

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.process.dead or self.work_task.done()


class Play(History):
    KIND = "actor"

    def __init__(self, seed: int, cuts: Cuts, *, tallies: bool, aloud: bool) -> None:
        super().__init__(seed, cuts, tallies=tallies, aloud=aloud)
        self.scenario = PlayScenario()  # what was drawn before it begins, for those who read it
        self._acts = itertools.count()
        self.chance = chance = self.stream("scenario")  # draws what belongs to no single actor
        self.loop = SimulatedLoop(self.stream("loop"), shuffles=chance.random() < 0.5)
        self.weather = Weather(self.stream, chance.choice((0.0, 0.02, 0.1, 0.3)), self.happens)
        self.cluster = Cluster(self.loop, self.stream("cluster"), "4.1")
        self.storm_s: float = chance.choice((0.5, 2.0, 5.0))
        self.acts: list[Callable[[], None]] = [each for each in self.drawn() if chance.random() < 0.4]

    def drawn(self) -> list[Callable[[], None]]:
        """What may happen in the storm; drawn before the history begins."""
        acts = Acts(self, self.chance)
        return [acts.kill, acts.stop, acts.freeze, acts.move_leader, acts.move_coordinator, acts.break_broker]

    @abstractmethod
    def prepare(self) -> None: ...

    @abstractmethod
    def left(self) -> object:
        """What is not done yet, for the text of an error; false if all is done."""

    @abstractmethod
    def check_end(self) -> None:
        """Raises `Broken` for what does not hold when all actors have ended."""

    async def _play(self) -> None:
        self.prepare()
        until_s = self.loop.time() + self.storm_s
        while self.loop.time() < until_s:
            await asyncio.sleep(self.chance.random() * self.storm_s / 2)
            if self.acts:
                act = self.chance.choice(self.acts)
                if self.happens(f"act {next(self._acts)}", act.__name__):
                    act()
        self.calm()
        await self.until(self.left, "not done")
        for actor in self.alive:
            actor.stop()
        await self.until(lambda: [each.process.name for each in self.actors if not each.ended], "not ended")
        for actor in self.actors:
            if not actor.process.dead:
                self._check_ended(actor)
        self.check_left()
        self.check_end()

    @staticmethod
    def _check_ended(actor: PlayActor) -> None:
        if actor.work_task.cancelled():
            raise Broken(f"{actor.process.name} was cancelled, by nobody")
        if (error := actor.work_task.exception()) is not None:
            raise Broken(f"{actor.process.name} has ended with {error!r}") from error
