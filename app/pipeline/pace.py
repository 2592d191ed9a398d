"""The pace at which the transactions of a pipeline end before their time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ["Pace"]


class Pace:
    """Lets lanes end their transactions one after the other, so many a second. Belongs to one event loop.

    Each transaction costs the worker and the brokers CPU, and a pipeline may have hundreds of lanes. After a rest, some
    may end at once.

    Args:
        per_second: how many may end in a second.
        at_once: how many of them need not wait for each other.
    """

    # State that changes: `_waiting`, `_next_s`, `_timer`.

    def __init__(self, per_second: float, at_once: int) -> None:
        self._gap_s = 1 / per_second
        self._slack_s = (at_once - 1) * self._gap_s
        self._waiting: deque[Callable[[], bool]] = deque()
        self._next_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, turn: Callable[[], bool]) -> None:
        """Calls `turn` when the next may end, maybe at once; it returns False if it does not end by now."""
        self._waiting.append(turn)
        if self._timer is None:
            self._go_on()

    def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._waiting:
            now_s = loop.time()
            if now_s < self._next_s:
                self._timer = loop.call_at(self._next_s, self._go_on)
                return
            if self._waiting.popleft()():
                self._next_s = max(self._next_s, now_s - self._slack_s) + self._gap_s
