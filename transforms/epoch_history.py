"""The leader epochs of what was read of a partition: they tell one log from another that has the same offsets.

Each leader of a partition has an epoch, a number that grows with each election, and stamps it on the batches that it
appends. Where two replicas have a record of the same offset and epoch, all records before it are the same as well. So
the epoch of the last record that was read is enough to ask the present leader how far its log is the one that was read
(KIP-320, KIP-101).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

__all__ = ["NO_EPOCH", "EpochHistory"]

NO_EPOCH = -1
"""Stands for an epoch that is not known."""


@dataclass(slots=True)
class EpochHistory:
    """The epochs of one partition, as far as they are known. Grows with elections, not with records."""

    _offsets: list[int] = field(default_factory=list)
    _epochs: list[int] = field(default_factory=list)  # of the records from that offset on, up to the next one

    def before(self, offset: int) -> int:
        """The epoch of the last record before an offset, or a bound of it; `NO_EPOCH` if nothing is known."""
        at = bisect_left(self._offsets, offset)
        return self._epochs[at - 1] if at else NO_EPOCH

    def read(self, offset: int, epoch: int) -> None:
        """Takes in that the record at `offset` was read last. What was known of later ones counts no more."""
        if epoch != NO_EPOCH and (self.before(offset + 1) != epoch or self._offsets[-1] > offset):
            at = bisect_left(self._offsets, offset + 1)
            del self._offsets[at:], self._epochs[at:]
            self._put(offset, epoch)

    def reached(self, offset: int, epoch: int) -> None:
        """Takes in the epoch of the last record before `offset`, from which reading may go on, or a bound of it."""
        if epoch != NO_EPOCH:
            self._put(offset - 1, epoch)

    def _put(self, offset: int, epoch: int) -> None:
        if self.before(offset + 1) == epoch:
            return
        end = bisect_left(self._offsets, offset + 1)
        begin = bisect_left(self._offsets, offset)
        # Epochs grow with offsets: a greater one before was a bound, or is that of another log.
        while begin and self._epochs[begin - 1] > epoch:
            begin -= 1
        self._offsets[begin:end], self._epochs[begin:end] = [offset], [epoch]

    def settle(self, offset: int) -> None:
        """Forgets what only `before` of lower offsets needs."""
        at = bisect_left(self._offsets, offset) - 1
        if at > 0:
            del self._offsets[:at], self._epochs[:at]
