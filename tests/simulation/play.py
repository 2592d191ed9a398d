"""A history without the worker's pipeline: a cluster, and clients that are processes of their own.

Each kind of client has a module with a class that derives from `Play`; `plays` names them.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.cluster import Cluster
from tests.simulation.cuts import Cuts
from tests.simulation.faults import Weather
from tests.simulation.history import History
from tests.simulation.loop import PROCESS, Process, SimulatedLoop
from tests.simulation.network import NETWORK
from tests.simulation.promises import Broken

__all__ = ["Actor", "Play", "PlayScenario"]


@dataclass(slots=True)
class PlayScenario:
    """What was drawn before a history begins.

    Attributes:
        workers: actors at the start.
        records: that are written, about.
        keys: properties of the clients, and their habits.
    """

    workers: int = 0
    records: int = 0
    keys: dict[str, Any] = field(default_factory=dict)


class Actor:
    """A process of a history, which can be killed, stand still, or come to its end.

    Attributes:
        stopping: whether it was asked to end; what it runs looks at this.
        task: what it runs; None before it has begun.
    """

    def __init__(self, play: Play, kind: str) -> None:
        self.play = play
        number = play.number()
        self.process = Process(f"{kind} {number}")
        self.network = play.network(number)
        self.chance = self.network.chance
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self.process)
        self.context.run(NETWORK.set, self.network)
        self.stopping = False
        self.task: asyncio.Task[None] | None = None

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts it with what it does."""
        self.play.tell(f"{self.process.name} starts")
        self.task = self.play.loop.create_task(work, context=self.context)

    def kill(self) -> None:
        """As `kill -9`."""
        self.play.tell(f"{self.process.name} is killed")
        self.process.dead = True
        self.network.kill()

    def freeze(self, seconds: float) -> None:
        """It stands still, and then goes on as if nothing had happened."""
        self.play.tell(f"{self.process.name} stands still for {seconds} s")
        self.process.freeze()
        self.play.loop.call_later(seconds, self.thaw)

    def thaw(self) -> None:
        """It goes on."""
        if self.process.frozen and not self.process.dead:
            self.play.tell(f"{self.process.name} goes on")
            self.process.thaw(self.play.loop)

    async def stop(self) -> None:
        """It ends by itself."""
        if not self.stopping:
            self.play.tell(f"{self.process.name} is asked to end")
            self.stopping = True

    @property
    def alive(self) -> bool:
        """Whether it runs, and nobody has asked it to stop."""
        return not self.process.dead and not self.stopping and (self.task is None or not self.task.done())

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.process.dead or (self.task is not None and self.task.done())


class Play(History):
    """The history of one seed.

    Attributes:
        scenario: what was drawn before it begins, for those who read it.
        chance: draws what belongs to no single actor.
    """

    KIND = "actor"
    CALM_S = 300.0
    """After this time without faults, all must be done."""

    def __init__(
        self,
        seed: int,
        cuts: Cuts = Cuts(),  # noqa: B008  # frozen
        *,
        tallies: bool = False,
        aloud: bool = False,
    ) -> None:
        super().__init__(seed, cuts, tallies=tallies, aloud=aloud)
        self._broken: str | None = None
        self.actors: list[Actor] = []
        self.scenario = PlayScenario()
        self._acts = itertools.count()
        self.chance = chance = self.stream("scenario")
        self.loop = SimulatedLoop(self.stream("loop"), shuffles=chance.random() < 0.5)
        self.weather = Weather(self.stream, chance.choice((0.0, 0.02, 0.1, 0.3)), self.happens)
        self.cluster = Cluster(self.loop, self.stream("cluster"), "4.1")
        self.storm_s: float = chance.choice((0.5, 2.0, 5.0))
        self.acts: list[Callable[[], None]] = [each for each in self.drawn() if chance.random() < 0.4]

    def drawn(self) -> list[Callable[[], None]]:
        """What may happen in the storm; drawn before the history begins."""
        return [self.kill, self.stop, self.freeze, self.move_leader, self.move_coordinator, self.break_broker]

    # --- what a kind of client adds -----------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self) -> None:
        """Creates topics, and starts actors."""

    @abstractmethod
    def replace(self, actor: Actor) -> None:
        """Starts another actor in the place of one that was killed, or stopped."""

    @abstractmethod
    def left(self) -> object:
        """What is not done yet, for the text of an error; false if all is done."""

    @abstractmethod
    def check_end(self) -> None:
        """Raises `Broken` for what does not hold when all actors have ended."""

    # --- the history --------------------------------------------------------------------------------------------------

    @property
    def broken(self) -> str | None:
        return self._broken

    def breaks(self, text: str) -> None:
        """See `History.breaks`."""
        if self._broken is None:
            self.tell(f"BROKEN: {text}")
            self._broken = text

    @property
    def alive(self) -> list[Actor]:
        """The actors that run."""
        return [each for each in self.actors if each.alive]

    async def _play(self) -> None:
        self.prepare()
        until_s = self.loop.time() + self.storm_s
        while self.loop.time() < until_s:
            await asyncio.sleep(self.chance.random() * self.storm_s / 2)
            if self.acts:
                act = self.chance.choice(self.acts)
                if self.happens(f"act {next(self._acts)}", act.__name__):
                    act()
        self._calm()
        await self._until(self.left, "not done")
        for actor in self.alive:
            await actor.stop()
        await self._until(lambda: [each.process.name for each in self.actors if not each.ended], "not ended")
        if self.broken is not None:
            raise Broken(self.broken)
        for actor in self.actors:
            if not actor.process.dead:
                self._check_ended(actor)
        if self.loop.troubles:
            raise Broken(f"the event loop reports {self.loop.troubles[0]}")
        self.check_end()

    def _calm(self) -> None:
        self.tell("calm")
        self.weather.calm = True
        for broker in self.cluster.brokers.values():
            broker.up = True
        for actor in self.actors:
            actor.thaw()

    async def _until(self, left: Callable[[], object], what: str) -> None:
        until_s, wait_s = self.loop.time() + self.CALM_S, 0.2
        while left():
            if self.broken is not None:
                raise Broken(self.broken)
            if self.loop.time() > until_s:
                raise Broken(f"{what} after {self.CALM_S:.0f} s of calm: {left()}")
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 1.3, 5.0)

    def _check_ended(self, actor: Actor) -> None:
        assert actor.task is not None
        if actor.task.cancelled():
            raise Broken(f"{actor.process.name} was cancelled, by nobody")
        error = actor.task.exception()
        if error is not None:
            raise Broken(f"{actor.process.name} has ended with {error!r}") from error
        for task in asyncio.all_tasks(self.loop):
            if self.loop.context_of(task).get(PROCESS) is actor.process:
                raise Broken(f"{actor.process.name} has left a task: {task.get_coro().__qualname__}")  # type: ignore[union-attr]

    # --- acts ---------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """A process is gone, and another one starts."""
        if self.alive:
            actor = self.chance.choice(self.alive)
            actor.kill()
            self.replace(actor)

    def stop(self) -> None:
        """A process is asked to end, and another one starts."""
        if self.alive:
            actor = self.chance.choice(self.alive)
            actor.stopping = True
            self.tell(f"{actor.process.name} is asked to end")
            self.replace(actor)

    def freeze(self) -> None:
        """A process stands still: shorter than its session lasts, or longer, as a zombie."""
        if self.alive:
            self.chance.choice(self.alive).freeze(self.chance.choice((0.5, 3.0, 12.0)))

    def move_leader(self) -> None:
        """A partition has another leader."""
        topic = self.chance.choice([*self.cluster.topics.values()])
        number = self.chance.randrange(len(topic.logs))
        self.cluster.move_leader(topic.logs[number])
        self.tell(f"{topic.name}-{number} has another leader: broker {topic.logs[number].node}")

    def move_coordinator(self) -> None:
        """A group, or a transactional id, has another coordinator."""
        keys = self.cluster.coordinated
        if keys:
            key = self.chance.choice(keys)
            self.cluster.move_coordinator(key)
            self.tell(f"{key[1]} has another coordinator")

    def break_broker(self) -> None:
        """A broker goes down, and comes back."""
        if all(each.up for each in self.cluster.brokers.values()):
            broker = self.chance.choice([*self.cluster.brokers.values()])
            self.tell(f"broker {broker.number} goes down")
            self.cluster.stop(broker)
            self.loop.call_later(self.chance.choice((0.3, 3.0)), setattr, broker, "up", True)
