"""The sink: records on their way to one topic, and the offsets that become durable with each batch of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.kafka.batches.outbox import Outbox
from app.kafka.flow_producer import FlowProducer
from app.kafka.structs import RecordMetadata
from app.pipeline.budget import Part, Share
from app.pipeline.offset_tracker import OffsetTracker, Span
from transforms.errors import RecordUnfitError
from transforms.record import RecordLike, SourceRecord
from transforms.record_batch import RecordBatch

__all__ = ["Origins", "Sink", "Unfit"]

Unfit = Callable[["OffsetTracker", int, RecordUnfitError], None]


@dataclass(slots=True, eq=False)
class Origins:
    """Where the records of a batch come from, and the bytes of the budget that they hold. A `Load`.

    Only the source offset is kept for each record; all else is kept once for each source partition.

    Attributes:
        offsets: of the records, in their source partitions; a range for a batch that goes whole.
        runs: for each run of records of one source partition, its start in `offsets` and the tracker.
        spans: of the source partitions, by tracker.
        tracker: of the last record.
        held: bytes of the budget.
    """

    _share: Share | Part
    _acknowledged: Callable[[int, int], None]
    _unfit: Unfit | None = None
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

    @property
    def first(self) -> tuple[OffsetTracker, int]:
        """The tracker of the source partition of the first record, and its offset there."""
        return self.runs[0][1], self.offsets[0]

    def split(self, count: int) -> Origins:
        """See `Load.split`: each part has spans of its own, so that the first may be committed before the second."""
        rest = Origins(self._share, self._acknowledged, self._unfit)
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
        self._share.give(self.held)
        self._acknowledged(records, size)

    def failed(self, error: BaseException) -> None:
        """See `Load.failed`: the writer ends the flow, which gives back all that it holds."""
        if isinstance(error, RecordUnfitError) and self._unfit is not None:
            self._unfit(*self.first, error)


class Sink:
    """Writes records to one topic, in the order of `append`, partition by partition.

    Args:
        writer: sends the records.
        topic: the topic.
        share: gets the bytes of a batch back when it is durable.
        acknowledged: called with the records and bytes of each batch that became durable.
        unfit: called with the tracker and source offset of a record that the topic refuses, before the flow ends.
        limit_bytes: the topic's `max.message.bytes`; None if it is not known.
    """

    def __init__(
        self,
        writer: FlowProducer,
        topic: str,
        share: Share | Part,
        *,
        acknowledged: Callable[[int, int], None],
        unfit: Unfit | None = None,
        limit_bytes: int | None = None,
    ) -> None:
        self.topic = topic
        self._writer = writer
        self._share = share
        self._acknowledged = acknowledged
        self._unfit = unfit
        self._limit_bytes = limit_bytes
        self._outboxes: dict[int, Outbox[Origins]] = {}
        self._unsent: dict[Outbox[Origins], None] = {}  # in the order in which they were written

    def _outbox(self, partition: int) -> Outbox[Origins]:
        outbox = self._outboxes.get(partition)
        if outbox is None:
            outbox = self._outboxes[partition] = self._writer.outbox(
                self.topic, partition, self._origins, limit_bytes=self._limit_bytes
            )
        self._unsent[outbox] = None
        return outbox

    def forward(
        self,
        partition: int,
        batch: RecordBatch,
        offsets: Sequence[int],
        tracker: OffsetTracker,
        held: int,
        codec: int,
    ) -> None:
        """Puts a batch that goes whole behind the records of a sink partition; otherwise as `append`.

        `offsets` are those of its records in the source partition. `codec` is its own unless it is uncompressed.
        """
        origins = self._outbox(partition).forward(batch, codec)
        origins.switch(tracker, offsets[0])
        origins.offsets = offsets
        tracker.released = offsets[-1] + 1
        origins.held += held

    def extend(
        self, partition: int, records: Sequence[SourceRecord], tracker: OffsetTracker, held: int, codec: int
    ) -> None:
        """Appends records of one source partition as fast as can be; the share holds `held` bytes for all of them."""
        at, left = 0, held
        for origins, taken in self._outbox(partition).extend(records, codec):
            if tracker is not origins.tracker:
                origins.switch(tracker, records[at].offset)
            origins.offsets += [record.offset for record in records[at : at + taken]]
            at += taken
            part = left if at == len(records) else held * taken // len(records)
            origins.held += part
            left -= part
        tracker.released = records[-1].offset + 1

    def append(
        self,
        partition: int,
        record: RecordLike,
        tracker: OffsetTracker,
        offset: int,
        held: int,
        codec: int | None = None,
    ) -> None:
        """Puts one record behind the others of its sink partition; `flush` sends them on.

        The `safe` of the tracker stays at or below `offset`, and the share holds `held` bytes, until it is durable.
        The record leaves with `codec`, or else with that of the producer.
        """
        outbox = self._outboxes.get(partition) or self._outbox(partition)
        origins = outbox.append(record, codec)
        if tracker is not origins.tracker:
            origins.switch(tracker, offset)
        origins.offsets.append(offset)
        tracker.released = offset + 1
        origins.held += held
        self._unsent[outbox] = None

    def flush(self) -> None:
        """Sends the records, as soon as those before them are durable; does not wait."""
        for outbox in self._unsent:
            outbox.send(outbox)
        self._unsent.clear()

    def _origins(self) -> Origins:
        return Origins(self._share, self._acknowledged, self._unfit)
