"""The assembler of a flow: puts chunks together, holds commits back for them, and resumes from committed metadata."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import cast

from app.config.chunking import ChunkSettings
from app.kafka.source_batch import ReadRecord
from app.kafka.structs import TopicPartition
from app.pipeline.stats import PipelineStats
from transforms.chunk import Chunk
from transforms.chunked_message import Assembled, Discarded
from transforms.commit_metadata import KAFKAS_BYTES
from transforms.errors import MalformedChunkError
from transforms.logger_name import logger_name
from transforms.reassembly import Reassembly
from transforms.record import SourceRecord

log = logging.getLogger(logger_name(__name__))


class LaneAssembler:
    """An assembler for the lanes of one flow. Belongs to its event loop.

    The time of chunks advances only while the flow reads (`tick`): chunks that are not read are not late. `clock` are
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
        self._reassembly = Reassembly(settings.limits)
        self._stats = stats
        self._metadata_bytes = metadata_bytes
        self._clock = clock
        self._last_s = clock()
        self._read_ms = 0.0  # the time of reading that the reassembly does not know yet
        self.clear = self._reassembly.clear

    @property
    def pending(self) -> int:
        """Messages that the commit waits for: chunks are missing."""
        return self._reassembly.pending

    @property
    def pending_bytes(self) -> int:
        """Bytes of the chunks of messages that are not whole; the budget does not count them."""
        return self._reassembly.pending_bytes

    def tick(self, *, reading: bool) -> None:
        """Adds the time since the last call to the clock, if the flow has been reading."""
        now_s = self._clock()
        if reading:
            self._read_ms += (now_s - self._last_s) * 1000
        self._last_s = now_s

    def reserve_bytes(self, record: SourceRecord) -> int:
        """Bytes that `add` may put in flight: those of the whole message, if the record is its last chunk."""
        try:
            chunk, _ = Chunk.parse(record)
        except MalformedChunkError:
            return 0
        last = chunk.id == chunk.count - 1 and chunk.size <= self._reassembly.limits.message_bytes
        return chunk.size if last else 0

    def add(self, partition: TopicPartition, record: SourceRecord) -> tuple[ReadRecord | None, list[Discarded]]:
        """Takes a chunk.

        Returns:
            The message that is whole now, if there is one, in the place of its last chunk; and discarded messages,
            perhaps of other partitions.
        """
        counts = self._reassembly.counts
        duplicates = counts.duplicates
        whole: ReadRecord | None = None
        discarded: list[Discarded] = []
        # What a turn has read is as old as its end. The first one also has the start and the rebalance behind it.
        ahead_ms = self._read_ms + (self._clock() - self._last_s) * 1000
        for event in self._reassembly.receive(partition, record, ahead_ms):
            if isinstance(event, Assembled):
                made, place = event.record, (record.topic, record.partition, record.offset)
                whole = ReadRecord(*place, made.timestamp, made.key, made.value, made.headers)
                self._stats.assembled_messages += 1
                self._stats.consumed_rate.add()
            elif isinstance(event, Discarded):
                discarded.append(event)
        self._stats.duplicate_chunks += counts.duplicates - duplicates
        self._count(discarded)
        return whole, discarded

    def expire(self) -> list[Discarded]:
        """Discards the messages that have waited too long."""
        read_ms, self._read_ms = self._read_ms, 0.0
        discarded = [each for each in self._reassembly.tick(read_ms) if isinstance(each, Discarded)]
        self._count(discarded)
        return discarded

    def resume(self, partition: TopicPartition, metadata: str, pipeline: str) -> int:
        """Continues from the committed metadata of a partition, before its first record; returns `Lane.delivered`."""
        delivered = self._reassembly.resume(partition, metadata)
        if metadata and not delivered:
            log.warning(
                "pipeline %s: topic %s, partition %d: the metadata of the commit is not ours and is ignored: %.100r",
                pipeline,
                partition.topic,
                partition.partition,
                metadata,
            )
        return delivered

    def commit(self, partition: TopicPartition, safe: int, held_back: int) -> tuple[int, str]:
        """The offset and the metadata to commit if all below `safe` is durable, and dead letters hold the commit back.

        A restart from there reads all chunks of each message that is not whole or whose result is not durable, and
        skips the messages above the offset that were delivered.
        """
        return self._reassembly.commit(partition, safe, [held_back], self._metadata_bytes)

    def _count(self, discarded: Sequence[Discarded]) -> None:
        for event in discarded:
            if event.late:
                self._stats.late_chunks += 1
            else:
                self._stats.discarded[event.reason] = self._stats.discarded.get(event.reason, 0) + 1


def chunks_of(discarded: Discarded) -> Sequence[SourceRecord]:
    """The chunks of a discarded message, as they were read."""
    return cast("Sequence[SourceRecord]", discarded.records)
