"""Calls of a store with a deadline and with retries after transient errors.

obstore's blocking functions have no deadline for a call including its retries. Each attempt therefore runs in a
separate thread, which is abandoned at the deadline and ends with the timeouts of its connection. obstore's async
functions could be cancelled, but a process that exits soon after one of them is killed by SIGABRT one time in five
(obstore 0.12.1, Python 3.11), because its threads then use an interpreter that no longer exists.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TypeVar

from stores.http_time import LateError
from transforms.errors import PayloadStoreError

__all__ = ["Calls", "LateError"]

_T = TypeVar("_T")

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 20.0


@dataclass(frozen=True, slots=True)
class Calls:
    """How long calls may take, and how often they are tried.

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

    def run(self, attempt: Callable[[float], _T], once: float, deadline: float) -> _T:
        """The result of the first attempt that succeeds. May be called by any thread.

        Args:
            attempt: gets the seconds that it has; it is not interrupted, but left alone after them.
            once: the longest time of one attempt, in seconds.
            deadline: from `deadline`.

        Raises:
            LateError: no attempt ended in time.
            PayloadStoreError: this process was forked after the first call.
            Exception: what the last attempt raised.
        """
        _check_process()
        number = 1
        while True:
            try:
                return _within(attempt, min(once, _left(deadline)))
            except Exception as exc:
                pause = self._pause(number, exc, deadline)
                if pause is None:
                    raise
            time.sleep(pause)
            number += 1

    def _pause(self, number: int, exc: Exception, deadline: float) -> float | None:
        """The seconds before the next attempt; None if there is none."""
        if number >= self.attempts or not (isinstance(exc, LateError) or self.may_pass(exc)):
            return None
        longest = min(_FIRST_PAUSE_S * 2 ** min(number, 10), _LONGEST_PAUSE_S)
        # Calls that failed together must not be retried together.
        pause = longest * random.uniform(0.5, 1)  # noqa: S311  (no secret)
        return None if time.monotonic() + pause >= deadline else pause


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise LateError("no response within the time allowed")
    return left


def _within(attempt: Callable[[float], _T], seconds: float) -> _T:
    done: Future[_T] = Future()

    def run() -> None:
        try:
            done.set_result(attempt(seconds))
        except BaseException as exc:  # noqa: BLE001  (raised where it is waited for)
            done.set_exception(exc)

    threading.Thread(target=run, name="wideload-cloud-call", daemon=True).start()
    try:
        return done.result(seconds)
    except FutureTimeoutError:
        if done.done():
            raise  # it is the attempt's own
        raise LateError(f"no complete response within {seconds:,.1f} s") from None


_first_process: int | None = None


def _check_process() -> None:
    global _first_process  # noqa: PLW0603  (obstore's threads are there once for a process)
    if _first_process is None:
        _first_process = os.getpid()
    elif _first_process != os.getpid():
        raise PayloadStoreError(
            "obstore uses threads, which a forked process does not inherit, so the stores gcs and azure cannot be used "
            f"in a process that was forked (from {_first_process}) after their first use; fork before that, or use "
            "the start method spawn or forkserver"
        )
