"""The pace at which the transactions of a pipeline end before their time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

_WEIGHT = 0.2  # of the last one, in the average of how long they take


class Pace:
    """Lets lanes end their transactions one after the other, at a limited rate. Belongs to one event loop.

    Each transaction costs the worker and the brokers CPU, and a pipeline may have hundreds of lanes. If ends take
    long, one of them has no CPU to spare, and there are fewer. After a rest, some may end together.

    Args:
        per_second: how many may end in a second.
        at_once: how many of them need not wait for each other.
        under_way: how many of them may be under way, on average, if that is fewer.
    """

    # State that changes: `_waiting`, `_next_s`, `_took_s`, `_timer`.

    def __init__(self, per_second: float, at_once: int, under_way: float) -> None:
        self._least_gap_s = 1 / per_second
        self._at_once = at_once
        self._under_way = under_way
        self._took_s = 0.0
        self._waiting: deque[Callable[[], bool]] = deque()
        self._next_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, turn: Callable[[], bool]) -> None:
        """Calls `turn` when the next may end, maybe now; it returns False if there is nothing to end."""
        self._waiting.append(turn)
        if self._timer is None:
            self._go_on()

    def took(self, seconds: float) -> None:
        """Says how long one has taken to end."""
        self._took_s += (seconds - self._took_s) * _WEIGHT

    def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._waiting:
            now_s = loop.time()
            if now_s < self._next_s:
                self._timer = loop.call_at(self._next_s, self._go_on)
                return
            if self._waiting.popleft()():
                gap_s = max(self._least_gap_s, self._took_s / self._under_way)
                self._next_s = max(self._next_s, now_s - (self._at_once - 1) * gap_s) + gap_s
