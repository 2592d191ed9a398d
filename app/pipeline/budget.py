"""The byte budget: how many bytes of records the worker may hold at once.

Records with work wait for a store, which may be away for hours; those that pass leave in milliseconds. So records with
work never take the whole: an eighth is kept for those that pass, or one store that is down would stop every partition.
"""

from __future__ import annotations

import asyncio

__all__ = ["Budget", "Share"]

_KEPT_FOR_PASSING = 8  # one byte in so many
# The most work that a partition, or one pipeline of several, may hold, as a multiple of the bytes that are left free.
_PART_FOR_FREE = 1
_SHARE_FOR_FREE = 4
_LEAST_PARTS = 2  # half of the bytes for work, in equal parts, go to partitions that hold none while another is stuck


class Budget:
    """The bytes in flight in all pipelines together. Belongs to one event loop; only `freed` waits.

    One record of each pipeline may go over the limit, or a record larger than the whole budget could never pass.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.work = 0
        """The bytes of `used` that records with work hold."""
        self.ahead = 0
        """Bytes that were fetched, and of which `used` has nothing yet."""
        self.peak = 0
        self.shares = 0
        """The number of shares."""
        self._reserve = limit // _KEPT_FOR_PASSING
        self.next_freed = asyncio.Event()
        """Set when bytes come free the next time, and then replaced by another event. So no waiter can miss it."""

    @property
    def full(self) -> bool:
        """True if nothing more may be fetched until records that pass are durable."""
        return self.used + self.ahead >= self.limit and self.used > self.work

    def admits(self, size: int) -> bool:
        """True if `size` more bytes may be taken now."""
        return self.used == 0 or self.used + size <= self.limit

    def admits_passing(self, size: int) -> bool:
        """True if `size` more bytes fit into the part for records that pass; one such record always fits."""
        passing = self.used - self.work
        return passing + size <= self._reserve or (passing == 0 and self.used <= self.limit)

    def admits_work(self, size: int) -> bool:
        """True if `size` more bytes fit into the part for records with work."""
        return self.work + size <= self.limit - self._reserve and self.used + size <= self.limit

    def spare(self, size: int) -> int:
        """The bytes that would be left free for work if `size` more were taken."""
        return self.limit - self._reserve - self.work - size

    def take(self, size: int) -> None:
        """Counts `size` bytes in."""
        self.used += size
        self.peak = max(self.peak, self.used)

    def give(self, size: int) -> None:
        """Counts `size` bytes out, and wakes the waiters."""
        self.used -= size
        self.wake()

    def wake(self) -> None:
        """Wakes the waiters, as there may be room."""
        freed, self.next_freed = self.next_freed, asyncio.Event()
        freed.set()

    async def freed(self, timeout_s: float) -> bool:
        """Waits until bytes come free; False if none did in time."""
        return await _set_within(self.next_freed, timeout_s)


class Share:
    """The bytes that one flow holds of the budget; all of them are given back when the flow ends.

    A result may come after the end, from a thread that could not be stopped. It gives nothing back a second time.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.used = 0
        self.work = 0
        self.ahead = 0
        self.finished = 0
        """How many records have come to the end of their work."""
        self.work_waits = False
        """Set by `Admission` while a record with work finds no room: records that pass leave it some then."""
        budget.shares += 1
        self._awaited = budget.next_freed
        self._closed = False

    def admits(self, size: int) -> bool:
        """See `Budget.admits`. An empty share always admits one record, or a busy pipeline could starve it."""
        budget = self.budget
        if self.used == 0 or (not self.work_waits and budget.admits(size)) or budget.admits_passing(size):
            return True
        self._awaited = budget.next_freed
        return False

    def admits_work(self, size: int) -> bool:
        """As `admits`, for a record with work. One that is too large for its part is admitted if it is alone.

        Records with work may wait for hours. So one of several shares stops at four fifths of the bytes for work.
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
        """True if a partition that holds `held` bytes for work may have `size` more, and leave enough to others.

        All its records may wait behind one payload that the store does not give. So a partition stops at half of the
        bytes for work; of two such partitions each stops at a third, and so on.
        """
        if held + size <= _PART_FOR_FREE * self.budget.spare(size):
            return True
        self._awaited = self.budget.next_freed
        return False

    def admits_least(self, size: int, partitions: int) -> bool:
        """True if `size` more bytes for work fit, and are so few that each of so many partitions could have them.

        For a partition that holds none, while another one is stuck: it need not wait behind a larger record.
        """
        budget = self.budget
        return size <= budget.spare(-budget.work) // (_LEAST_PARTS * partitions) and budget.admits_work(size)

    def await_freed(self) -> None:
        """`freed` waits from now on."""
        self._awaited = self.budget.next_freed

    async def freed(self, timeout_s: float) -> bool:
        """Waits until bytes have come free since `admits` last said no; False if none did in time."""
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
        """As `take`, for a record with work; `give_work` and `pass_on` count it out again."""
        if not self._closed:
            self.work += size
            self.budget.work += size
            self.take(size)

    def give_work(self, size: int) -> None:
        """As `give`, for a record with work."""
        self.pass_on(size)
        self.give(size)

    def fetched(self, size: int) -> None:
        """Counts bytes that were fetched and not admitted yet; below 0 when they are admitted, or let go."""
        if not self._closed:
            self.ahead += size
            self.budget.ahead += size
            if size < 0:
                self.budget.wake()

    async def may_fetch(self) -> None:
        """Waits while the budget is used up, and records that pass are on their way: they come free by themselves.

        Records with work may be stuck for hours. Then more is fetched, so that those of other partitions pass;
        `PausedPartitions` bounds what waits. A share that holds nothing need not wait either.
        """
        budget = self.budget
        while not self._closed and self.used + self.ahead > 0 and budget.full:
            await budget.next_freed.wait()

    def pass_on(self, size: int) -> None:
        """Counts bytes of a record as work no more; the share holds them until `give`."""
        if not self._closed:
            self.finished += 1
            self.work -= size
            self.budget.work -= size

    def close(self) -> None:
        """Gives back all that is left; counts nothing after that."""
        if not self._closed:
            self.pass_on(self.work)
            self.fetched(-self.ahead)
            self._closed = True
            self.budget.shares -= 1
            self.budget.give(self.used)
            self.used = 0


async def _set_within(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return False
    return True
