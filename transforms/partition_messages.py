"""The messages of one partition that an assembler knows: incomplete ones, ended ones, those that are read again."""

from __future__ import annotations

from collections.abc import Iterator
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
        now_ms: the time when a chunk came last, or messages expired.
    """

    contexts: dict[str, PendingMessage] = field(default_factory=dict)
    history: PartitionHistory = field(default_factory=PartitionHistory)
    start: int | None = None
    again: dict[str, PendingMessage] = field(default_factory=dict)
    now_ms: int = 0
    _firsts: list[tuple[int, str]] = field(default_factory=list)  # a heap; what has ended leaves it later

    def add(self, context: PendingMessage) -> None:
        """Takes in a message that begins."""
        self.contexts[context.chunk.uuid] = context
        heappush(self._firsts, (context.first, context.chunk.uuid))
        if len(self._firsts) > 2 * len(self.contexts) + _SPARE:
            self._firsts = [(each.first, each.chunk.uuid) for each in self.contexts.values()]
            heapify(self._firsts)

    def across(self, offset: int) -> Iterator[PendingMessage]:
        """The messages that begin below an offset and have not ended below it; what has waited longest comes first."""
        for context in self.contexts.values():
            if context.first < offset and (context.ended is None or context.ended >= offset):
                yield context
        for context in self.again.values():
            if context.chunk.uuid not in self.contexts and context.first < offset <= context.last:
                context.ended, context.first_ms, context.began_ms = context.last, self.now_ms, self.now_ms
                yield context
        for end in self.history.ends():
            if end.bounds is None or end.chunk.uuid in self.contexts or end.chunk.uuid in self.again:
                continue
            first, last, below, key = end.bounds
            if first < offset <= last:
                yield PendingMessage(end.chunk, first, key, below, self.now_ms, self.now_ms, last=last, ended=last)

    def lowest(self) -> int | None:
        """The lowest first chunk of an incomplete message."""
        while self._firsts:
            first, uuid = self._firsts[0]
            context = self.contexts.get(uuid)
            if context is not None and context.first == first:
                return first
            heappop(self._firsts)
        return None
