"""The messages of one partition that an assembler knows: incomplete ones, ended ones, those that are read again."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from transforms.partition_history import PartitionHistory
from transforms.pending_message import PendingMessage

__all__ = ["PartitionMessages"]

_SPARE = 100


@dataclass(slots=True)
class PartitionMessages:
    """What is known of one partition.

    Attributes:
        contexts: the incomplete messages; the one that has waited longest first.
        history: those that have ended.
        start: the offset where reading began.
        again: those that have ended, and are being read again.
    """

    contexts: dict[str, PendingMessage] = field(default_factory=dict)
    history: PartitionHistory = field(default_factory=PartitionHistory)
    start: int | None = None
    again: dict[str, PendingMessage] = field(default_factory=dict)
    _firsts: list[tuple[int, str]] = field(default_factory=list)  # a heap; what has ended leaves it later

    def add(self, context: PendingMessage) -> None:
        """Takes in a message that begins."""
        self.contexts[context.chunk.uuid] = context
        heappush(self._firsts, (context.first, context.chunk.uuid))
        if len(self._firsts) > 2 * len(self.contexts) + _SPARE:
            self._firsts = [(each.first, each.chunk.uuid) for each in self.contexts.values()]
            heapify(self._firsts)

    def lowest(self) -> int | None:
        """The lowest first chunk of an incomplete message."""
        while self._firsts:
            first, uuid = self._firsts[0]
            context = self.contexts.get(uuid)
            if context is not None and context.first == first:
                return first
            heappop(self._firsts)
        return None
