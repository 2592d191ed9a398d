"""The termination of a flow: any part of the flow may bring it about; the first error counts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from app.pipeline import background
from transforms.errors import WideloadError
from transforms.logger_name import logger_name
from transforms.record import SourceRecord

log = logging.getLogger(logger_name(__name__))

T = TypeVar("T")

_LOOK_S = 0.2


class DefectError(WideloadError):
    """A defect of this project has ended the flow; the log has its traceback already."""


class RecordError(WideloadError):
    """A record stopped the pipeline, by `errors.tolerance = "none"` or because the store refuses all records.

    Attributes:
        topic, partition, offset: the place of the record.
        record: the record.
        error: why.
    """

    def __init__(self, record: SourceRecord, error: BaseException, advice: str) -> None:
        super().__init__(record, error, advice)
        self.record = record
        self.topic = record.topic
        self.partition = record.partition
        self.offset = record.offset
        self.error = error
        self._message = f"topic {record.topic}, partition {record.partition}, offset {record.offset}: {error}{advice}"

    def __str__(self) -> str:
        return self._message


class Termination:
    """Says whether a flow is to end. Belongs to its event loop.

    Args:
        pipeline: the name of the pipeline, for the log.
        wake: called on the first failure, and when the flow is asked to stop: the flow may be waiting.

    Attributes:
        error: the first failure; None if there is none.
        asked: True once the flow has been asked to stop.
    """

    def __init__(self, pipeline: str, wake: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        self.asked = False
        self._pipeline = pipeline
        self._wake = wake

    def ask(self) -> None:
        """Asks the flow to drain and to stop."""
        self.asked = True
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Ends the flow with `error`, if it is the first one: later errors mostly follow from that."""
        if self.error is None:
            self.error = error
            self._wake()

    def fail_by_defect(self, error: BaseException, record: SourceRecord | None = None) -> None:
        """Ends the flow with an unexpected error, and logs its traceback.

        Args:
            error: a defect of this project.
            record: the record that was in hand; None if there was none.
        """
        log.error("pipeline %s: unexpected error", self._pipeline, exc_info=error)
        if record is not None:
            error = RecordError(record, error, "")
        elif not isinstance(error, WideloadError):
            error = DefectError(f"unexpected {type(error).__name__}: {error}")
        self.fail(error)

    def begin(self, work: Coroutine[Any, Any, T], *, lasting: bool = False) -> asyncio.Task[T]:
        """Begins a task of the flow, which ends the flow if it fails; see `background.begin`."""
        return background.begin(work, self._failed, lasting=lasting)

    def _failed(self, error: BaseException) -> None:
        ended = isinstance(error, background.TaskEndedError)
        if ended and (self.asked or self.error is not None):
            return  # it has ended the flow, or does so with it
        if ended or not isinstance(error, background.FORESEEN):
            self.fail_by_defect(error)
        else:
            self.fail(error)

    async def unless_ended(self, asking: Coroutine[None, None, None]) -> None:
        """Waits for an answer of the brokers, which may be unavailable, but no longer than the flow runs."""
        task = asyncio.get_running_loop().create_task(asking)
        try:
            while not task.done() and not self.asked and self.error is None:
                await asyncio.wait([task], timeout=_LOOK_S)
            if task.done():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def raise_error(self) -> None:
        """Raises the first failure, if there is one."""
        if self.error is not None:
            raise self.error
