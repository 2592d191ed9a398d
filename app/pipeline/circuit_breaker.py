"""An outage of a store: whether it lasts, and who asks meanwhile.

A thousand records may wait for one store. If each asked again by itself, the store would come back to a storm, and the
threads of all pipelines would be spent on calls that fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

__all__ = ["CircuitBreaker", "pause"]

_FIRST_DELAY_S = 0.2
_FIRST_ASKS_AFTER_S = 1.0
_BEGINS_AFTER = 5  # failures with no success between them; a server that fails half the time does so now and then


async def pause(tries: int, longest_s: float) -> None:
    """Waits before another try of a record: twice as long each time, not before the first."""
    if tries:
        await asyncio.sleep(min(_FIRST_DELAY_S * 2 ** min(tries - 1, 30), longest_s))


class CircuitBreaker:
    """What the calls of a flow have found. Belongs to one event loop; `lasts` may be read by any thread.

    Args:
        delay_max_s: the longest wait between two calls while it lasts, and between two tries of one record.

    Attributes:
        lasts: True while one record at a time asks.
    """

    def __init__(self, delay_max_s: float) -> None:
        self.lasts = False
        self._delay_max_s = delay_max_s
        self._failures = 0
        self._delay_s = 0.0
        self._failed_at = 0.0
        self._asking = asyncio.Lock()
        self._newcomers = 0
        self._newcomer = asyncio.Event()

    def failed(self, *, probing: bool) -> None:
        """A call has failed in a way that may pass.

        Args:
            probing: whether it was the one that `turn` let through while the outage lasted.
        """
        self._failures += 1
        if not self.lasts and self._failures >= _BEGINS_AFTER:
            self.lasts = True
            self._wait(_FIRST_DELAY_S)
        elif probing:
            self._wait(self._delay_s * 2)

    def answered(self) -> None:
        """A call has succeeded: all who wait may ask."""
        self._failures = 0
        self.lasts = False

    @contextlib.asynccontextmanager
    async def turn(self, tries: int) -> AsyncIterator[bool]:
        """Waits until a record may ask the store, for the time of one call.

        One that has not asked yet waits for less: it may be that nothing but the payloads of others cannot be had, and
        those would hold it up for minutes.

        Args:
            tries: how often it has asked in vain.

        Returns:
            Whether it asks for all.
        """
        if not self.lasts:
            await pause(tries, self._delay_max_s)
        if self.lasts:
            # In the order in which they come: one record whose call always fails must not ask for all others.
            async with self._queue(newcomer=not tries), self._asking:
                while (left_s := self._left_s()) > 0:
                    self._newcomer.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._newcomer.wait(), left_s)
                if self.lasts:
                    yield True
                    return
        yield False

    @contextlib.asynccontextmanager
    async def _queue(self, *, newcomer: bool) -> AsyncIterator[None]:
        self._newcomers += newcomer
        if newcomer:
            self._newcomer.set()
        try:
            yield
        finally:
            self._newcomers -= newcomer

    def _left_s(self) -> float:
        if not self.lasts:
            return 0.0
        delay_s = min(self._delay_s, _FIRST_ASKS_AFTER_S) if self._newcomers else self._delay_s
        return self._failed_at + delay_s - time.monotonic()

    def _wait(self, delay_s: float) -> None:
        self._delay_s = min(delay_s, self._delay_max_s)
        self._failed_at = time.monotonic()
