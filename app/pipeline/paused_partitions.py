"""Partitions that are paused, because what was read ahead of them would take too much memory.

The budget bounds the records that were admitted. What waits to be admitted is beside it: of each partition up to two
responses of the broker. Where records wait for a store that is down, or for one that is slower than Kafka, that stays.
So of many partitions with large values most are paused: what was read of them is let go, and read again later. Their
records could not be admitted anyway, as they wait for room, or behind records that do. No other partition is paused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from app.kafka.consumer import GroupConsumer
from app.pipeline.admission import Admission
from app.pipeline.budget import Share
from app.pipeline.lane import Lane
from app.pipeline.lanes import Lanes

_PART_OF_BUDGET = 4  # what is read ahead may take so small a part of the budget, in addition to it
_LEAST_BYTES = 64 * 2**20  # while the store takes values, it may take this where that is less
_STUCK_S = 1.0
_TURN_S = 2.0  # a paused partition waits so long for its turn, if others can go on
_ARRIVES_S = 0.2


@dataclass(slots=True)
class _Pause:
    """A partition that is paused.

    Attributes:
        since_s: since when.
        size: bytes that were let go; about as many come when it is read again.
        for_room: whether its next record waits for room alone, and not behind others of its partition.
    """

    since_s: float
    size: int
    for_room: bool


class PausedPartitions:
    """Pauses partitions of one flow, and resumes them. Belongs to one event loop.

    Args:
        source: reads the partitions.
        lanes: of the flow.
        share: of the flow.
        admission: holds what was read.
        clock: seconds that do not go back.
    """

    def __init__(
        self,
        source: GroupConsumer,
        lanes: Lanes,
        share: Share,
        admission: Admission,
        clock: Callable[[], float],
    ) -> None:
        self._source = source
        self._lanes = lanes
        self._share = share
        self._admission = admission
        self._clock = clock
        self._stuck_bytes = share.budget.limit // _PART_OF_BUDGET
        self._bytes = max(self._stuck_bytes, _LEAST_BYTES)
        self._paused: dict[Lane, _Pause] = {}  # the longest first
        self._resumed: dict[Lane, int | None] = {}
        """Partitions that were resumed, and from which offset: until it is admitted, they have not had their turn."""
        self._expected: deque[tuple[float, int]] = deque()
        self._finished = -1
        self._finished_s = 0.0

    def __len__(self) -> int:
        return len(self._paused)

    def __iter__(self) -> Iterator[Lane]:
        return iter(tuple(self._paused))

    def __contains__(self, lane: Lane) -> bool:
        return lane in self._paused

    def adjust(self) -> None:
        """Pauses partitions if too much was read ahead, and resumes those that may be read again."""
        budget = self._share.budget
        if budget.ahead <= self._stuck_bytes and not self._paused:
            self._finished = -1  # whether records are stuck is found out when it matters
            self._resumed.clear()
            return
        now_s = self._clock()
        stuck = self._stuck(now_s)
        for lane in [lane for lane in self._paused if not self._lanes.holds(lane)]:
            del self._paused[lane]
        most = self._stuck_bytes if stuck else self._bytes
        if budget.ahead > most:
            self._pause(budget.ahead - most // 2, now_s, stuck=stuck)
        if self._paused:
            self._resume(now_s, stuck=stuck)

    def _stuck(self, now_s: float) -> bool:
        """True if no record of the flow has come to the end of its work for a while, though there are some."""
        if self._share.finished != self._finished or not self._share.work:
            self._finished, self._finished_s = self._share.finished, now_s
        return now_s - self._finished_s >= _STUCK_S

    def _pause(self, size: int, now_s: float, *, stuck: bool) -> None:
        """Lets go `size` bytes, or as many as there are; what has waited longest stays."""
        for lane in self._waiting():
            if size <= 0:
                return
            if lane in self._resumed and not stuck and self._resumed[lane] == self._admission.first(lane):
                continue
            for_room = self._admission.holds(lane) and not lane.items
            found = self._let_go(lane)
            size -= found
            self._resumed.pop(lane, None)
            self._paused[lane] = _Pause(now_s, found, for_room)

    def _waiting(self) -> Iterator[Lane]:
        """The partitions that wait for work, not paused: those first that the store has stalled, then the latest."""
        yield from (lane for lane in self._lanes if lane.stalled and lane not in self._paused)
        yield from (lane for lane in self._admission.waiting_for_work() if lane not in self._paused)

    def _let_go(self, lane: Lane) -> int:
        before = self._share.ahead
        self._source.pause(lane.partition, self._admission.let_go(lane))
        return before - self._share.ahead

    def _resume(self, now_s: float, *, stuck: bool) -> None:
        while self._expected and now_s - self._expected[0][0] > _ARRIVES_S:
            self._expected.popleft()
        for lane, pause in tuple(self._paused.items()):
            if not lane.items and not pause.for_room:
                self._read_again(lane, now_s)  # its next record may pass, whatever others wait for
        ready = [lane for lane in self._paused if not lane.stalled]
        if stuck or not ready:
            return
        most = self._bytes // 2
        room = most - self._share.budget.ahead - sum(size for _, size in self._expected)
        if room <= 0 and now_s - self._paused[ready[0]].since_s > _TURN_S:
            self._pause(self._paused[ready[0]].size, now_s, stuck=False)
            room = max(1, most - self._share.budget.ahead)
        for lane in ready:
            if room <= 0:
                return
            room -= self._read_again(lane, now_s)

    def _read_again(self, lane: Lane, now_s: float) -> int:
        """Resumes a partition; returns how many bytes are expected of it."""
        size = self._paused.pop(lane).size
        self._expected.append((now_s, size))
        self._resumed[lane] = self._source.position(lane.partition)
        self._source.resume(lane.partition)
        return size
