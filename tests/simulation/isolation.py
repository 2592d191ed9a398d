"""A broker that is cut off from the others, and not from clients: it takes itself for the leader that it was.

It tells what it knew when it was cut off: older leaders, with older epochs. What the others have written since then is
not in its logs, so to it the offsets of that are out of range. It can write nothing that needs the others.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tests.simulation.loop import SimulatedLoop
from tests.simulation.partition_log import PartitionLog

if TYPE_CHECKING:
    from tests.simulation.cluster import Topic

__all__ = ["Isolation"]


class Isolation:
    """What a broker that is cut off knows; none is at first.

    Args:
        loop: of the history.
    """

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._node = -1
        self._until_s = 0.0
        self._logs: Mapping[tuple[str, int], PartitionLog] = {}

    def begin(self, node: int, seconds: float, topics: Iterable[Topic]) -> None:
        """Cuts a broker off for so long."""
        self._node, self._until_s = node, self._loop.time() + seconds
        self._logs = {(topic.name, number): _as_it_is(log) for topic in topics for number, log in enumerate(topic.logs)}

    def of(self, node: int) -> bool:
        """Whether this broker is cut off now."""
        return node == self._node and self._loop.time() < self._until_s

    def known(self, node: int, topic: str, number: int) -> PartitionLog | None:
        """A log as a broker knows it that is cut off; None for another broker, or a log that is newer."""
        return self._logs.get((topic, number)) if self.of(node) else None


def _as_it_is(log: PartitionLog) -> PartitionLog:
    waiters, log.waiters = log.waiters, []
    known = copy.deepcopy(log)
    log.waiters = waiters
    known.alone = True
    return known
