"""Tasks in the background: nobody awaits them, and an end that nobody has asked for is noticed all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from transforms.errors import WideloadError

__all__ = ["TaskEndedError", "begin"]

T = TypeVar("T")


class TaskEndedError(WideloadError):
    """A task has ended that goes on until it is cancelled, or it was cancelled by nobody who may."""


def begin(
    work: Coroutine[Any, Any, T], failed: Callable[[BaseException], None], *, lasting: bool = False
) -> asyncio.Task[T]:
    """Begins a task; its end counts as a failure unless it returns, or `cancel` was called.

    Args:
        work: what it does.
        failed: called with what it has raised; with a `TaskEndedError` if it has raised nothing.
        lasting: whether it goes on until it is cancelled, so that it fails if it returns, too.
    """
    task = asyncio.get_running_loop().create_task(work)

    def look(_: object) -> None:
        error = None if task.cancelled() else task.exception()
        if task.cancelling():
            return
        if error is None and (lasting or task.cancelled()):
            error = TaskEndedError(f"{cast('Any', work).__qualname__} has ended, which goes on until it is stopped")
        if error is not None:
            failed(error)

    task.add_done_callback(look)
    return task
