"""A limit of time for work on hostile input whose size says nothing of how long it takes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import NoReturn, TypeVar

__all__ = ["TimeIsUpError", "within"]

_T = TypeVar("_T")
_AGAIN = 0.1


class TimeIsUpError(Exception):
    """The work took more time than it had."""


class _InterruptionError(BaseException):
    """No `Exception`: code that handles those would take it for an error of its own."""


def within(seconds: float, work: Callable[[], _T]) -> _T:
    """The result of some work in Python, which is interrupted after this time of the process's CPU.

    Python's `re` is interrupted, too; other C code is not. Works in the main thread alone, where Spark's Python
    workers run all tasks; elsewhere there is no limit. Not to be nested.

    Raises:
        TimeIsUpError: the time was over first.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    if signal.getsignal(signal.SIGVTALRM) is not _interrupt:
        signal.signal(signal.SIGVTALRM, _interrupt)
    try:
        # Again and again, as an interruption in a finalizer is lost.
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds, _AGAIN)
        try:
            return work()
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except _InterruptionError:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        raise TimeIsUpError from None


def _interrupt(*_: object) -> NoReturn:
    raise _InterruptionError
