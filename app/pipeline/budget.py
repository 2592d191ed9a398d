"""The byte budget: how many bytes of records the worker may hold.

Records with work may wait hours for a store that is down; those that pass leave in milliseconds. Records with work
therefore never fill the whole budget: an eighth is reserved for those that pass, or one store that is down would stop
every partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.kafka.shielded import set_within

_KEPT_FOR_PASSING = 8  # one byte in so many
_SHARE_FOR_FREE = 4  # the most work of one pipeline of several, as a multiple of the bytes that are left free


class Budget:
    """The bytes in flight in all pipelines together. Belongs to one event loop; only `freed` waits.

    One record of each pipeline may go over the limit, or a record larger than the whole budget could never pass.

    Attributes:
        limit: the most bytes.
        used: the bytes that are held.
        work: the bytes of `used` that records with work hold.
        ahead: bytes that were fetched, and of which `used` has nothing yet.
        peak: the most that was `used`.
        shares: the number of shares.
        next_freed: set when bytes come free the next time, and then replaced by another event, so that no waiter can
            miss it.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = self.work = self.ahead = self.peak = self.shares = 0
        self.kept = limit // _KEPT_FOR_PASSING
        self.next_freed = asyncio.Event()

    def spare(self, size: int) -> int:
        """The bytes that would be left free for work if `size` more were taken."""
        return self.limit - self.kept - self.work - size

    def wake(self) -> None:
        """Wakes the waiters, as there may be room."""
        freed, self.next_freed = self.next_freed, asyncio.Event()
        freed.set()

    async def freed(self, timeout_s: float) -> None:
        """Waits until bytes come free, but no longer than the time-out."""
        await set_within(self.next_freed, timeout_s)


class Share:
    """The bytes that one flow holds of the budget; all of them are given back when the flow ends.

    A result may arrive after the end, from a thread that could not be stopped. Its bytes are not released twice.

    Attributes:
        budget, used, work, ahead: see `Budget`.
        work_waits: whether a record with work waits for room in this turn, which it will get when work before it is
            done: no other one overtakes it, and records that pass leave it room.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.used = self.work = self.ahead = 0
        self.work_waits = False
        budget.shares += 1
        self._turn_freed = budget.next_freed
        self._closed = False

    # --- room --------------------------------------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """From now on records ask for room: in their order, until the next turn."""
        self.work_waits = False
        self._turn_freed = self.budget.next_freed

    async def freed(self, timeout_s: float) -> None:
        """Waits until bytes have come free since the turn began, but no longer than the time-out."""
        await set_within(self._turn_freed, timeout_s)

    def admits(self, size: int) -> bool:
        """True if there is room for `size` bytes that pass: one such record always fits into the part kept for them.

        An empty share always admits one record, or a busy pipeline could starve it.
        """
        budget = self.budget
        if self.used == 0 or (not self.work_waits and budget.used + size <= budget.limit):
            return True
        passing = budget.used - budget.work
        return passing + size <= budget.kept or (passing == 0 and budget.used <= budget.limit)

    def admits_work(self, size: int, held: int, stuck: Callable[[], int]) -> bool:
        """As `admits`, for a record with work. One that is too large for its part is admitted if it is alone.

        If it is to be the next one to be admitted, `work_waits` is set; if only its partition has to wait, it is not.

        All records of a partition may wait behind one payload that the store does not return. A partition that holds
        `held` bytes therefore stops at half of the bytes for work, each of two such partitions at a third, and so on.
        It waits alone. If any other record does not fit, those behind it wait too, even if they are smaller: except if
        it cannot fit before `stuck` bytes of the share's work are done, for which the store does not answer.
        """
        budget = self.budget
        if self.work_waits or (held and held + size > budget.spare(size)):
            return False
        fair = self._is_fair(size, self.work)
        if self.used == 0 or (fair and budget.used + size <= budget.limit):
            return True
        if self.work == 0 and budget.used <= budget.limit and (not fair or budget.shares > 1):
            return True
        stuck_bytes = stuck()
        self.work_waits = stuck_bytes == 0 or self._is_fair(size, stuck_bytes)
        return False

    def _is_fair(self, size: int, work: int) -> bool:
        """Whether this share may have `size` more bytes for work if it held `work`.

        Records with work may wait for hours, so one of several shares stops at four fifths of the bytes for work.
        """
        spare = self.budget.spare(size) + self.work - work
        return spare >= 0 and (self.budget.shares == 1 or work + size <= _SHARE_FOR_FREE * spare)

    # --- what is held ------------------------------------------------------------------------------------------------

    def take(self, size: int) -> None:
        """Counts `size` bytes in."""
        if not self._closed:
            self.used += size
            budget = self.budget
            budget.used += size
            if budget.used > budget.peak:  # noqa: PLR1730  # for each record that passes: `max` takes twice as long
                budget.peak = budget.used

    def give(self, size: int) -> None:
        """Counts `size` bytes out, and wakes the waiters."""
        if not self._closed:
            self.used -= size
            self.budget.used -= size
            self.budget.wake()

    def take_work(self, size: int) -> None:
        """As `take`, for a record with work; `give_work` and `finish_work` count it out again."""
        self.finish_work(-size)
        self.take(size)

    def give_work(self, size: int) -> None:
        """As `give`, for a record with work."""
        self.finish_work(size)
        self.give(size)

    def finish_work(self, size: int) -> None:
        """Moves bytes of a record from work to output; the share holds them until `give`."""
        if not self._closed:
            self.work -= size
            self.budget.work -= size

    def fetched(self, size: int) -> None:
        """Counts bytes that were fetched and not admitted yet; below 0 when they are admitted, or let go."""
        if not self._closed:
            self.ahead += size
            self.budget.ahead += size
            if size < 0:
                self.budget.wake()

    async def may_fetch(self) -> None:
        """Waits while the budget is used up, and records that pass are on their way: they come free by themselves.

        If records with work are stuck, which may take hours, more is fetched, so that those of other partitions pass;
        `PollLoop` bounds what waits. A share that holds nothing need not wait either.
        """
        budget = self.budget
        while (
            not self._closed
            and self.used + self.ahead > 0
            and budget.used + budget.ahead >= budget.limit
            and budget.used > budget.work
        ):
            await budget.next_freed.wait()

    def close(self) -> None:
        """Gives back all that is left; counts nothing after that."""
        if not self._closed:
            self.finish_work(self.work)
            self.fetched(-self.ahead)
            self.budget.shares -= 1
            self.give(self.used)
            self._closed = True
