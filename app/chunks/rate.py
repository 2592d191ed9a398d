"""How many a second."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

__all__ = ["Rate"]

_WINDOW_S = 60


class Rate:
    """Counts what happens, and tells how much of it there was a second, over the last minute.

    Args:
        time: seconds of a clock that does not go back.
    """

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._began = time()
        self._seconds: deque[tuple[int, int]] = deque()  # a second, and how many in it

    def count(self) -> None:
        """One more."""
        second = int(self._time())
        before = self._seconds.pop()[1] if self._seconds and self._seconds[-1][0] == second else 0
        self._seconds.append((second, before + 1))
        self._trim()

    def per_second(self) -> float:
        """The rate over the last minute, or since the beginning where that is less."""
        self._trim()
        span = min(max(self._time() - self._began, 1.0), float(_WINDOW_S))
        return sum(number for _, number in self._seconds) / span

    def _trim(self) -> None:
        while self._seconds and self._seconds[0][0] <= self._time() - _WINDOW_S:
            self._seconds.popleft()
