"""The origins of a batch: the source offsets that become durable with it, and the bytes of the budget that it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from app.kafka.structs import RecordMetadata
from app.pipeline.offset_tracker import OffsetTracker, Span
from transforms.errors import RecordUnfitError


@dataclass(slots=True, eq=False)
class Origins:
    """Where the records of a batch come from. A `Load`.

    Only the source offset is kept for each record; all else is kept once for each source partition.

    Attributes:
        durable: called when the batch is durable, with the bytes of the budget that it held, its records and its bytes.
        unfit: called if the topic refuses the record, with its tracker and its source offset, before the flow ends.
        offsets: of the records, in their source partitions; a range for a batch that goes whole.
        runs: for each run of records of one source partition, its start in `offsets` and the tracker.
        spans: of the source partitions, by tracker.
        tracker: of the last record.
        held: bytes of the budget.
    """

    durable: Callable[[int, int, int], None]
    unfit: Callable[[OffsetTracker, int, RecordUnfitError], None]
    offsets: Any = field(default_factory=list)
    runs: list[tuple[int, OffsetTracker]] = field(default_factory=list)
    spans: dict[OffsetTracker, Span] = field(default_factory=dict)
    tracker: OffsetTracker | None = None
    held: int = 0

    def switch(self, tracker: OffsetTracker, offset: int) -> None:
        """Begins a run of records of a source partition, the first of them at `offset`."""
        self.tracker = tracker
        self.runs.append((len(self.offsets), tracker))
        if tracker not in self.spans:
            self.spans[tracker] = tracker.span(offset)

    def add(self, tracker: OffsetTracker, offsets: Any, held: int) -> None:
        """Adds records of one source partition with these offsets, which have left it; a range only if they are all."""
        if tracker is not self.tracker:
            self.switch(tracker, offsets[0])
        if self.offsets:
            self.offsets += offsets
        else:
            self.offsets = offsets
        self.held += held
        tracker.released = offsets[-1] + 1

    def split(self, count: int) -> Origins:
        """See `Load.split`: each part has spans of its own, so that the first may be committed before the second."""
        rest = Origins(self.durable, self.unfit)
        total = len(self.offsets)
        rest.held = self.held * (total - count) // total  # in the end all of it is given back
        self.held -= rest.held
        rest.offsets = self.offsets[count:]
        if isinstance(self.offsets, list):
            del self.offsets[count:]  # a copy of what stays would take long where there are many parts
        else:
            self.offsets = self.offsets[:count]
        later = [(start, tracker) for start, tracker in self.runs if start >= count]
        self.runs = [(start, tracker) for start, tracker in self.runs if start < count]
        rest.runs = [(0, self.runs[-1][1]), *((start - count, tracker) for start, tracker in later)]
        if later and later[0][0] == count:
            rest.runs = rest.runs[1:]
        stay = {tracker for _, tracker in self.runs}
        for start, tracker in rest.runs:
            if tracker in rest.spans:
                continue
            if tracker in stay:
                rest.spans[tracker] = tracker.span_behind(self.spans[tracker], rest.offsets[start])
            else:
                rest.spans[tracker] = self.spans.pop(tracker)
        return rest

    def delivered(self, metadata: RecordMetadata, records: int, size: int) -> None:  # noqa: ARG002
        for span in self.spans.values():
            span.durable = True
        self.durable(self.held, records, size)

    def failed(self, error: BaseException) -> None:
        """See `Load.failed`: the writer ends the flow, which gives back all that it holds."""
        if isinstance(error, RecordUnfitError):
            self.unfit(self.runs[0][1], self.offsets[0], error)
