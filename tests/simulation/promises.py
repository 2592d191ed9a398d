"""What must hold in each history: at each commit, and in the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.simulation.commit_history import CommitHistory
from tests.simulation.damaged import Damaged
from tests.simulation.groups import Commit
from tests.simulation.loop import PROCESS
from tests.simulation.memory import excess, left_over
from tests.simulation.reader import UnreadableError

if TYPE_CHECKING:
    from tests.simulation.worker import Worker
    from tests.simulation.world import World

__all__ = ["Broken", "Promises"]


class Broken(AssertionError):  # noqa: N818  # it is no error of the simulation
    """A promise that a history has broken."""


class Promises:
    """Looks at a world.

    Attributes:
        broken: the first promise that was found broken while the history went on; None if none was.
        damaged: the batches that no reader can decode.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.broken: str | None = None
        self.damaged = Damaged(world)
        self._commits = CommitHistory()

    def committed(self, group: str, offsets: Mapping[Any, Commit]) -> None:
        """Each record below a committed offset is durable, and no offset goes back."""
        for (topic, number), commit in offsets.items():
            if topic == "raw" and number not in self._world.losses.unsteady:
                before = self._commits.goes_back(self._world.cluster.log(topic, number), commit.offset)
                if before is not None and self.broken is None and not self._world.defect.raised:
                    self.broken = f"raw-{number}: offset {commit.offset} is committed behind {before}"
        if not self._world.scenario.exactly_once:  # else the marks of a transaction come one after the other
            for (topic, number), commit in offsets.items():
                if topic == "raw":
                    self._check_durable(number, commit.offset)

    def transaction_committed(self, transactional_id: str) -> None:
        """So it is when a transaction has ended, for the partition whose transaction it was."""
        number = int(transactional_id.rpartition(":")[2])
        offsets = self._world.cluster.groups.committed(self._world.settings.pipelines[0].group_id)
        commit = offsets.get(("raw", number))
        logs = [log for topic in ("out", "dead") for log in self._world.cluster.logs(topic)]
        if commit is not None and not any(log.ongoing for log in logs):  # behind those nobody can read yet
            self._check_durable(number, commit.offset)

    def _check_durable(self, number: int, end: int) -> None:
        if self.broken is not None or number in self._world.losses.unsteady:
            return
        for worker in self._world.alive:
            if (held := excess(worker)) is not None:
                self.broken = f"{worker.process.name} {held}"
                return
        try:
            lacking = [*self._world.delivered.lacking(number, end), *self.damaged.lost(number, end)]
        except UnreadableError as exc:
            self.broken = f"out-{number}: {exc}"
            return
        if lacking:
            self.broken = f"raw-{number} is committed up to {end}, and {lacking[:5]} are not written"

    def left(self) -> dict[int, tuple[int, int]]:
        """Committed offset and end of each source partition that is not done."""
        world = self._world
        offsets = world.cluster.groups.committed(world.settings.pipelines[0].group_id)
        found = {}
        for number in world.source.written:
            commit = offsets.get(("raw", number))
            end = world.cluster.log("raw", number).end
            behind = end and (commit is None or commit.offset < end)
            if behind or (number in world.losses.unsteady and self._missing(number)):
                found[number] = (-1 if commit is None else commit.offset, end)
        return found

    def _missing(self, number: int) -> bool:
        """Whether something of a partition has come to nothing so far."""
        try:
            return bool(self._world.delivered.lacking(number, self._world.cluster.log("raw", number).end))
        except UnreadableError:
            return False  # as the check in the end says

    def check_end(self) -> None:
        """Raises `Broken` for what does not hold in the end, when all workers have stopped."""
        if self.broken is not None:
            raise Broken(self.broken)
        self._check_output()
        for worker in self._world.workers:
            if (held := excess(worker)) is not None:
                raise Broken(f"{worker.process.name} {held}")
            if not worker.process.dead:
                self._check_stopped(worker)
        if self._world.loop.troubles:
            raise Broken(f"the event loop reports {self._world.loop.troubles[0]}")

    def _check_output(self) -> None:
        world = self._world
        if world.scenario.exactly_once and (twice := self.damaged.twice()):
            raise Broken(f"two dead letters for the batches at {twice}")
        for number in world.source.written:
            try:
                fault = world.delivered.faults(number)
            except UnreadableError as exc:
                fault = str(exc)
            if fault is not None:
                raise Broken(f"out-{number}: {fault}")

    def _check_stopped(self, worker: Worker) -> None:
        name = worker.process.name
        if (held := left_over(worker)) is not None:
            raise Broken(f"{name} {held}")
        for task in self._world.loop.tasks:
            if not task.done() and self._world.loop.context_of(task).get(PROCESS) is worker.process:
                raise Broken(f"{name} has left a task: {task.get_coro().__qualname__}")  # type: ignore[union-attr]
