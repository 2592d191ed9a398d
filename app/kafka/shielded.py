"""Waiting: for a future that survives the cancellation of its caller, for tasks to end, and for an event in time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, TypeVar

_Result = TypeVar("_Result")

_TRIES, _END_S = 10, 0.05  # how often a task is cancelled, and how long to wait each time


async def shielded(future: asyncio.Future[_Result], timeout_s: float | None = None) -> _Result:
    """The result of a future, which continues if the caller is cancelled or stops waiting.

    If the future then fails, `asyncio.shield` logs a traceback since Python 3.14; this function does not.

    Raises:
        TimeoutError: it has no result after `timeout_s`; None waits without a limit.
    """
    if not future.done():  # `wait` takes a turn of the event loop even if it is
        future.add_done_callback(retrieve_exception)
        done, _ = await asyncio.wait([future], timeout=timeout_s)
        if not done:
            raise TimeoutError
    return future.result()


def retrieve_exception(done: asyncio.Future[Any]) -> None:
    """Marks the exception of a finished future as retrieved, so that asyncio does not log it."""
    if not done.cancelled():
        done.exception()


async def end_tasks(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancels tasks, and waits until they have ended; None is ignored.

    A task that waits for another one passes its cancellation to that, and continues if the other one just ends, as
    aiokafka's fetcher does in a rebalance. Therefore a task that has not ended is cancelled again.
    """
    left = [task for task in tasks if task is not None]
    for task in left:
        task.add_done_callback(retrieve_exception)
    for _ in range(_TRIES):
        left = [task for task in left if not task.done()]
        if not left:
            return
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=_END_S)


async def set_within(event: asyncio.Event, timeout_s: float) -> None:
    """Waits for an event, at most until the time-out."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), timeout_s)
