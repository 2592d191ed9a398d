"""Waiting: for a future that goes on if its caller is cancelled, for tasks to end, and for an event in time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, TypeVar

_Result = TypeVar("_Result")

_TRIES, _END_S = 10, 0.05  # to end a task, and how long one may take


async def shielded(future: asyncio.Future[_Result], timeout_s: float | None = None) -> _Result:
    """The result of a future, which goes on if the caller is cancelled, or does not wait any longer.

    Unlike `asyncio.shield`, which logs a traceback since Python 3.14 if the future then fails.

    Raises:
        TimeoutError: it has no result after `timeout_s`; None waits without a limit.
    """
    if not future.done():  # `wait` takes a turn of the event loop even if it is
        future.add_done_callback(heard)
        done, _ = await asyncio.wait([future], timeout=timeout_s)
        if not done:
            raise TimeoutError
    return future.result()


def heard(done: asyncio.Future[Any]) -> None:
    """Looks at the error of a future that is done: the event loop would log one that nobody has looked at."""
    if not done.cancelled():
        done.exception()


async def end_tasks(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancels tasks, and waits until they have ended; None is no task.

    A task that waits for another one hands its cancellation on to that, and goes on if the other one just ends: so does
    aiokafka's fetcher in a rebalance. Whatever has not ended is cancelled again.
    """
    left = [task for task in tasks if task is not None]
    for task in left:
        task.add_done_callback(heard)
    for _ in range(_TRIES):
        left = [task for task in left if not task.done()]
        if not left:
            return
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=_END_S)


async def set_within(event: asyncio.Event, timeout_s: float) -> None:
    """Waits for an event, but no longer than the time-out."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), timeout_s)
