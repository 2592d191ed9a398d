"""Tasks in the background, which nobody awaits: an unexpected end is reported."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from app.kafka.errors import KafkaError
from transforms.errors import WideloadError
from transforms.logger_name import logger_name

log = logging.getLogger(logger_name(__name__))

T = TypeVar("T")

FORESEEN = (WideloadError, KafkaError, OSError, TimeoutError)
"""The errors that are not defects of this project."""


class TaskEndedError(WideloadError):
    """A task that runs until it is cancelled has ended, or was cancelled other than by `cancel`."""


def begin(
    work: Coroutine[Any, Any, T], failed: Callable[[BaseException], None], *, lasting: bool = False
) -> asyncio.Task[T]:
    """Begins a task; its end counts as a failure unless it returns, or `cancel` was called.

    A defect that comes up on the way out, after `cancel`, is only logged.

    Args:
        work: what it does.
        failed: called with what it has raised; with a `TaskEndedError` if it has raised nothing.
        lasting: whether it runs until it is cancelled, so that its return is a failure, too.
    """
    task = asyncio.get_running_loop().create_task(work)
    name = cast("Any", work).__qualname__

    def look(_: object) -> None:
        error = None if task.cancelled() else task.exception()
        if task.cancelling():
            if error is not None and not isinstance(error, FORESEEN):
                log.error("%s was to end: unexpected error", name, exc_info=error)
            return
        if error is None and (lasting or task.cancelled()):
            error = TaskEndedError(f"{name} has ended, although it was not stopped")
        if error is not None:
            failed(error)

    task.add_done_callback(look)
    return task


async def end(task: asyncio.Task[Any] | None) -> None:
    """Cancels a task and waits until it has ended, whatever it ends with; None does nothing."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
