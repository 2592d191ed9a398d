"""Time without waiting: an event loop whose clock stands, and goes on to the next timer where nothing else is to do."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from selectors import DefaultSelector, SelectorKey
from typing import Any

__all__ = ["hurried"]


class _Selector(DefaultSelector):
    """Does not wait for timers, and counts how long it would have."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """What is ready. Without a timer nothing could end the wait: then it is as long as it has to be."""
        found = super().select(timeout if timeout is None else 0.0)
        if not found and timeout is not None:
            self.skipped_s += max(0.0, timeout)
        return found


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _Selector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.skipped_s


def hurried(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs a test on such a loop. Not for one with threads, whose answers come by a clock of their own."""

    @functools.wraps(test)
    def run() -> None:
        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(test())

    return run
