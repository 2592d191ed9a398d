"""The byte budget: how much of all records the worker may hold at once.

Records with work wait for a store, which may be away for hours; those that pass leave in milliseconds. So work never
takes the whole: an eighth is kept for what passes, or one store that is down would stop every partition.
"""

from __future__ import annotations

import asyncio

__all__ = ["Budget", "Share"]

_KEPT_FOR_PASSING = 8  # one part in so many
# The most that a part of a pipeline, or one of several, may hold for work, as multiples of what is left free.
_PART_FOR_FREE = 1
_SHARE_FOR_FREE = 4


class Budget:
    """Bytes in flight in all pipelines together, and the wait for some to come free.

    One record of each pipeline may go over the limit, else one larger than the whole budget could never pass. Belongs
    to one event loop; nothing in it waits but `freed`.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.work = 0
        """Those of `used` that are held by records with work."""
        self.peak = 0
        self.shares = 0
        """How many shares there are."""
        self._reserve = limit // _KEPT_FOR_PASSING
        self.next_freed = asyncio.Event()
        """Set when bytes next come free, once: after that it is another event. So no waiter can miss it."""

    def admits(self, size: int) -> bool:
        """True where `size` more bytes may be taken now."""
        return self.used == 0 or self.used + size <= self.limit

    def admits_passing(self, size: int) -> bool:
        """True where `size` more bytes fit into what is kept for records that pass; one of them fits in any case."""
        passing = self.used - self.work
        return passing + size <= self._reserve or (passing == 0 and self.used <= self.limit)

    def admits_work(self, size: int) -> bool:
        """True where `size` more bytes fit beside what is kept for others."""
        return self.work + size <= self.limit - self._reserve and self.used + size <= self.limit

    def spare(self, size: int) -> int:
        """What is left free for work, were `size` more bytes taken."""
        return self.limit - self._reserve - self.work - size

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
        self.work = 0
        self.work_waits = False
        """Set by who admits records, while one with work finds no room: those that pass then leave it some."""
        budget.shares += 1
        self._awaited = budget.next_freed
        self._closed = False

    def admits(self, size: int) -> bool:
        """See `Budget.admits`; who holds nothing may always take one record, or a busy pipeline could starve it."""
        budget = self.budget
        if self.used == 0 or (not self.work_waits and budget.admits(size)) or budget.admits_passing(size):
            return True
        self._awaited = budget.next_freed
        return False

    def admits_work(self, size: int) -> bool:
        """As `admits`, for a record with work. One that is too large for the part may pass when it is the only one.

        What is held may wait for hours. So one of several shares stops at four fifths of what there is for work.
        """
        budget = self.budget
        if self.used == 0 or (self.work == 0 and budget.used <= budget.limit):
            return True
        fair = budget.shares == 1 or self.work + size <= _SHARE_FOR_FREE * budget.spare(size)
        if fair and budget.admits_work(size):
            return True
        self._awaited = budget.next_freed
        return False

    def admits_part(self, held: int, size: int) -> bool:
        """True where a part of this share that holds `held` bytes may have `size` more, and leave enough to others.

        It may be that all of it waits behind one payload that cannot be had. So it stops at half of what there is for
        work; of two each stops at a third, and so on.
        """
        if held + size <= _PART_FOR_FREE * self.budget.spare(size):
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

    def take_work(self, size: int) -> None:
        """As `take`, for a record with work; `give_work` or `pass_on` takes it back."""
        if not self._closed:
            self.work += size
            self.budget.work += size
            self.take(size)

    def give_work(self, size: int) -> None:
        """As `give`, for a record with work."""
        self.pass_on(size)
        self.give(size)

    def pass_on(self, size: int) -> None:
        """The work on so many bytes is done; they are held on, until `give`."""
        if not self._closed:
            self.work -= size
            self.budget.work -= size

    def close(self) -> None:
        """Gives back all that is left; nothing is counted after."""
        if not self._closed:
            self.pass_on(self.work)
            self._closed = True
            self.budget.shares -= 1
            self.budget.give(self.used)
            self.used = 0


class Part:
    """What one of several holds of a share, given back whole when that one is done with.

    Args:
        share: where what is held has been taken, and is given back.

    Attributes:
        used: what it holds; who lets it hold more adds to it.
    """

    __slots__ = ("_closed", "_share", "used")

    def __init__(self, share: Share) -> None:
        self.used = 0
        self._share = share
        self._closed = False

    def give(self, size: int) -> None:
        """See `Budget.give`."""
        if not self._closed:
            self.used -= size
            self._share.give(size)

    def close(self) -> None:
        """Gives back all that is left; nothing is counted after."""
        if not self._closed:
            self._share.give(self.used)
            self.used = 0
            self._closed = True


async def _set_within(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return False
    return True
