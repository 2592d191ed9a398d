"""What is asked of the pipelines while anything happens: to pause, to stop, to go on, to begin anew.

Of one worker, as without `control.topic`, or of all by a topic. A share of the histories has the one or the other.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from aiokafka.record.default_records import DefaultRecordBatch

from app.pipeline.report import SteeringError
from tests.simulation.promises import Broken
from transforms.control_record import TargetState

if TYPE_CHECKING:
    from tests.simulation.worker import Worker
    from tests.simulation.world import World


ASKED: contextvars.ContextVar[str] = contextvars.ContextVar("asked")  # the id of the request that is being asked

TOPIC = "control"

_BY_TOPIC, _STEERED = 0.12, 0.2  # of the histories
_REFUSED = 0.1  # of those by topic: the topic takes no record for longer than a request waits
_REFUSED_S = 26.0
_RESTARTS = ("restart", "restart what has failed")
_ASKED: tuple[str, ...] = (*get_args(TargetState), *get_args(TargetState), *_RESTARTS)
_SLACK_S = 0.01  # what leaves the process in the turns that end a write
_TIMES = 2  # that something is asked in the calm: connections to machines that were away time out first
_SETTLED_S = 90.0  # two of the longest delays of `GroupSteering`, and more


@dataclass(slots=True)
class _Request:
    id: str  # in its record
    what: str
    worker: Worker
    asked_s: float
    answered_s: float | None = None
    answer: str | None = None  # `done`, or the text of the error; None if there was none so far

    @property
    def unwritten(self) -> bool:
        """Whether the answer says that it will never take effect."""
        return self.answer is not None and "the request was not written" in self.answer


class Steering:
    """Asks for things in a world, and looks whether they hold."""

    def __init__(self, world: World) -> None:
        self._world = world
        chance = world.stream("steering")
        drawn = chance.random()
        self.by_topic = drawn < _BY_TOPIC  # whether its workers have a `control.topic`
        self._steered = drawn < _STEERED
        self._refused = self.by_topic and chance.random() < _REFUSED
        self._numbers = itertools.count()
        self._requests: dict[str, _Request] = {}
        self._asking: list[asyncio.Task[None]] = []
        if self.by_topic:
            world.scenario.control_topic = TOPIC

    async def storm(self) -> None:
        world = self._world
        storm_s = world.scenario.storm_s
        if self._refused and world.happens("ask.refused", f"{TOPIC}: too few replicas in sync"):
            storm_s = _REFUSED_S
            topic = world.cluster.topics[TOPIC]
            topic.config["min.insync.replicas"], topic.logs[0].alone = "2", True
            world.restore(storm_s, setattr, topic.logs[0], "alone", False)
        until_s = world.loop.time() + storm_s
        while self._steered and world.loop.time() < until_s:
            chance = world.stream(f"ask {next(self._numbers)}")
            await asyncio.sleep(chance.random() * storm_s / 2)
            what = chance.choice(_ASKED)
            asked = [each for each in world.alive if each.steering is not None]
            if asked:
                worker = chance.choice(asked)
                name = f"ask.{next(self._numbers)}"
                if world.happens(name, f"{worker.process.name} is asked: {what}"):
                    self._asking.append(self._ask(name, what, worker))

    def sends(self, worker: Worker, request: Any) -> str | None:
        """A request leaves a worker; what is wrong with it, or None."""
        if not self.by_topic or request.API_KEY != 0:
            return None
        for topic, partitions in request.topics:
            for _, data in partitions if topic == TOPIC else ():
                for identity, _ in _read(bytes(data)):
                    asked = self._requests[identity]
                    if asked.answered_s is not None and self._world.loop.time() > asked.answered_s + _SLACK_S:
                        return f"{worker.process.name} writes request {identity}, which was answered: {asked.answer}"
        return None

    async def settle(self) -> None:
        """In the calm: what was asked last holds. Then all go on."""
        world = self._world
        if not self._steered:
            return
        await world.until(self._unanswered, "not settled", _SETTLED_S)
        self._check_log()
        await self._world.until(self._unsettled, "not settled", _SETTLED_S)
        for worker in world.alive[:1] if self.by_topic else world.alive:
            await self._done("STARTED", worker)
        await self._world.until(self._unsettled, "not settled", _SETTLED_S)
        await self._restart_failed()
        self._check_log()

    def _ask(self, identity: str, what: str, worker: Worker) -> asyncio.Task[None]:
        request = _Request(identity, what, worker, self._world.loop.time())
        self._requests[identity] = request
        context = worker.context.copy()
        context.run(ASKED.set, identity)
        return self._world.loop.create_task(self._asked(request), context=context)

    async def _asked(self, request: _Request) -> None:
        """As the handlers of `app.web.rest` do it."""
        worker = request.worker
        steering, pipeline = worker.steering, worker.pipeline
        assert steering is not None
        assert pipeline is not None
        try:
            if request.what not in _RESTARTS:
                await steering.steer(pipeline, request.what)  # type: ignore[arg-type]
            elif pipeline.target != "STOPPED":
                await steering.request_restart(pipeline, only_failed=request.what != _RESTARTS[0])
        except SteeringError as exc:
            request.answer = str(exc)
        else:
            request.answer = "done"
        request.answered_s = self._world.loop.time()
        self._world.tell(f"{request.id} is answered by {worker.process.name}: {request.answer}")

    def _unanswered(self) -> str | None:
        for each in self._requests.values():
            if each.answer is None and not each.worker.process.dead:
                return f"request {each.id} is not answered: {each.what}"
        return None

    def _unsettled(self) -> str | None:
        """What of the last requests does not hold."""
        world = self._world
        target = self._last() if self.by_topic else None
        for worker in world.alive:
            if worker.pipeline is None or worker.steering is None:
                return f"{worker.process.name} has not begun"
            if target is not None and worker.pipeline.target != target:
                return f"{worker.process.name} is to be {worker.pipeline.target}, and was asked to be {target}"
            if worker.failed is None and (wrong := _disobeys(worker)) is not None:
                return wrong
        group = world.cluster.groups.group(world.settings.pipelines[0].group_id)
        running = any(each.pipeline.status not in {"STOPPED", "FAILED"} for each in world.alive if each.pipeline)
        if group.members and not running and not world.scenario.static:
            return f"the group of pipelines that were stopped has members: {[*group.members]}"
        return None

    async def _done(self, what: str, worker: Worker) -> None:
        for _ in range(_TIMES):
            name = f"ask.{next(self._numbers)}"
            self._world.tell(f"({name}) {worker.process.name} is asked: {what}")
            await self._ask(name, what, worker)
            if (answer := self._requests[name].answer) == "done":
                return
        raise Broken(f"in the calm request {name} is answered: {answer}")

    async def _restart_failed(self) -> None:
        """Somebody restarts what has failed in the storm: after a restart that was asked for, a pipeline may."""
        failed = {each: each.ends for each in self._world.alive if each.failed is not None and not each.replaced}
        if not failed:
            return
        for worker in [*failed][:1] if self.by_topic else failed:
            await self._done(_RESTARTS[1], worker)

        def still() -> str | None:
            for worker, ends in failed.items():
                if worker.alive and worker.failed is not None and worker.ends == ends:
                    return f"{worker.process.name} was restarted, and is as it was: {worker.failed}"
            return None

        await self._world.until(still, "not settled", _SETTLED_S)

    def _written(self) -> list[tuple[str, str | None]]:
        """Id and target of each request in the log, in order; a restart has no target."""
        log = self._world.cluster.log(TOPIC, 0)
        return [(identity, state) for batch in log.batches for identity, state in _read(batch.data)]

    def _last(self) -> str:
        return next((state for _, state in reversed(self._written()) if state is not None), "STARTED")

    def _check_log(self) -> None:
        """What an answer has said of a request is true, and who asked later is later in the log."""
        if not self.by_topic:
            return
        written = [identity for identity, _ in self._written()]
        for name in written:
            if self._requests[name].unwritten:
                raise Broken(f"request {name} is written, and was answered: {self._requests[name].answer}")
            if written.count(name) > 1:
                raise Broken(f"request {name} is written twice: {written}")
        done = [each for each in self._requests.values() if each.answer == "done" and each.id in written]
        for each in self._requests.values():
            skipped = each.what in _RESTARTS  # of a pipeline that is stopped
            if each.answer == "done" and each.id not in written and not skipped:
                raise Broken(f"request {each.id} was answered as done, and is not written")
            for before in done:
                late = each.id in written and written.index(each.id) < written.index(before.id)
                if late and before.answered_s is not None and before.answered_s < each.asked_s:
                    raise Broken(f"request {each.id} is written before {before.id}, which was done when it was asked")


def _disobeys(worker: Worker) -> str | None:
    """What is wrong with a pipeline that was asked for something a while ago."""
    pipeline, name = worker.pipeline, worker.process.name
    assert pipeline is not None
    status = {"STARTED": "RUNNING"}.get(pipeline.target, pipeline.target)
    if pipeline.status != status:
        return f"{name} is {pipeline.status}, and was asked to be {pipeline.target}"
    if status == "RUNNING":
        return None
    budget = worker.budget
    if budget.used or budget.work or budget.ahead:
        return f"{name} is {status}, and holds {budget.used:,} bytes, {budget.work:,} with work, {budget.ahead:,} ahead"
    flow = pipeline.flow
    pending = 0 if flow is None else flow.report.pending_messages
    if status == "PAUSED" and flow is not None and not pending and (left := flow._lanes.uncommitted()):
        return f"{name} is PAUSED, and has not committed: {left}"
    return None


def _read(data: bytes) -> Iterator[tuple[str, str | None]]:
    for record in DefaultRecordBatch(data):
        fields = json.loads(record.value)
        yield fields["id"], fields.get("state")
