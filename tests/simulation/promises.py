"""What must hold in each history: at each commit, and in the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.simulation.commit_history import CommitHistory
from tests.simulation.damaged import Damaged
from tests.simulation.groups import Commit
from tests.simulation.loop import PROCESS
from transforms.record import Record

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
                if before is not None and self.broken is None:
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
        if commit is not None:
            self._check_durable(number, commit.offset)

    def _check_durable(self, number: int, end: int) -> None:
        if self.broken is not None or number in self._world.losses.unsteady:
            return
        out: set[bytes] = set()
        for name in ("out", "dead"):
            for log in self._world.cluster.logs(name):
                out |= {record.key for _, record in log.committed()}
        written = self._world.source.written[number]
        keys = [key for offset, key in written if offset < end]
        missing: list[Any] = [key for key in self._world.losses.wanted(keys, out) if key not in out]
        missing += self.damaged.lost(number, end)
        if missing:
            self.broken = f"raw-{number} is committed up to {end}, and {missing[:5]} are not written"

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

    def _missing(self, number: int) -> list[bytes]:
        found = {record.key for log in self._world.cluster.logs("out") for _, record in log.committed()}
        keys = [key for _, key in self._world.source.written[number]]
        return [key for key in self._world.losses.wanted(keys, found) if key not in found]

    def check_end(self) -> None:
        """Raises `Broken` for what does not hold in the end, when all workers have stopped."""
        if self.broken is not None:
            raise Broken(self.broken)
        self._check_output()
        for worker in self._world.workers:
            if not worker.process.dead:
                self._check_stopped(worker)
        if self._world.loop.troubles:
            raise Broken(f"the event loop reports {self._world.loop.troubles[0]}")

    def _check_output(self) -> None:
        world = self._world
        if world.scenario.exactly_once and (twice := self.damaged.twice()):
            raise Broken(f"two dead letters for the batches at {twice}")
        for number, written in world.source.written.items():
            rows = self._rows(number)
            found = [record.key for record in rows]
            wanted = [key for _, key in written]
            first = [*dict.fromkeys(found)]
            if number in world.losses.repeated:  # read from where the former topic was, and then from the first one
                first = [*dict.fromkeys(reversed(found))][::-1]
            if self.damaged.ended_all:  # what is behind the damage may not be there, nor all of the other partitions
                behind = [at for at, _ in world.source.damaged[number]] or [2**63]
                wanted = [key for offset, key in written if offset < min(behind)]
            wanted = world.losses.wanted(wanted, set(first))
            if world.losses.unsteady:
                first = [key for key in first if key not in world.losses.gone]
                wanted = [key for key in wanted if key not in world.losses.gone]
            if self.damaged.ended_all:
                wanted = wanted[: len(first)]
            if first != wanted:
                missing = [each for each in wanted if each not in first]
                if missing:
                    raise Broken(f"out-{number}: lost {missing[:5]} of {len(wanted)}")
                raise Broken(f"out-{number}: the order is {first}, not {wanted}")
            self._check_records(number, [Record(row.key, row.value, row.headers, row.timestamp) for row in rows])
            twice = [each for each in first if found.count(each) > 1]
            if world.scenario.exactly_once and twice and number not in world.losses.repeated:
                raise Broken(f"out-{number}: twice {twice[:5]} of {len(wanted)}")

    def _rows(self, number: int) -> list[Any]:
        """The records of a source partition in the sink: in the order of the source if the key has decided."""
        logs, written = self._world.cluster.logs("out"), self._world.source.written[number]
        if not self._world.losses.rerouted:
            return [record for _, record in logs[number].committed()]
        places = {key: offset for offset, key in written}
        rows = []
        for log in logs:
            mine = [record for _, record in log.committed() if record.key.startswith(b"p%d-" % number)]
            order = [places[key] for key in dict.fromkeys(each.key for each in mine) if key in places]
            if order != sorted(order):
                raise Broken(f"raw-{number}: its records are in a partition of out in the order {order}")
            rows += mine
        return sorted(rows, key=lambda each: places.get(each.key, -1))

    def _check_records(self, number: int, found: list[Record]) -> None:
        """Each is whole: what the source has, or a reference to it."""
        world = self._world
        for record in found:
            wanted = world.source.records[record.key or b""]
            headers, value = [*record.headers], record.value
            if ("large-message", b"true") in headers:
                value = world.store.payloads.get((value or b"").decode())
                headers = [each for each in headers if not each[0].startswith("large-message")]
            whole = Record(record.key, value, tuple(headers), record.timestamp)
            if whole != wanted:
                raise Broken(f"out-{number}: {whole} is not {wanted}")

    def _check_stopped(self, worker: Worker) -> None:
        name = worker.process.name
        if worker.budget.used:
            raise Broken(f"{name} holds {worker.budget.used} bytes of the budget in the end")
        for task in self._world.loop.tasks:
            if not task.done() and self._world.loop.context_of(task).get(PROCESS) is worker.process:
                raise Broken(f"{name} has left a task: {task.get_coro().__qualname__}")  # type: ignore[union-attr]
