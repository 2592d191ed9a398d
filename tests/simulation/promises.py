"""What must hold in each history: at each commit, and in the end."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from app.kafka.structs import TopicPartition
from app.pipeline.lane import RECORD_OVERHEAD_BYTES
from tests.simulation.delivered import Damaged, UnreadableError
from tests.simulation.groups import Commit
from tests.simulation.scenario import MOST_BYTES

if TYPE_CHECKING:
    from tests.simulation.partition_log import PartitionLog
    from tests.simulation.worker import Worker
    from tests.simulation.world import World


class Broken(AssertionError):  # noqa: N818  # it is no error of the simulation
    """A promise that a history has broken."""


class Promises:
    def __init__(self, world: World) -> None:
        self._world = world
        self.damaged = Damaged(world)  # the batches that no reader can decode
        self._commits: dict[PartitionLog, int] = {}  # the last one of each log; that of another topic is another object

    def committed(self, group: str, offsets: Mapping[Any, Commit]) -> None:
        """Each record below a committed offset is durable, and no offset goes back."""
        for (topic, number), commit in offsets.items():
            if topic == "raw" and number not in self._world.losses.unsteady:
                log = self._world.cluster.log(topic, number)
                before = self._commits.get(log, -1)
                self._commits[log] = commit.offset
                # That writes records again: at least once no record is lost, so no other promise shows it.
                if commit.offset < before <= log.end and not self._world.defect.raised:
                    self._world.breaks(f"raw-{number}: offset {commit.offset} is committed behind {before}")
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
        if self._world.broken is not None or number in self._world.losses.unsteady:
            return
        for worker in self._world.alive:
            if (held := excess(worker)) is not None:
                self._world.breaks(f"{worker.process.name} {held}")
                return
        try:
            lacking = [*self._world.delivered.lacking(number, end), *self.damaged.lost(number, end)]
        except UnreadableError as exc:
            self._world.breaks(f"out-{number}: {exc}")
            return
        if lacking:
            self._world.breaks(f"raw-{number} is committed up to {end}, and {lacking[:5]} are not written")

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
        if self._world.broken is not None:
            raise Broken(self._world.broken)
        self._check_output()
        for worker in self._world.actors:
            held = excess(worker) or (None if worker.process.dead else left_over(worker))
            if held is not None:
                raise Broken(f"{worker.process.name} {held}")
        self._world.check_left()

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


_ONE_RECORD = 5 * (MOST_BYTES + 1_100) + RECORD_OVERHEAD_BYTES
"""The largest record of `Messages`, with the copies that it takes to split and to compress it."""


def excess(worker: Worker) -> str | None:
    """What the worker has held over its limits so far; None for nothing."""
    budget = worker.budget
    if budget.peak > budget.limit + _ONE_RECORD:
        return f"has held {budget.peak:,} bytes of {budget.limit:,} in flight, and one record"
    if min(budget.used, budget.work, budget.ahead) < 0:
        return f"counts {budget.used:,} bytes, {budget.work:,} with work, {budget.ahead:,} read ahead"
    pipeline = worker.pipeline
    held = None if pipeline is None or pipeline.flow is None else pipeline.flow._assembler
    if pipeline is not None and held is not None:
        limits = pipeline.settings.chunks.limits
        if held.pending > limits.messages + _REPEATED or held.pending_bytes > limits.pending_bytes:
            return f"holds {held.pending} messages of chunks, {held.pending_bytes:,} bytes"
    return None


def left_over(worker: Worker) -> str | None:
    """What a worker that has stopped still holds; None for nothing."""
    budget = worker.budget
    if budget.used or budget.work or budget.ahead or budget.shares:
        return f"holds {budget.used:,} bytes, {budget.work:,} with work, {budget.ahead:,} read ahead, in the end"
    return None


_REPEATED = 50  # `pending_messages` has those that come again after they were delivered


_PRODUCE = 0
_STAMP_AT = 43
_CRC_AT = 17
_STAMP = struct.Struct(">qhii")  # producer id, epoch, first sequence number, count of records


class Ownership:
    """Who writes a partition of the sink: the worker that the group has given the source partition of that number.

    What a worker had on its way when it lost the partition may still come, as with any client of Kafka. Nothing else
    may: it would come behind what the next owner has written.
    """

    def __init__(self) -> None:
        self._sent: dict[tuple[int, int, int, int], tuple[bytes, int]] = {}
        self._late: Counter[tuple[str, int]] = Counter()

    def sent(self, worker: Worker, request: Any) -> str | None:
        if request.API_KEY != _PRODUCE:
            return None
        for topic, partitions in request.topics:
            for number, data in partitions if topic == "out" else ():
                if (wrong := self._batch(worker, number, bytes(data))) is not None:
                    return wrong
        return None

    def _batch(self, worker: Worker, number: int, data: bytes) -> str | None:
        *stamp, count = _STAMP.unpack_from(data, _STAMP_AT)
        place, crc = (number, *stamp), data[_CRC_AT : _CRC_AT + 4]
        before = self._sent.get(place)
        self._sent[place] = crc, count
        if before is not None and before[0] == crc:
            return None  # sent again
        late = worker.process.name, number
        if self._holds(worker, number):
            self._late[late] = 0
            return None
        self._late[late] += 1
        if before is not None and before[1] == 1:
            return f"{worker.process.name} writes to out-{number} in the place of a refused record of a lost partition"
        if self._late[late] > 1:
            return f"{worker.process.name} begins one batch of out-{number} after the other, which it has lost"
        return None

    def _holds(self, worker: Worker, number: int) -> bool:
        flow = None if worker.pipeline is None else worker.pipeline.flow
        if flow is None or flow._leaving or flow._plan.sink_partition("raw", number) != number:
            return True  # it ends, or the key decides on the partition
        place = TopicPartition("raw", number)
        if flow._lanes.get(place) is not None:
            return True
        source: Any = flow._source
        return place in source.consumer.assignment() and not source.rebalancing
