"""The topic in which a cluster keeps the committed offsets, after a kill of all brokers.

The new leader of a partition of `__consumer_offsets` has the high watermark of its disk, which may be seconds old.
Until its followers have fetched, the coordinator answers as of that, and ListOffsets says that the latest offset is
not available (KIP-207). What is written in that time is acknowledged once all replicas have it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from tests.simulation.groups import Commit, Place
from tests.simulation.loop import SimulatedLoop

__all__ = ["TOPIC", "OffsetsLog"]

TOPIC = "__consumer_offsets"
NOT_AVAILABLE, NOT_AVAILABLE_BEFORE_5 = 78, 5
_KEPT = 200


class OffsetsLog:
    """Remembers what was committed when.

    Args:
        loop: of the history.
    """

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._clock = loop.time
        self._held: list[Callable[[], None]] = []
        self._commits: deque[tuple[float, str, Mapping[Place, Commit]]] = deque(maxlen=_KEPT)
        self._seen_s = self._until_s = 0.0

    def note(self, group: str, offsets: Mapping[Place, Commit]) -> None:
        """Takes in all committed offsets of a group, which have just changed."""
        self._commits.append((self._clock(), group, dict(offsets)))

    def fall_behind(self, lag_s: float, until_s: float) -> None:
        """From now on, and until a time, answers are those of some seconds ago."""
        self._seen_s, self._until_s = self._clock() - lag_s, until_s
        self._held.clear()  # it is gone with the brokers
        held: list[Callable[[], None]] = []
        self._held = held
        self._loop.call_at(until_s, self._release, held)

    def hold(self, write: Callable[[], None]) -> None:
        """Writes later, when all replicas have what was written before."""
        self._held.append(write)

    def _release(self, held: list[Callable[[], None]]) -> None:
        for write in held:
            write()
        held.clear()

    @property
    def left_s(self) -> float:
        """How long answers are old from now on; 0 if they are not."""
        return max(0.0, self._until_s - self._clock())

    def seen(self, group: str) -> Mapping[Place, Commit]:
        """The committed offsets of a group as a coordinator that is behind tells them."""
        found: Mapping[Place, Commit] = {}
        for when_s, name, offsets in self._commits:
            if name == group and when_s <= self._seen_s:
                found = offsets
        return found

    def refusal(self, version: int) -> int:
        """The error of ListOffsets in a version; 0 if there is none."""
        if not self.left_s:
            return 0
        return NOT_AVAILABLE if version >= 5 else NOT_AVAILABLE_BEFORE_5
