"""A worker of a history: a process with one pipeline, which can be stopped, killed, or stand still."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from random import Random

from app.config.settings import Settings
from app.kafka.clients import ClusterError
from app.pipeline.budget import Budget
from app.pipeline.control_topic import ControlTopic
from app.pipeline.runtime import Runtime
from app.pipeline.service import Pipeline
from app.pipeline.steering import GroupSteering, OwnSteering
from tests.simulation.clock import monotonic, wall
from tests.simulation.loop import PROCESS, Process, SimulatedLoop
from tests.simulation.network import NETWORK, Network
from tests.simulation.steering import ASKED
from tests.simulation.threads import SimulatedThreads

__all__ = ["Worker"]

_AGAIN_S = 1.0  # until a process that could not start is started again


class Worker:
    """See the module.

    Args:
        loop: of the history.
        number: tells it from the others.
        network: its way to the brokers.
        settings: of its file.
        chance: of the seed.
        tell: called with what happens to it.
        hangs: whether calls of the store may hang now.
        member: the number of its id as a static member of the group.

    Attributes:
        pipeline: once it has started.
        steering: of its pipeline, once that has been made.
        ends: how often it has failed.
        proven: whether its pipeline has run, so that it may not fail any more.
        stopping: the task that stops it.
        tolerates: whether its pipeline writes dead letters.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        number: int,
        network: Network,
        settings: Settings,
        chance: Random,
        tell: Callable[[str], None],
        hangs: Callable[[], bool],
        member: int = 0,
    ) -> None:
        self._loop, self._settings, self._chance, self._tell = loop, settings, chance, tell
        self.process, self.member = Process(f"worker {number}"), member
        self.network = network
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self.process)
        self.context.run(NETWORK.set, network)
        self.budget = Budget(settings.in_flight_bytes)
        self.pipeline: Pipeline | None = None
        self.steering: GroupSteering | OwnSteering | None = None
        self.ends = 0
        self.proven = False
        self.stopping: asyncio.Task[None] | None = None
        self.tolerates = True
        self.threads = SimulatedThreads(loop, chance, settings.store_threads, hangs)

    def begin(self) -> None:
        """Starts it."""
        self._tell(f"{self.process.name} starts")
        self._beginning = self._loop.create_task(self._begin(), context=self.context)

    async def _begin(self) -> None:
        settings = self._settings
        runtime = Runtime(self.threads, monotonic, wall)
        pipeline = Pipeline(
            settings, settings.pipelines[0], plan=None, budget=self.budget, ended=self._ended, runtime=runtime
        )
        # As `Application` does it.
        control = await self._control_topic()
        if self.stopping is not None:
            return
        self.steering = OwnSteering() if control is None else GroupSteering(control, [pipeline])
        self.pipeline = pipeline
        if isinstance(self.steering, GroupSteering):
            await self.steering.on_start()
        if self.stopping is None:
            await pipeline.on_start()

    async def _control_topic(self) -> ControlTopic | None:
        """See `app.application.read_control_topic`: a worker that cannot read it ends, and is started again."""
        name = self._settings.control_topic
        while name is not None:
            topic = ControlTopic(name, self._settings, ASKED.get)
            try:
                await topic.read()
            except ClusterError as exc:
                self._tell(f"{self.process.name} cannot start: {exc}")
                await asyncio.sleep(_AGAIN_S)
            else:
                return topic
        return None

    def _ended(self, pipeline: Pipeline) -> None:
        self.ends += 1
        stats = pipeline.stats
        self.proven = stats.commits > 0 or stats.records_out > 0
        if "the store refuses" in (self.failed or ""):  # it may, if it has never worked
            self.proven = stats.offloaded_records + stats.inflated_records > 0
        self._tell(f"{self.process.name} has failed: {pipeline.last_error}")

    def kill(self) -> None:
        """As `kill -9`: what the brokers and the store have got stays."""
        self._tell(f"{self.process.name} is killed")
        self.process.dead = True
        self.network.kill()

    def freeze(self, seconds: float) -> None:
        """It stands still, and then goes on as if nothing had happened."""
        self._tell(f"{self.process.name} stands still for {seconds} s")
        self.process.freeze()
        self._loop.call_later(seconds, self.thaw)

    def thaw(self) -> None:
        """It goes on."""
        if self.process.frozen and not self.process.dead:
            self._tell(f"{self.process.name} goes on")
            self.process.thaw(self._loop)

    def stop(self) -> None:
        """As SIGTERM: it drains and commits."""
        if self.pipeline is None:
            self.kill()
            return
        self._tell(f"{self.process.name} is stopped")
        self.stopping = self._loop.create_task(self._stop(self.pipeline), context=self.context)
        self.stopping.add_done_callback(lambda _: self._tell(f"{self.process.name} has stopped"))

    async def _stop(self, pipeline: Pipeline) -> None:
        steering = [self.steering] if isinstance(self.steering, GroupSteering) else []
        await asyncio.gather(*(each.on_stop() for each in (pipeline, *steering)))

    @property
    def failed(self) -> str | None:
        """Why it has failed; None if it has not, or was restarted since."""
        return self.pipeline.last_error if self.pipeline is not None and self.pipeline.status == "FAILED" else None

    @property
    def replaced(self) -> bool:
        """Whether it has ended because another worker has its id."""
        return self.failed is not None and "another worker has joined group" in self.failed

    @property
    def alive(self) -> bool:
        """Whether it runs, and nobody has asked it to stop."""
        return not self.process.dead and self.stopping is None
