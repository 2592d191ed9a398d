"""The output: writes records from lanes to the output topic and the dead letter queue, until they are durable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from app.kafka.batches.bounds import Bounds
from app.kafka.batches.outbox import Outbox, RecordRefusedError
from app.kafka.clients import ClusterError, codec_number, translated
from app.kafka.errors import KafkaError
from app.kafka.source_batch import SourceBatch
from app.kafka.structs import RecordMetadata, partition_of
from app.kafka.topics import Topic
from app.kafka.writer import Writer
from app.pipeline.lane import Item, Lane, Letter, Passing, Working, held_bytes
from app.pipeline.learned_limits import LimitError, UnfitError
from app.pipeline.offset_tracker import OffsetTracker, Span
from app.pipeline.parts import Parts, whole_bytes
from transforms.errors import RecordUnfitError
from transforms.record import RecordLike


class Output:
    """Writes what leaves the lanes with one producer, in the order in which it leaves. Belongs to one event loop.

    Args:
        parts: of the flow.
        give: called with bytes of the budget, when the records that held them are durable.
        due: called when there may be something to commit.
        transactional_id: if it writes in transactions, which the caller begins and ends.
        bounds: limit the batches on their way, if several outputs share them.

    Attributes:
        writer: the producer.

    Raises:
        ConfigurationError: a certificate or key cannot be used, or a package is missing.
    """

    def __init__(
        self,
        parts: Parts,
        give: Callable[[int], None],
        due: Callable[[], None],
        *,
        transactional_id: str | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self._parts = parts
        self._whole_bytes = whole_bytes(parts.settings, parts.plan)
        self._give = give
        self._due = due
        self._codec = codec_number(parts.settings)
        self.writer: Writer = parts.clients.writer(
            parts.brokers,
            numbers=parts.stats.batches,
            failed=self._failed,
            bounds=bounds,
            transactional_id=transactional_id,
        )
        self._outboxes: dict[int, Outbox[Origins]] = {}  # of the output topic, by partition
        self._unsent: dict[Outbox[Origins], None] = {}  # in the order in which they were written

    # --- writing -----------------------------------------------------------------------------------------------------

    # Each record that passes comes through here: the calls are counted (see `Admission._admit_records`).
    def append(
        self,
        lane: Lane,
        record: RecordLike,
        offset: int,
        held: int,
        codec: int,
        outbox: Outbox[Origins] | None = None,
    ) -> None:
        """Puts a record that leaves a lane behind the others of its partition; `flush` sends them on.

        The commit of the lane stays at or below `offset`, and the record holds `held` bytes of the budget, until it is
        durable. `codec` is the number of its codec. It is for the output topic if no `outbox` is named.
        """
        tracker = lane.tracker or lane.tracked(offset)
        if outbox is None:
            partition = lane.sink_partition
            if partition is None:
                if record.key is None:
                    # Any partition would do; the same one for a source partition keeps the order of its records.
                    partition = lane.partition.partition % self._parts.plan.sink.partitions
                else:
                    partition = partition_of(record.key, self._parts.plan.sink.partitions)
            outbox = self._outboxes.get(partition) or self._outbox(partition)
        origins = outbox.append(record, codec)
        if tracker is not origins.tracker:
            origins.switch(tracker, offset)
        origins.offsets.append(offset)
        tracker.released = offset + 1
        origins.held += held
        self._unsent[outbox] = None

    def forward(self, lane: Lane, batch: SourceBatch, held: int) -> None:
        """As `append`, for the records of a batch that all leave as they are, by a lane with a `sink_partition`.

        Raises:
            ClusterError: the batch cannot be read; nothing of the lane may be written behind it.
        """
        assert lane.sink_partition is not None
        tracker = lane.tracked(batch.offset)
        outbox = self._outboxes.get(lane.sink_partition) or self._outbox(lane.sink_partition)
        codec = batch.codec if self._codec is None else self._codec
        if batch.is_forwarded(self._codec, self._whole_bytes):
            assert batch.batch is not None
            outbox.forward(batch.batch, codec).add(tracker, batch.offsets, held)
            self._parts.stats.batches_whole += not batch.merged_from
            self._parts.stats.batches_read_anew += batch.merged_from
        else:
            try:
                rows = batch.rows()
            except KafkaError as exc:
                tracker.keep(tracker.released)
                raise translated(exc, f"reading topic {lane.partition.topic}") from exc
            at, left = 0, held
            for origins, taken in outbox.extend(rows, codec):
                part = left if at + taken == len(rows) else held * taken // len(rows)
                origins.add(tracker, [row.offset for row in rows[at : at + taken]], part)
                at += taken
                left -= part
            self._parts.stats.batches_read_anew += batch.merged_from or 1
        self._unsent[outbox] = None

    def write(self, lane: Lane, item: Item) -> None:
        """Writes what leaves for an item that has a result, to where it belongs; `flush` sends it on."""
        if isinstance(item, Passing):
            self.forward(lane, item.batch, item.held)
            return
        tracker = lane.tracked(item.source.offset)
        # The dead letters of a discarded message come late. They are written under the offset of the record that left
        # last, as spans are opened in order: the commit stays at that record until the dead letters are durable.
        first = offset = max(item.source.offset, tracker.released - 1)
        outbox = None
        if isinstance(item, Letter):
            topic = self._parts.plan.dead_letters
            assert topic is not None
            outbox = self._open(topic, item.source.partition % topic.partitions)
            # The commit stays before the first record of several until their dead letter is durable.
            first = min(max(item.first, tracker.released), offset)
            item.written = offset
        if isinstance(item, Working):
            for each in item.result or ():
                self.append(lane, each, first, held_bytes(each), item.codec, outbox)
        tracker.released = offset + 1
        if not item.held:
            self._due()

    def _outbox(self, partition: int) -> Outbox[Origins]:
        outbox = self._outboxes[partition] = self._open(self._parts.plan.sink, partition)
        return outbox

    def _open(self, topic: Topic, partition: int) -> Outbox[Origins]:
        return self.writer.outbox(topic.name, partition, self._origins, limit_bytes=topic.max_message_bytes)

    def _origins(self) -> Origins:
        return Origins(self)

    # --- sending -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Sends what has been written, as soon as the client takes it; does not wait."""
        for outbox in self._unsent:
            outbox.send()
        self._unsent.clear()

    def durable(self, held: int, records: int, size: int) -> None:
        """Counts records and bytes that are durable, and the bytes of the budget that they held."""
        self._parts.stats.records_out += records
        self._parts.stats.bytes_out += size
        self._give(held)
        self._due()

    def _failed(self, error: BaseException, topic: str) -> None:
        if isinstance(error, RecordRefusedError):
            self._parts.termination.fail(LimitError(error))
        else:
            self._parts.termination.fail(translated(error, f"writing to topic {topic}"))

    def unfit(self, tracker: OffsetTracker, offset: int, error: RecordUnfitError) -> None:
        """Ends the flow: a topic refuses a record for what it is."""
        unfit: ClusterError = UnfitError(self._parts.lanes.partition_of(tracker), offset, error)
        topic = next(each for each in self._parts.plan.topics if each.name == error.topic)
        bounded = topic.oldest_ms is not None or topic.newest_ms is not None
        if bounded and error.timestamp is not None and topic.takes_timestamp(error.timestamp, self._parts.clock()):
            reason = (
                f"topic {topic.name} refuses a record for its timestamp, {error.timestamp}, which by the clock of this "
                "machine it takes: set the clocks of the brokers, and of this machine, right"
            )
            unfit = ClusterError(reason, retriable=True)
        self._parts.termination.fail(unfit)


@dataclass(slots=True, eq=False)
class Origins:
    """Where the records of a batch come from. A `Load`.

    Only the source offset is kept for each record; all else is kept once for each source partition.

    Attributes:
        offsets: of the records, in their source partitions; a range for a batch that goes whole.
        runs: for each run of records of one source partition, its start in `offsets` and the tracker.
        spans: of the source partitions, by tracker.
        tracker: of the last record.
        held: bytes of the budget.
    """

    _output: Output
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
        """See `Load.split`: each part has separate spans, so that the first may be committed before the second."""
        rest = Origins(self._output)
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
        self._output.durable(self.held, records, size)

    def failed(self, error: BaseException) -> None:
        """See `Load.failed`: the writer ends the flow, which releases all that it holds."""
        if isinstance(error, RecordUnfitError):
            self._output.unfit(self.runs[0][1], self.offsets[0], error)
