"""A limit of time for work on hostile input whose size says nothing of how long it takes."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["TimeIsUpError", "within"]

_T = TypeVar("_T")
_TICK = 0.05


class TimeIsUpError(Exception):
    """The work took more time than it had."""


class _InterruptionError(BaseException):
    """No `Exception`: code that handles those would take it for an error of its own."""


class _Clock:
    """Counts the CPU time of the process, from the first work on: to set a timer for each value would cost more."""

    def __init__(self) -> None:
        self.left = math.inf
        self.ticks = False
        os.register_at_fork(after_in_child=self._stopped)

    def start(self) -> None:
        """Begins to count, in the main thread."""
        signal.signal(signal.SIGVTALRM, self._tick)
        signal.setitimer(signal.ITIMER_VIRTUAL, _TICK, _TICK)
        self.ticks = True

    def _tick(self, *_: object) -> None:
        self.left -= _TICK
        if self.left < 0:  # again with each tick: an interruption in a finalizer is lost
            raise _InterruptionError

    def _stopped(self) -> None:
        """A process does not inherit timers."""
        self.left, self.ticks = math.inf, False


_clock = _Clock()


def within(seconds: float, work: Callable[[], _T]) -> _T:
    """The result of some work in Python, which is interrupted after this time of the process's CPU.

    Python's `re` is interrupted, too; other C code is not. Works in the main thread alone, where Spark's Python
    workers run all tasks; elsewhere there is no limit. Not to be nested.

    Raises:
        TimeIsUpError: the time was over first.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return work()
    if not _clock.ticks:
        _clock.start()
    try:
        _clock.left = seconds
        try:
            return work()
        finally:
            _clock.left = math.inf
    except _InterruptionError:
        _clock.left = math.inf
        raise TimeIsUpError from None
