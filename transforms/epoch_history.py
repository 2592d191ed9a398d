"""The leader epochs of the records that were read of a partition: they distinguish logs with equal offsets.

Each leader of a partition has an epoch, a number that grows with each election, and stamps it on the batches that it
appends. If two replicas have a record with the same offset and epoch, all records before it are equal as well.
Therefore the epoch of the last record that was read is enough to ask the current leader how far its log is the one that
was read (KIP-320, KIP-101).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from transforms.commit_metadata import noted

NO_EPOCH = -1
"""Stands for an unknown epoch."""

_OLDER_S = 10.0  # metadata is outdated for less time, and a recreated topic is noticed earlier


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
        """Notes that the record at `offset` was read last. What was known of later ones is dropped."""
        if epoch != NO_EPOCH and (self.before(offset + 1) != epoch or self._offsets[-1] > offset):
            at = bisect_left(self._offsets, offset + 1)
            del self._offsets[at:], self._epochs[at:]
            self._put(offset, epoch)

    def reached(self, offset: int, epoch: int) -> None:
        """Notes the epoch of the last record before `offset`, at which reading may continue, or a bound of it."""
        if epoch != NO_EPOCH:
            self._put(offset - 1, epoch)

    def _put(self, offset: int, epoch: int) -> None:
        if self.before(offset + 1) == epoch:
            return
        end = bisect_left(self._offsets, offset + 1)
        begin = bisect_left(self._offsets, offset)
        # Epochs grow with offsets: a greater one before this was a bound, or belongs to another log.
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
    """Where the log of a partition diverges from the one that was read.

    Attributes:
        offset: up to which both logs are equal.
        epoch: of the last record before it.
        read: up to which the other log was read, or delivered.
    """

    offset: int
    epoch: int
    read: int


@dataclass(slots=True)  # not frozen: one is created for each partition of each fetch
class Reading:
    """The basis of the next fetch of a partition.

    Attributes:
        offset: after the last record that was read or delivered.
        epoch: of that record.
        leader: the epoch that the leader must have; `NO_EPOCH` lets any leader answer.
        compares: whether that leader must first report where its log has the end of `epoch`.
        older: whether to wait for newer metadata, as the records that were read are newer than the leader.
    """

    offset: int
    epoch: int
    leader: int
    compares: bool
    older: bool


class PartitionEpochs:
    """What is known of the log of an assigned partition: what was read of it, and which leader has exactly that.

    Attributes:
        cut: where the log of a leader was found to diverge from what was read; None if it does not.
    """

    # `_delivered`: the offset after the last record that was delivered before the assignment, and its epoch. A commit
    # cannot pass an incomplete message. `_same`: the epoch of the leader whose log was found to be the one that was
    # read. `_older_s`: since when metadata names a leader that is older than what was read.

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
        """Notes the committed offset, at which reading starts; another member may have committed it."""
        self._history.reached(offset, epoch)
        self._delivered = _delivered(offset, metadata), epoch
        self._same = None

    def epoch_to_commit(self, offset: int, metadata: str) -> int:
        """The epoch to commit with an offset: that of the last record that was delivered, if it is after the offset.

        If the record at the offset was read, this is its epoch. Compaction may have removed earlier records: the epoch
        of the last one ends before the offset, as if the log had been cut there.
        """
        end = _delivered(offset, metadata)
        self._history.settle(offset)
        return self._delivered[1] if end == self._delivered[0] else self._history.before(end + 1)

    def restart(self, at: Cut | None) -> None:
        """Notes that the partition is read again: where its log was cut, or (None) in another log altogether."""
        self.cut, self._same, self._delivered = None, None, (0, NO_EPOCH)
        if at is None:
            self._history = EpochHistory()
        else:
            self._history.reached(at.offset, at.epoch)

    def is_compared(self, offset: int, leader: int) -> bool:
        """Whether this leader has reported where its log diverges from what was read up to `offset`, or need not."""
        epoch = self._history.before(offset)
        return self.cut is not None or NO_EPOCH in (epoch, leader) or leader in (epoch, self._same)

    def reading(self, offset: int, leader: int, now_s: float) -> Reading:
        """How to fetch from an offset, from a leader that has this epoch by metadata."""
        end, epoch = self._delivered
        if offset < end:
            offset = end
        else:
            epoch = self._history.before(offset)
        if leader < epoch:  # metadata is outdated, or the topic was recreated, which is noticed elsewhere
            if self._older_s is None and leader != NO_EPOCH:
                self._older_s = now_s
            older = leader != NO_EPOCH and now_s - (self._older_s or now_s) < _OLDER_S
            return Reading(offset, epoch, NO_EPOCH, False, older)  # as below
        self._older_s = None
        # A leader loses no records within its epoch: if its log ends before, it is the log of a new topic. Keyword
        # arguments would be slower.
        return Reading(offset, epoch, leader, NO_EPOCH != epoch < leader != self._same, False)

    def is_same(self, reading: Reading, epoch: int, end: int) -> bool:
        """Notes where the log of the leader has the end of the epoch that was read; False if they diverge: see `cut`.

        Args:
            reading: the reading that compares.
            epoch: the greatest epoch in the log that is not above the one that was read; `NO_EPOCH` if there is none.
            end: the offset after the last record of that epoch; -1 if there is none.
        """
        # Records of an old format have no epochs.
        parts = epoch != NO_EPOCH and NO_EPOCH < end < reading.offset
        self.cut = Cut(end, epoch, reading.offset) if parts else None
        if not parts and reading.offset >= self._delivered[0]:  # a later commit may have arrived in the meantime
            self._same = reading.leader
        return not parts

    def fetched(self, reading: Reading) -> None:
        """Notes an answer by the leader that the reading requires.

        If the epoch of the last record is unknown, it is not above that of the leader, which has the record.
        """
        if self._history.before(reading.offset) == NO_EPOCH == reading.epoch:
            self._history.reached(reading.offset, reading.leader)
            self._same = reading.leader


def _delivered(offset: int, metadata: str) -> int:
    """The offset after the last record that was delivered: the committed offset, or the one in its metadata."""
    note = noted(metadata) if metadata else None
    return offset if note is None else max(offset, note.delivered)
