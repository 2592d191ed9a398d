"""The offsets that a group has committed, one after the other: they only grow, as long as the log keeps its records.

An older offset that follows a newer one writes records again that were committed. At least once that is no record lost,
so no other promise shows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.partition_log import PartitionLog

__all__ = ["CommitHistory"]


class CommitHistory:
    """The last committed offset of each log."""

    def __init__(self) -> None:
        self._last: dict[PartitionLog, int] = {}

    def goes_back(self, log: PartitionLog, offset: int) -> int | None:
        """Notes a committed offset; the one before, if that was higher.

        The log of another topic of the name is another object, and has a history of its own.
        """
        before = self._last.get(log, -1)
        self._last[log] = offset
        return before if offset < before <= log.end else None
