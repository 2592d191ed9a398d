"""A worker of a history: a process with one pipeline, which can be stopped, killed, or stand still."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from app.config.parsing import parse
from app.kafka.clients import ClusterError
from app.pipeline.budget import Budget
from app.pipeline.control_topic import ControlTopic
from app.pipeline.runtime import Runtime
from app.pipeline.service import Pipeline
from app.pipeline.steering import GroupSteering, OwnSteering
from tests.simulation.clock import monotonic, wall
from tests.simulation.history import Actor
from tests.simulation.steering import ASKED
from tests.simulation.threads import SimulatedThreads

if TYPE_CHECKING:
    from tests.simulation.world import World

_AGAIN_S = 1.0  # until a process that could not start is started again


class Worker(Actor):
    def __init__(self, world: World, former: Worker | None) -> None:
        super().__init__(world, "worker")
        self.member: int = self.number if former is None else former.member  # of the group, if that has static ones
        self.tolerates = world.tolerates  # whether its pipeline writes dead letters
        self._settings = world.settings
        if world.scenario.static:
            self._settings = parse(world.scenario.document(self.member, tolerant=self.tolerates))
        self.budget = Budget(self._settings.in_flight_bytes)
        self.pipeline: Pipeline | None = None  # once it has started
        self.steering: GroupSteering | OwnSteering | None = None  # of its pipeline, once that has been made
        self.ends = 0  # how often it has failed
        self.proven = False  # whether its pipeline has run, so that it may not fail any more
        self.stopping: asyncio.Task[None] | None = None  # the task that stops it
        count = self._settings.store_threads
        self.threads = SimulatedThreads(world.loop, self.chance, count, lambda: world.store.hangs)

    def begin(self) -> None:
        self.tell("starts")
        self._beginning = self.task(self._begin())

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
                self.tell(f"cannot start: {exc}")
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
        self.tell(f"has failed: {pipeline.last_error}")

    def stop(self) -> None:
        """As SIGTERM: it drains and commits."""
        if self.pipeline is None:
            self.kill()
            return
        self.tell("is stopped")
        self.stopping = self.task(self._stop(self.pipeline))
        self.stopping.add_done_callback(lambda _: self.tell("has stopped"))

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
