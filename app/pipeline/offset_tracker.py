"""The offset tracker: knows which offset of a partition may be committed.

Records leave a partition in order, in batches; batches to different output partitions are acknowledged in any order. An
offset is safe when each record before it is durable. The tracker knows batches, not records: its memory grows with the
batches in flight, and a record that passes adds nothing to its cost.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Span:
    """The records of one source partition in one output batch.

    Attributes:
        first: the lowest source offset among them.
        durable: True once the output topic has acknowledged the batch.
    """

    first: int
    durable: bool = False


class OffsetTracker:
    """The spans of one source partition that are not durable.

    Spans are opened in the order of their first offsets, which follows from records leaving in order.
    """

    __slots__ = ("_open", "committed", "released")

    def __init__(self, start: int) -> None:
        self._open: deque[Span] = deque()
        self.released = start
        """The offset after the last record that has left, or was dropped by a rule."""
        self.committed = start
        """The offset that was committed last."""

    def span(self, first: int) -> Span:
        """Opens a span for a batch whose first record of this partition is at `first`."""
        span = Span(first)
        self._open.append(span)
        return span

    def span_behind(self, span: Span, first: int) -> Span:
        """Opens a span for the later records of a batch that was split; `span` keeps those before `first`."""
        at = self._open.index(span) + 1
        while at < len(self._open) and self._open[at].first < first:
            at += 1
        behind = Span(first)
        self._open.insert(at, behind)
        return behind

    def keep(self, offset: int) -> None:
        """Lets nothing from `offset` on be safe any more: a record there has left its lane, and is not written."""
        self.span(offset)

    def safe(self) -> int:
        """The offset that may be committed: every record before it is durable."""
        while self._open and self._open[0].durable:
            self._open.popleft()
        return self._open[0].first if self._open else self.released

    @property
    def in_flight(self) -> bool:
        """True while a record that has left is not durable yet."""
        self.safe()
        return bool(self._open)
