"""A limit of time for work on hostile input whose size says nothing of how long it takes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["TimeIsUpError", "within"]

_T = TypeVar("_T")
_AGAIN = 0.1


class TimeIsUpError(Exception):
    """The work took more time than it had."""


class _InterruptionError(BaseException):
    """No `Exception`: code that handles those would take it for an error of its own."""


class _Clock:
    """Measures the CPU time of the process, while there is work.

    Nothing is left behind: a timer that goes off when the interpreter ends, and has taken its handlers away, would kill
    the process.
    """

    def __init__(self) -> None:
        self._handles = False
        self._works = False

    def start(self, seconds: float) -> None:
        """Interrupts after this time, and again and again: an interruption in a finalizer is lost."""
        if not self._handles:
            signal.signal(signal.SIGVTALRM, self._interrupt)
            self._handles = True
        self._works = True
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds, _AGAIN)

    def stop(self) -> None:
        """Interrupts no more."""
        self._works = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _interrupt(self, *_: object) -> None:
        if self._works:
            raise _InterruptionError


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
    try:
        try:
            _clock.start(seconds)
            return work()
        finally:
            _clock.stop()
    except _InterruptionError:
        _clock.stop()
        raise TimeIsUpError from None
