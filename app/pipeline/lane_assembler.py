"""The assembler of a flow: puts chunks together, holds commits back for them, and resumes from committed metadata."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import cast

from app.config.chunking import ChunkSettings
from app.kafka.source_batch import SourceBatch
from app.kafka.structs import TopicPartition
from app.pipeline.lane import Lane, PlacedRecord
from app.pipeline.stats import PipelineStats
from transforms.assembly import Assembled, Assembler, Discarded
from transforms.chunk import Chunk, is_chunk, may_hold_chunks
from transforms.commit_metadata import KAFKAS_BYTES, noted
from transforms.errors import MalformedChunkError
from transforms.logger_name import logger_name
from transforms.record import Record, SourceRecord

__all__ = ["LaneAssembler", "chunks_of"]

log = logging.getLogger(logger_name(__name__))


class LaneAssembler:
    """An assembler for the lanes of one flow. Belongs to its event loop.

    The time of chunks goes on only while the flow reads (`tick`): chunks that nobody reads are not late. `clock` are
    seconds that do not go back; `metadata_bytes` is the longest metadata of a commit that the brokers take.
    """

    def __init__(
        self,
        settings: ChunkSettings,
        stats: PipelineStats,
        *,
        clock: Callable[[], float],
        metadata_bytes: int = KAFKAS_BYTES,
    ) -> None:
        self._assembler = Assembler(settings.limits)
        self._stats = stats
        self._metadata_bytes = metadata_bytes
        self._clock = clock
        self._last_s = clock()
        self._now_ms = 0.0

    @property
    def pending(self) -> int:
        """Messages that the commit waits for: chunks are missing, or come again after they were delivered."""
        return self._assembler.pending + self._assembler.repeating

    @property
    def pending_bytes(self) -> int:
        """Bytes of the chunks of messages that are not whole; the budget does not count them."""
        return self._assembler.pending_bytes

    def tick(self, *, reading: bool) -> None:
        """Adds the time since the last call to the clock, if the flow has been reading."""
        now_s = self._clock()
        if reading:
            self._now_ms += (now_s - self._last_s) * 1000
        self._last_s = now_s

    def takes_any(self, lane: Lane, batch: SourceBatch) -> bool:
        """False if `takes` is false for each record of the batch; True if that cannot be told cheaply."""
        return batch.offset < lane.delivered or batch.batch is None or may_hold_chunks(batch.batch)

    def takes(self, lane: Lane, record: SourceRecord) -> bool:
        """True if a record is not for the chain: it is a chunk, or was delivered before the restart."""
        return record.offset < lane.delivered or (bool(record.headers) and is_chunk(record.headers))

    def reserve_bytes(self, record: SourceRecord) -> int:
        """Bytes that `add` may put in flight: those of the whole message, if the record is its last chunk."""
        if not is_chunk(record.headers):
            return 0
        try:
            chunk, _ = Chunk.parse(record)
        except MalformedChunkError:
            return 0
        last = chunk.id == chunk.count - 1 and chunk.size <= self._assembler.limits.message_bytes
        return chunk.size if last else 0

    def add(self, lane: Lane, record: SourceRecord) -> tuple[SourceRecord | None, list[Discarded]]:
        """Takes a record for which `takes` is true.

        Returns:
            The message that is whole now, if there is one, and discarded messages, perhaps of other partitions.
        """
        if not is_chunk(record.headers):
            return None, []
        counts = self._assembler.counts
        duplicates = counts.duplicates
        whole: SourceRecord | None = None
        discarded: list[Discarded] = []
        # What a turn has read is as old as its end. The first one also has the start and the rebalance behind it.
        now_ms = self._now_ms + (self._clock() - self._last_s) * 1000
        for event in self._assembler.add(lane.partition, record, int(now_ms)):
            if isinstance(event, Assembled):
                whole = _placed(record, event.record)
                self._stats.assembled_messages += 1
                self._stats.consumed_rate.add()
            else:
                discarded.append(event)
        self._stats.duplicate_chunks += counts.duplicates - duplicates
        self._count(discarded)
        return whole, discarded

    def expire(self) -> list[Discarded]:
        """See `Assembler.expire`."""
        discarded = self._assembler.expire(int(self._now_ms))
        self._count(discarded)
        return discarded

    def resume(self, lane: Lane, metadata: str, pipeline: str) -> None:
        """Takes in the committed metadata of a partition, before its first record."""
        if not metadata:
            return
        found = noted(metadata)
        if found is None:
            log.warning(
                "pipeline %s: topic %s, partition %d: the metadata of the commit is not ours and is ignored: %.100r",
                pipeline,
                lane.partition.topic,
                lane.partition.partition,
                metadata,
            )
            return
        lane.delivered = found.delivered
        self._assembler.resume(lane.partition, found.delivered, found.torn)

    def commit(self, lane: Lane) -> tuple[int, str]:
        """The offset and the metadata to commit for a lane with a tracker.

        A restart from there reads all chunks of each message that is not whole or whose result is not durable, and
        skips the messages above the offset that were delivered.
        """
        assert lane.tracker is not None
        safe = lane.tracker.safe()
        return self._assembler.commit(lane.partition, safe, [lane.held_back(safe)], self._metadata_bytes)

    def clear(self, partition: TopicPartition) -> None:
        """See `Assembler.clear`."""
        self._assembler.clear(partition)

    def _count(self, discarded: Sequence[Discarded]) -> None:
        self._stats.late_chunks += sum(event.late for event in discarded)
        for event in discarded:
            if event.late:
                continue
            self._stats.discarded[event.reason] = self._stats.discarded.get(event.reason, 0) + 1


def chunks_of(discarded: Discarded) -> Sequence[SourceRecord]:
    """The chunks of a discarded message, as they were read."""
    return cast("Sequence[SourceRecord]", discarded.records)


def _placed(last: SourceRecord, message: Record) -> PlacedRecord:
    """The message in the place of its last chunk."""
    place = (last.topic, last.partition, last.offset, message.timestamp)
    return PlacedRecord(*place, message.key, message.value, message.headers)
