"""The leader epochs of what was read of a partition: they distinguish logs that have the same offsets.

Each leader of a partition has an epoch, a number that grows with each election, and stamps it on the batches that it
appends. Where two replicas have a record of the same offset and epoch, all records before it are the same as well. So
the epoch of the last record that was read is enough to ask the present leader how far its log is the one that was read
(KIP-320, KIP-101).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from transforms.commit_metadata import noted

NO_EPOCH = -1
"""Stands for an epoch that is not known."""

_OLDER_S = 10.0  # metadata is not older for so long; and a topic that was created again is noticed before


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
        """Notes that the record at `offset` was read last. What was known of later ones counts no more."""
        if epoch != NO_EPOCH and (self.before(offset + 1) != epoch or self._offsets[-1] > offset):
            at = bisect_left(self._offsets, offset + 1)
            del self._offsets[at:], self._epochs[at:]
            self._put(offset, epoch)

    def reached(self, offset: int, epoch: int) -> None:
        """Notes the epoch of the last record before `offset`, from which reading may go on, or a bound of it."""
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


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the log of a partition parts from the one that was read.

    Attributes:
        offset: up to which both are the same.
        epoch: of the last record before it.
        read: up to which the other one was read, or delivered.
    """

    offset: int
    epoch: int
    read: int


@dataclass(slots=True)  # not frozen: one is made for each partition of each fetch
class Reading:
    """What the next fetch of a partition goes by.

    Attributes:
        offset: behind the last record that was read or delivered.
        epoch: of that record.
        leader: the epoch that the leader must have; `NO_EPOCH` lets any leader answer.
        compares: whether that leader has to say first where its log has the end of `epoch`.
        older: whether newer metadata is waited for, as what was read is newer than the leader.
    """

    offset: int
    epoch: int
    leader: int
    compares: bool
    older: bool


class PartitionEpochs:
    """What is known of the log of an assigned partition: what was read of it, and which leader has just that.

    Attributes:
        cut: where the log of a leader was found to part from what was read; None if it was not.
    """

    # `_delivered`: behind the last record that was delivered before the assignment, and its epoch. A commit cannot pass
    # a message whose chunks are not all there. `_same`: the epoch of the leader whose log was found to be the one that
    # was read. `_older_s`: since when metadata names a leader that is older than what was read.

    def __init__(self) -> None:
        self.cut: Cut | None = None
        self._history = EpochHistory()
        self._delivered = 0, NO_EPOCH
        self._same: int | None = None
        self._older_s: float | None = None

    def read(self, offset: int, epoch: int) -> None:
        """Notes that the record at `offset` was read last."""
        self._history.read(offset, epoch)

    def committed(self, offset: int, epoch: int, metadata: str) -> None:
        """Notes the committed offset, from which reading begins; another member may have committed it."""
        self._history.reached(offset, epoch)
        self._delivered = _delivered(offset, metadata), epoch
        self._same = None

    def epoch_to_commit(self, offset: int, metadata: str) -> int:
        """The epoch that goes with an offset: that of the last record that was delivered, if that is behind it.

        If the record at the offset was read, it is that record's. Compaction may have taken those before it: the epoch
        of the last one ends before the offset, as if the log had been cut there.
        """
        end = _delivered(offset, metadata)
        self._history.settle(offset)
        return self._delivered[1] if end == self._delivered[0] else self._history.before(end + 1)

    def restart(self, at: Cut | None) -> None:
        """Notes that the partition is read again where its log was cut, or from another log altogether (None)."""
        self.cut, self._same, self._delivered = None, None, (0, NO_EPOCH)
        if at is None:
            self._history = EpochHistory()
        else:
            self._history.reached(at.offset, at.epoch)

    def is_compared(self, offset: int, leader: int) -> bool:
        """Whether this leader has said where its log parts from what was read up to `offset`, or need not."""
        epoch = self._history.before(offset)
        return self.cut is not None or NO_EPOCH in (epoch, leader) or leader in (epoch, self._same)

    def reading(self, offset: int, leader: int, now_s: float) -> Reading:
        """How to fetch from an offset, from a leader that has this epoch by metadata."""
        end, epoch = self._delivered
        if offset < end:
            offset = end
        else:
            epoch = self._history.before(offset)
        if leader < epoch:  # metadata is older than what was read; or the topic is another one, which others notice
            if self._older_s is None and leader != NO_EPOCH:
                self._older_s = now_s
            older = leader != NO_EPOCH and now_s - (self._older_s or now_s) < _OLDER_S
            return Reading(offset, epoch, NO_EPOCH, False, older)  # as below
        self._older_s = None
        # A leader loses nothing without another epoch: if its log ends before, it is that of a new topic.
        return Reading(
            offset, epoch, leader, NO_EPOCH != epoch < leader != self._same, False
        )  # arguments by name take longer

    def is_same(self, reading: Reading, epoch: int, end: int) -> bool:
        """Notes where the log of the leader has the end of the epoch that was read; False if they part: see `cut`.

        Args:
            reading: which compares.
            epoch: the greatest in its log that is not above the one that was read; `NO_EPOCH` if there is none.
            end: behind the last record of that; -1 if there is none.
        """
        # Records of an old format have no epochs.
        parts = epoch != NO_EPOCH and NO_EPOCH < end < reading.offset
        self.cut = Cut(end, epoch, reading.offset) if parts else None
        if not parts and reading.offset >= self._delivered[0]:  # a later commit may have come since it was asked
            self._same = reading.leader
        return not parts

    def fetched(self, reading: Reading) -> None:
        """Notes an answer by the leader that the reading asks for.

        If the epoch of the last record is not known, it is not above that of the leader, which has the record.
        """
        if self._history.before(reading.offset) == NO_EPOCH == reading.epoch:
            self._history.reached(reading.offset, reading.leader)
            self._same = reading.leader


def _delivered(offset: int, metadata: str) -> int:
    """Behind the last record that was delivered: the committed offset, or what its metadata says."""
    note = noted(metadata) if metadata else None
    return offset if note is None else max(offset, note.delivered)
