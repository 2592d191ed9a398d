"""The byte budget: how much of all records the worker may hold at once."""

from __future__ import annotations

import asyncio

__all__ = ["Budget", "Share"]


class Budget:
    """Bytes in flight in all pipelines together, and the wait for some to come free.

    One record of each pipeline may go over the limit, else one larger than the whole budget could never pass. Belongs
    to one event loop; nothing in it waits but `freed`.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.peak = 0
        self.next_freed = asyncio.Event()
        """Set when bytes next come free, once: after that it is another event. So no waiter can miss it."""

    def admits(self, size: int) -> bool:
        """True where `size` more bytes may be taken now."""
        return self.used == 0 or self.used + size <= self.limit

    def take(self, size: int) -> None:
        """Counts `size` bytes in."""
        self.used += size
        self.peak = max(self.peak, self.used)

    def give(self, size: int) -> None:
        """Counts `size` bytes out and wakes who waits."""
        self.used -= size
        freed, self.next_freed = self.next_freed, asyncio.Event()
        freed.set()

    async def freed(self, timeout_s: float) -> bool:
        """Waits until bytes come free; False where none did in time."""
        return await _set_within(self.next_freed, timeout_s)


class Share:
    """What one life of a pipeline holds of the budget; given back whole when that life ends.

    A result may come in after the end, from a thread that could not be stopped: it gives nothing back twice.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.used = 0
        self._awaited = budget.next_freed
        self._closed = False

    def admits(self, size: int) -> bool:
        """See `Budget.admits`; who holds nothing may always take one record, or a busy pipeline could starve it."""
        if self.used == 0 or self.budget.admits(size):
            return True
        self._awaited = self.budget.next_freed
        return False

    async def freed(self, timeout_s: float) -> bool:
        """Waits until bytes have come free since `admits` last said no; False where none did in time."""
        return await _set_within(self._awaited, timeout_s)

    def take(self, size: int) -> None:
        """See `Budget.take`."""
        if not self._closed:
            self.used += size
            self.budget.take(size)

    def give(self, size: int) -> None:
        """See `Budget.give`."""
        if not self._closed:
            self.used -= size
            self.budget.give(size)

    def close(self) -> None:
        """Gives back all that is left; nothing is counted after."""
        if not self._closed:
            self._closed = True
            self.budget.give(self.used)
            self.used = 0


async def _set_within(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return False
    return True
