"""How what is asked of a pipeline comes to the workers of its group: to this one, or by `control.topic` to all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from faust import Service

from app.kafka.clients import ClusterError
from app.kafka.shielded import shielded
from app.kafka.topic_log import UnacknowledgedError
from app.pipeline.control_topic import ControlTopic
from app.pipeline.report import PipelineControl, SteeringError, Target
from transforms.control_record import Request, Restart, TargetStateRequest
from transforms.errors import WideloadError
from transforms.logger_name import logger_name

__all__ = ["GroupSteering", "OwnSteering"]

log = logging.getLogger(logger_name(__name__))

_ANSWER_S = 20.0
_READY_S = 10.0
_FIRST_DELAY_S, _LAST_DELAY_S = 0.5, 30.0
_NOT_KNOWN = (
    "whether the request was written is not known, and it may still take effect: look at the status, and ask again"
)
_STOPS = "the worker stops; ask another worker of the group"


class OwnSteering:
    """Steers the pipelines of this worker, until it ends. A `Steering`."""

    shared = False
    trouble: str | None = None

    async def steer(self, pipeline: PipelineControl, target: Target) -> None:
        """See `Steering`."""
        pipeline.steer(target)

    async def begin_anew(self, pipeline: PipelineControl, *, only_failed: bool) -> None:
        """See `Steering`."""
        _begin_anew(pipeline, only_failed=only_failed)


class GroupSteering(Service):
    """Steers the pipelines of all workers of their groups, for good. A `Steering`, and a service of the Faust app.

    What is asked for is written to the topic, and this worker obeys it as all others do: when it reads it there. So all
    workers obey in the same order. It is to start before the pipelines.

    Args:
        topic: what it says by now holds from the beginning.
        pipelines: of this worker.

    Attributes:
        trouble: why the topic cannot be read; None if it can.
    """

    logger = logging.getLogger("faust")  # "Starting...", "Stopping..." and the like
    shared = True

    def __init__(self, topic: ControlTopic, pipelines: Sequence[PipelineControl]) -> None:
        super().__init__()
        self._topic = topic
        self._pipelines = {pipeline.settings.group_id: pipeline for pipeline in pipelines}
        self._following: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._turn = asyncio.Lock()
        self._writing: set[asyncio.Task[asyncio.Event]] = set()
        self._patience: set[asyncio.Timeout] = set()
        self._stopping = False
        self.trouble: str | None = None
        for group, target in topic.targets.items():
            self._pipelines[group].steer(target)
        topic.listener = self._obey

    @property
    def label(self) -> str:
        """The name of this service in Faust's log."""
        return f"Steering: {self._topic.name}"

    async def on_start(self) -> None:
        """Reads on, and returns when what was written meanwhile holds too; or soon, where no broker answers."""
        self._following = asyncio.get_running_loop().create_task(self._follow())
        try:
            await asyncio.wait_for(self._ready.wait(), _READY_S)
        except TimeoutError:
            log.warning("control.topic %s: pipelines begin as it was when the worker started", self._topic.name)

    async def on_stop(self) -> None:
        """Reads no further; who waits for an answer is told so."""
        self._stopping = True
        self._ready.set()
        for each in self._patience:
            if not each.expired():
                each.reschedule(0)
        tasks = [*self._writing, *([self._following] if self._following is not None else [])]
        for task in tasks:
            if not task.cancelling():  # its time is over, and it stops its producer
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def steer(self, pipeline: PipelineControl, target: Target) -> None:
        """See `Steering`."""
        await self._ask(TargetStateRequest(pipeline.settings.group_id, target))

    async def begin_anew(self, pipeline: PipelineControl, *, only_failed: bool) -> None:
        """See `Steering`."""
        await self._ask(Restart(pipeline.settings.group_id, only_failed))

    async def _ask(self, request: Request) -> None:
        """Returns when the request was written, and this worker has obeyed it."""
        if self._stopping:
            raise SteeringError(_STOPS, retriable=True)
        begun = False
        try:
            async with self._patient() as limit:
                # Who asked first is written first: the turn ends with the write, even if nobody waits for it any more.
                await self._turn.acquire()
                begun = True
                # A task of its own: the answer does not wait until the producer is stopped.
                written = asyncio.get_running_loop().create_task(self._write(request, limit.when()))
                self._writing.add(written)
                written.add_done_callback(self._written)
                await (await _outcome(written)).wait()
        except TimeoutError as exc:
            raise SteeringError(self._unanswered(begun=begun), retriable=True) from exc
        except UnacknowledgedError as exc:
            told = f"control.topic {self._topic.name}: {exc}; {_NOT_KNOWN}"
            raise SteeringError(told, retriable=exc.retriable) from exc
        except WideloadError as exc:
            retriable = isinstance(exc, ClusterError) and exc.retriable
            told = f"control.topic {self._topic.name}: the request was not written: {exc}"
            raise SteeringError(told, retriable=retriable) from exc

    async def _write(self, request: Request, until_s: float | None) -> asyncio.Event:
        """Writes a request, but nothing that was answered already: it would come into effect behind a later one."""
        async with asyncio.timeout_at(until_s):
            return await self._topic.write(request)

    @asynccontextmanager
    async def _patient(self) -> AsyncIterator[asyncio.Timeout]:
        async with asyncio.timeout(_ANSWER_S) as limit:
            self._patience.add(limit)
            try:
                yield limit
            finally:
                self._patience.discard(limit)

    def _unanswered(self, *, begun: bool) -> str:
        why = "the worker stops" if self._stopping else f"Kafka has not answered within {_ANSWER_S:.0f} s"
        if not begun:
            return f"control.topic {self._topic.name}: {why}; the request was not written: ask again"
        return f"control.topic {self._topic.name}: {why}; {_NOT_KNOWN}"

    def _written(self, task: asyncio.Task[asyncio.Event]) -> None:
        self._turn.release()
        self._writing.discard(task)

    def _obey(self, request: Request) -> None:
        pipeline = self._pipelines[request.group]
        if isinstance(request, Restart):
            _begin_anew(pipeline, only_failed=request.only_failed)
        else:
            pipeline.steer(request.state)

    async def _follow(self) -> None:
        delay_s = _FIRST_DELAY_S

        def ready() -> None:
            nonlocal delay_s
            if self.trouble is not None:
                log.info("control.topic %s is read again", self._topic.name)
            delay_s, self.trouble = _FIRST_DELAY_S, None
            self._ready.set()

        while True:
            try:
                await self._topic.follow(ready)
            except WideloadError as exc:
                told = f"control.topic {self._topic.name} cannot be read, so no request arrives: {exc}"
                if self.trouble is None:
                    log.warning("%s", told)
                self.trouble = told
            except Exception as exc:  # a defect of ours: the pipelines go on as they are
                log.exception("control.topic %s: unexpected error", self._topic.name)
                self.trouble = f"control.topic {self._topic.name}: unexpected {type(exc).__name__}"
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, _LAST_DELAY_S)


async def _outcome(written: asyncio.Task[asyncio.Event]) -> asyncio.Event:
    """What comes of a write; TimeoutError if the stop of the worker has ended it, before who asked is answered."""
    try:
        return await shielded(written)
    except asyncio.CancelledError:
        if written.cancelled():
            raise TimeoutError from None
        raise


def _begin_anew(pipeline: PipelineControl, *, only_failed: bool) -> None:
    if not only_failed or pipeline.status == "FAILED":
        pipeline.begin_anew()
