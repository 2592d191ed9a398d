"""How what is asked of a pipeline comes to the workers of its group: to this one, or by `control.topic` to all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from faust import Service

from app.kafka.clients import ClusterError
from app.kafka.shielded import retrieve_exception
from app.kafka.topic_log import UnacknowledgedError
from app.pipeline.control_topic import ControlTopic
from app.pipeline.report import PipelineControl, SteeringError, Target
from transforms.control_record import Request, Restart, TargetStateRequest
from transforms.errors import WideloadError
from transforms.logger_name import logger_name

log = logging.getLogger(logger_name(__name__))

_ANSWER_S = 20.0
_READY_S = 10.0
_FIRST_DELAY_S, _LAST_DELAY_S = 0.5, 30.0
_NOT_KNOWN = "whether the request was written is unknown, and it may still take effect: check the status, and retry"
_STOPS = "the worker stops"


class OwnSteering:
    """Steers the pipelines of this worker, until it ends. A `Steering`."""

    shared = False
    trouble: str | None = None

    async def steer(self, pipeline: PipelineControl, target: Target) -> None:
        """See `Steering`."""
        pipeline.steer(target)

    async def request_restart(self, pipeline: PipelineControl, *, only_failed: bool) -> None:
        """See `Steering`."""
        _request_restart(pipeline, only_failed=only_failed)


class GroupSteering(Service):
    """Steers the pipelines of all workers of their groups, for good. A `Steering`, and a service of the Faust app.

    A request is written to the topic, and this worker applies it as all others do, when it reads it there. All workers
    therefore apply requests in one order. It must start before the pipelines.

    Args:
        topic: its current content applies from the start.
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
        self._asking: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self.trouble: str | None = None
        for group, target in topic.targets.items():
            self._pipelines[group].steer(target)
        topic.listener = self._obey

    @property
    def label(self) -> str:
        """The name of this service in Faust's log."""
        return f"Steering: {self._topic.name}"

    async def on_start(self) -> None:
        """Continues reading, and returns when all that was written is applied; or soon, if no broker answers."""
        self._following = asyncio.get_running_loop().create_task(self._follow())
        try:
            await asyncio.wait_for(self._ready.wait(), _READY_S)
        except TimeoutError:
            log.warning("control.topic %s: pipelines begin as it was when the worker started", self._topic.name)

    async def on_stop(self) -> None:
        """Reads no further; requests that wait are answered."""
        self._stopping.set()
        self._ready.set()
        tasks = list(self._asking)
        for task in self._asking:
            if not task.cancelling():  # its time is over, and it stops its producer
                task.cancel()
        if self._following is not None:  # whatever else ends in this moment: it would continue reading
            self._following.cancel()
            tasks.append(self._following)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def steer(self, pipeline: PipelineControl, target: Target) -> None:
        """See `Steering`."""
        await self._ask(TargetStateRequest(pipeline.settings.group_id, target))

    async def request_restart(self, pipeline: PipelineControl, *, only_failed: bool) -> None:
        """See `Steering`."""
        await self._ask(Restart(pipeline.settings.group_id, only_failed))

    async def _ask(self, request: Request) -> None:
        """Returns when the request was written, and this worker has applied it."""
        if self._stopping.is_set():
            raise SteeringError(f"{_STOPS}; ask another worker of the group", retriable=True)
        begun = asyncio.Event()
        # A separate task: the answer does not wait until the producer is stopped.
        asking = asyncio.create_task(self._write(request, begun))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        asking.add_done_callback(retrieve_exception)
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([asking, stopping], timeout=_ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        error = asking.exception() if asking.done() and not asking.cancelled() else TimeoutError()
        if isinstance(error, (TimeoutError, WideloadError)):
            raise self._unanswered(error, begun=begun.is_set()) from error
        if error is not None:
            raise error

    def _unanswered(self, error: BaseException, *, begun: bool) -> SteeringError:
        topic = f"control.topic {self._topic.name}"
        if isinstance(error, TimeoutError):
            why = _STOPS if self._stopping.is_set() else f"Kafka has not answered within {_ANSWER_S:.0f} s"
            known = _NOT_KNOWN if begun else "the request was not written: retry"
            return SteeringError(f"{topic}: {why}; {known}", retriable=True)
        retriable = isinstance(error, ClusterError) and error.retriable
        if isinstance(error, UnacknowledgedError):
            return SteeringError(f"{topic}: {error}; {_NOT_KNOWN}", retriable=retriable)
        return SteeringError(f"{topic}: the request was not written: {error}", retriable=retriable)

    async def _write(self, request: Request, begun: asyncio.Event) -> None:
        """Writes the request in its turn, which lasts until its producer is stopped, and waits until it was read.

        It ends in time: what was answered already is not written, or it would take effect behind a later request.
        """
        async with asyncio.timeout(_ANSWER_S):
            async with self._turn:
                begun.set()
                read = await self._topic.write(request)
            await read.wait()

    def _obey(self, request: Request) -> None:
        pipeline = self._pipelines[request.group]
        if isinstance(request, Restart):
            _request_restart(pipeline, only_failed=request.only_failed)
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
            except Exception as exc:  # a defect of ours: the pipelines stay as they are
                log.exception("control.topic %s: unexpected error", self._topic.name)
                self.trouble = f"control.topic {self._topic.name}: unexpected {type(exc).__name__}"
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, _LAST_DELAY_S)


def _request_restart(pipeline: PipelineControl, *, only_failed: bool) -> None:
    if not only_failed or pipeline.status == "FAILED":
        pipeline.request_restart()
