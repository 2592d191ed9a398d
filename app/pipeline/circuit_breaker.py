"""The circuit breaker of a store: while the store is down, one record at a time calls it.

A thousand records may wait for one store. If each tried again by itself, the store would come back to a storm, and the
threads of all pipelines would be spent on calls that fail.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

_FIRST_DELAY_S = 0.2
_NEWCOMER_DELAY_S = 1.0
_OPENS_AFTER = 5  # failures with no success between them; a server that fails half the time does so now and then


async def pause(tries: int, longest_s: float) -> None:
    """Waits before another try of a record: twice as long each time, and not before the first."""
    if tries:
        await asyncio.sleep(min(_FIRST_DELAY_S * 2 ** min(tries - 1, 30), longest_s))


class CircuitBreaker:
    """Counts the failures of a store, and lets records call it. Belongs to one event loop; any thread may read `open`.

    Args:
        delay_max_s: the longest wait between two probes, and between two tries of one record.

    Attributes:
        open: True while the store is down, and one record at a time calls it: the probe.
    """

    def __init__(self, delay_max_s: float) -> None:
        self.open = False
        self._delay_max_s = delay_max_s
        self._failures = 0
        self._delay_s = 0.0
        self._failed_at = 0.0
        self._probe = asyncio.Lock()
        self._newcomers = 0

    def failed(self, *, probing: bool) -> None:
        """Counts a call that has failed in a way that may pass; `probing` if it was the probe."""
        self._failures += 1
        if not self.open and self._failures >= _OPENS_AFTER:
            self.open = True
            self._delay(_FIRST_DELAY_S)
        elif probing:
            self._delay(self._delay_s * 2)

    def answered(self) -> None:
        """Counts a call that has succeeded: all records that wait may call."""
        self._failures = 0
        self.open = False

    @contextlib.asynccontextmanager
    async def turn(self, tries: int) -> AsyncIterator[bool]:
        """Waits until a record may call the store, and lasts for the time of one call.

        A newcomer, which has not called yet, makes the wait shorter. For the payloads of others may be all that the
        store does not give, and they would hold it up for minutes.

        Args:
            tries: how often the record has called in vain.

        Returns:
            Whether the call is the probe.
        """
        if not self.open:
            await pause(tries, self._delay_max_s)
        if self.open:
            self._newcomers += not tries
            try:
                # In the order of arrival: a record whose call always fails must not be the probe each time.
                async with self._probe:
                    while (left_s := self._left_s()) > 0:  # noqa: ASYNC110  # a newcomer may come, and time goes by
                        await asyncio.sleep(min(left_s, _NEWCOMER_DELAY_S))
                    if self.open:
                        yield True
                        return
            finally:
                self._newcomers -= not tries
        yield False

    def _left_s(self) -> float:
        if not self.open:
            return 0.0
        delay_s = min(self._delay_s, _NEWCOMER_DELAY_S) if self._newcomers else self._delay_s
        return self._failed_at + delay_s - asyncio.get_running_loop().time()

    def _delay(self, delay_s: float) -> None:
        self._delay_s = min(delay_s, self._delay_max_s)
        self._failed_at = asyncio.get_running_loop().time()
