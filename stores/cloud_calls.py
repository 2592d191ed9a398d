"""Calls of a store on an event loop of its own thread: each within a time, and again after errors that may pass.

The functions of obstore that block know no deadline for a call with its retries. Those for an event loop can be
cancelled at any point, which closes their connection.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from transforms.errors import PayloadStoreError

__all__ = ["Calls", "LateError"]

_T = TypeVar("_T")

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 20.0


class LateError(Exception):
    """The time for a call, or for one attempt of it, is over."""


@dataclass(frozen=True, slots=True)
class Calls:
    """How long calls take at most, and how often they are tried.

    Attributes:
        seconds: the longest time of a call, with its retries and the pauses between them.
        attempts: the most attempts, the first one included.
        may_pass: whether another attempt may succeed where this error came.
    """

    seconds: float
    attempts: int
    may_pass: Callable[[Exception], bool]

    def deadline(self) -> float:
        """When a call that begins now must end, in seconds of the monotonic clock."""
        return time.monotonic() + self.seconds

    def run(self, attempt: Callable[[], Awaitable[_T]], once: float, deadline: float | None = None) -> _T:
        """The result of the first attempt that succeeds. May be called by any thread.

        Args:
            attempt: begins an attempt.
            once: the longest time of one attempt, in seconds.
            deadline: from `deadline`; now by default.

        Raises:
            LateError: no attempt ended in time.
            PayloadStoreError: this process was forked after the first call.
            Exception: what the last attempt raised.
        """
        ends = self.deadline() if deadline is None else deadline
        future = asyncio.run_coroutine_threadsafe(self._run(attempt, once, ends), _loop())
        try:
            return future.result()
        except BaseException:
            future.cancel()  # where the caller was interrupted
            raise

    def repeat(self, attempt: Callable[[float], _T], deadline: float) -> _T:
        """As `run`, for an attempt that blocks and keeps the time that it is given, in seconds."""
        number = 1
        while True:
            try:
                return attempt(_left(deadline))
            except Exception as exc:
                pause = self._pause(number, exc, deadline)
                if pause is None:
                    raise
            time.sleep(pause)
            number += 1

    async def _run(self, attempt: Callable[[], Awaitable[_T]], once: float, deadline: float) -> _T:
        number = 1
        while True:
            try:
                return await _within(attempt, min(once, _left(deadline)))
            except Exception as exc:
                pause = self._pause(number, exc, deadline)
                if pause is None:
                    raise
            await asyncio.sleep(pause)
            number += 1

    def _pause(self, number: int, exc: Exception, deadline: float) -> float | None:
        """The seconds before the next attempt; None if there is none."""
        if number >= self.attempts or not (isinstance(exc, LateError) or self.may_pass(exc)):
            return None
        longest = min(_FIRST_PAUSE_S * 2 ** min(number, 10), _LONGEST_PAUSE_S)
        # Those who failed together must not come again together.
        pause = longest * random.uniform(0.5, 1)  # noqa: S311  (no secret)
        return None if time.monotonic() + pause >= deadline else pause


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise LateError("no answer came in the time allowed")
    return left


async def _within(attempt: Callable[[], Awaitable[_T]], seconds: float) -> _T:
    limit = asyncio.timeout(max(seconds, 0))
    try:
        async with limit:
            return await attempt()
    except TimeoutError as exc:
        if not limit.expired():
            raise
        raise LateError(f"no whole answer came in {seconds:,.1f} s") from exc


class _Thread:
    """The thread of the loop, in the process that started it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="wideload-cloud-calls", daemon=True).start()


_lock = threading.Lock()
_thread: _Thread | None = None


def _loop() -> asyncio.AbstractEventLoop:
    global _thread  # noqa: PLW0603  (one for all stores, as it only waits)
    # Before the lock, which another thread may have held when the process was forked.
    if _thread is not None and _thread.pid != os.getpid():
        raise PayloadStoreError(
            "obstore has threads, which no forked process has, so the stores gcs and azure cannot be used in a process "
            f"that was forked (from {_thread.pid}) after their first use: fork before it, or start processes by spawn "
            "or forkserver"
        )
    with _lock:
        if _thread is None:
            _thread = _Thread()
        return _thread.loop
