"""Averages and rates over the last minute, as Kafka's own metrics have them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_WINDOW_S = 60  # Kafka's metrics.sample.window.ms × metrics.num.samples


@dataclass(slots=True)
class _Second:
    second: int
    total: float = 0.0
    count: int = 0


class Average:
    """The average of the numbers of the last minute, and how many there were per second, by a monotonic clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s = clock()
        self._seconds: deque[_Second] = deque()

    def add(self, number: float = 1.0, count: int = 1) -> None:
        """Adds `number`, the sum of `count` numbers."""
        second = int(self._clock())
        if not self._seconds or self._seconds[-1].second != second:
            self._recent()
            self._seconds.append(_Second(second))
        self._seconds[-1].total += number
        self._seconds[-1].count += count

    def average(self) -> float | None:
        """None if there was no number."""
        count = sum(each.count for each in self._recent())
        return sum(each.total for each in self._seconds) / count if count else None

    def per_second(self) -> float:
        """How many numbers there were per second in the last minute, or since the start if that was later."""
        span_s = min(max(self._clock() - self._began_s, 1.0), float(_WINDOW_S))
        return sum(each.count for each in self._recent()) / span_s

    def _recent(self) -> deque[_Second]:
        while self._seconds and self._seconds[0].second <= self._clock() - _WINDOW_S:
            self._seconds.popleft()
        return self._seconds
