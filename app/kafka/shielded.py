"""Waiting for a future that goes on if its caller is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

__all__ = ["heard", "shielded"]

_Result = TypeVar("_Result")


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
