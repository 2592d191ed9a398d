"""The output: a producer, the topics behind it, and the choice of the partition that a record goes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.cluster.preflight import Plan
from app.config.settings import PipelineSettings
from app.kafka.batches.bounds import Bounds
from app.kafka.batches.producer import RecordRefusedError
from app.kafka.broker_health import BrokerHealth
from app.kafka.clients import ClusterError, codec_number, translated
from app.kafka.errors import KafkaError
from app.kafka.flow_clients import FlowClients
from app.kafka.flow_producer import FlowProducer
from app.kafka.partitioner import partition_of
from app.kafka.source_batch import SourceBatch
from app.kafka.topics import Topic
from app.pipeline.budget import Part, Share
from app.pipeline.lane import Item, Lane, Letter, Passing, Working, held_bytes
from app.pipeline.learned_limits import LimitError, UnfitError
from app.pipeline.offset_tracker import OffsetTracker
from app.pipeline.sink import Sink
from app.pipeline.stats import PipelineStats
from app.pipeline.termination import Termination
from transforms.errors import RecordUnfitError
from transforms.record import RecordLike

__all__ = ["Destination", "Output"]


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the outputs of a flow write, and the parts of the flow that hear of it."""

    clients: FlowClients
    settings: PipelineSettings
    plan: Plan
    brokers: BrokerHealth
    stats: PipelineStats
    termination: Termination
    clock: Callable[[], float]
    """Seconds since 1970."""


class Output:
    """Writes what leaves the lanes, in the order in which it leaves. Belongs to one event loop.

    Args:
        destination: where to write.
        share: gets the bytes of records back when they are durable.
        durable: called whenever more may have become durable.
        transactional_id: of the producer, if it writes in transactions, which the caller begins and ends.
        bounds: limit the batches on their way, if several outputs share them; None for its own.

    Attributes:
        writer: what it writes with.

    Raises:
        ConfigurationError: a certificate or key cannot be used, or a package is missing.
    """

    def __init__(
        self,
        destination: Destination,
        share: Share | Part,
        durable: Callable[[], None],
        *,
        transactional_id: str | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self._settings = destination.settings
        self._plan = plan = destination.plan
        self._share = share
        self._stats = destination.stats
        self._termination = destination.termination
        self._durable = durable
        self._partitions = plan.sink.partitions
        self._clock = destination.clock
        self._codec = codec_number(self._settings)
        self.writer: FlowProducer = destination.clients.writer(
            destination.brokers,
            numbers=self._stats.batches,
            failed=self._failed,
            bounds=bounds,
            transactional_id=transactional_id,
        )
        self._sink = self._make_sink(plan.sink)
        self._dead_letters = None if plan.dead_letters is None else self._make_sink(plan.dead_letters)

    def _make_sink(self, topic: Topic) -> Sink:
        return Sink(
            self.writer,
            topic.name,
            self._share,
            acknowledged=self._acknowledged,
            unfit=self._unfit,
            limit_bytes=topic.max_message_bytes,
        )

    def _failed(self, error: BaseException, topic: str) -> None:
        if isinstance(error, RecordRefusedError):
            self._termination.fail(LimitError(error))
        else:
            self._termination.fail(translated(error, f"writing to topic {topic}"))

    def _unfit(self, tracker: OffsetTracker, offset: int, error: RecordUnfitError) -> None:
        self._termination.fail(self._clock_error(error) or UnfitError(tracker, offset, error))

    def _clock_error(self, error: RecordUnfitError) -> ClusterError | None:
        """The error if a clock is wrong and not the record: by the clock here, the topic takes the timestamp."""
        if error.timestamp is None:
            return None
        for topic in (self._plan.sink, self._plan.dead_letters):
            if topic is None or topic.name != error.topic or (topic.oldest_ms is None and topic.newest_ms is None):
                continue
            if topic.takes_timestamp(error.timestamp, self._clock()):
                return ClusterError(
                    f"topic {topic.name} refuses a record for its timestamp, {error.timestamp}, which by the clock of "
                    "this machine it takes: set the clocks of the brokers, and of this machine, right",
                    retriable=True,
                )
        return None

    def _acknowledged(self, records: int, size: int) -> None:
        self._stats.records_out += records
        self._stats.bytes_out += size
        self._durable()

    async def start(self) -> None:
        """Reaches the cluster; raises `KafkaError`."""
        await self.writer.start()

    def forward(self, lane: Lane, batch: SourceBatch, held: int) -> None:
        """Writes the records of a batch as they are, of a lane with a `sink_partition`.

        Raises:
            ClusterError: the batch cannot be read; nothing of the lane may be written behind it.
        """
        partition, tracker = lane.sink_partition, lane.tracked(batch.offset)
        assert partition is not None
        stats = self._stats
        codec = batch.codec if self._codec is None else self._codec
        if batch.goes_whole(self._codec, self._plan.sink.max_message_bytes):
            assert batch.batch is not None
            self._sink.forward(partition, batch.batch, batch.offsets, tracker, held, codec)
            stats.batches_whole += not batch.merged_from
            stats.batches_read_anew += batch.merged_from
        else:
            try:
                rows = batch.rows()
            except KafkaError as exc:
                tracker.keep(tracker.released)
                raise translated(exc, f"reading topic {lane.partition.topic}") from exc
            self._sink.extend(partition, rows, tracker, held, codec)
            stats.batches_read_anew += batch.merged_from or 1

    # Each record that passes comes through here: the calls are counted (see `Admission._admit`).
    def append(self, lane: Lane, record: RecordLike, offset: int, held: int, codec: int) -> None:
        partition = lane.sink_partition
        if partition is None:
            if record.key is None:
                # Any partition would do; the same one for a source partition keeps the order of its records.
                partition = lane.partition.partition % self._partitions
            else:
                partition = partition_of(record.key, self._partitions)
        codec = codec if self._codec is None else self._codec
        self._sink.append(partition, record, lane.tracked(offset), offset, held, codec)

    def write(self, lane: Lane, item: Item) -> None:
        if isinstance(item, Passing):
            self.forward(lane, item.batch, item.held)
            return
        tracker = lane.tracked(item.source.offset)
        # The dead letters of a discarded message come late: their offset is that of the record that left last.
        offset = max(item.source.offset, tracker.released - 1)
        result = item.result if isinstance(item, Working) else None
        if isinstance(item, Letter) and result:
            self._bury(item, result, tracker, offset)
        elif isinstance(item, Working) and result:
            for each in result:
                self.append(lane, each, offset, held_bytes(each), item.codec)
        else:
            tracker.released = offset + 1
            self._durable()

    def _bury(self, letter: Letter, result: Sequence[RecordLike], tracker: OffsetTracker, offset: int) -> None:
        assert self._dead_letters is not None
        assert self._plan.dead_letters is not None
        if letter.hold is not None:
            letter.hold.last = offset
        # The commit stays before the first record of several until their letter is durable.
        first = min(max(letter.first, tracker.released), offset)
        partition = letter.source.partition % self._plan.dead_letters.partitions
        codec = letter.codec if self._codec is None else self._codec
        for each in result:
            self._dead_letters.append(partition, each, tracker, first, held_bytes(each), codec)
        tracker.released = offset + 1

    def flush(self) -> None:
        self._sink.flush()
        if self._dead_letters is not None:
            self._dead_letters.flush()

    def press(self) -> None:
        self.writer.press()

    @property
    def failed(self) -> bool:
        """True if a write has failed; nothing is written after it."""
        return self.writer.failure is not None

    async def finished(self) -> None:
        """Sends what has been written, and waits until all of it is durable, or a write has failed."""
        await self.writer.flush()

    async def settled(self) -> None:
        await self.writer.settled()

    def drop(self) -> None:
        """Forgets the batches that wait; what is on its way already may still be written."""
        for origins in self.writer.drop():
            self._share.give(origins.held)

    def discard(self) -> None:
        """Stops sending; what was not sent is forgotten."""
        self.writer.discard()

    async def stop(self) -> None:
        """Forgets what was not sent, and stops the producer without waiting for batches that it still holds.

        An old batch must not be sent once the next flow has begun. Drained flows hold none.
        """
        await self.writer.stop()
