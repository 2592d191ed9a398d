"""The assembler of a flow: chunks of its partitions, what the commits say of them, and a clock that waits with them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from aiokafka import TopicPartition

from app.config.chunking import ChunkSettings
from app.pipeline.lane import Lane
from app.pipeline.stats import PipelineStats
from transforms.assembly import Assembled, Assembler, Discarded
from transforms.chunk import Chunk, is_chunk
from transforms.commit_metadata import note, noted
from transforms.errors import MalformedChunkError
from transforms.record import Header, Record, SourceRecord

__all__ = ["AssembledRecord", "Assembly", "chunks_of"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AssembledRecord:
    """A whole message with the coordinates of its last chunk."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    timestamp: int


class Assembly:
    """An assembler for the lanes of one flow. Belongs to its event loop.

    Its clock goes only while the flow reads (`tick`): chunks that nobody reads are not late.

    Args:
        settings: the pipeline's.
        stats: what is counted.
        clock: seconds that do not go back.
    """

    def __init__(
        self, settings: ChunkSettings, stats: PipelineStats, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._assembler = Assembler(settings.limits)
        self._stats = stats
        self._clock = clock
        self._last_s = clock()
        self._now_ms = 0.0

    @property
    def pending(self) -> int:
        """Messages for chunks of which the commit waits: not whole, or delivered and being written again."""
        return self._assembler.pending + self._assembler.repeating

    @property
    def pending_bytes(self) -> int:
        """What their chunks hold, beside the budget."""
        return self._assembler.pending_bytes

    def tick(self, *, reading: bool) -> None:
        """Lets the time since the last call go by; where the flow did not read, it did not pass."""
        now_s = self._clock()
        if reading:
            self._now_ms += (now_s - self._last_s) * 1000
        self._last_s = now_s

    def takes(self, lane: Lane, record: SourceRecord) -> bool:
        """True where a record is not for the chain: it is a chunk, or was delivered before the restart."""
        return record.offset < lane.delivered or (bool(record.headers) and is_chunk(record.headers))

    def reserve_bytes(self, record: SourceRecord) -> int:
        """What taking the record may add to what is in flight: the whole message, where it is the last chunk."""
        if not is_chunk(record.headers):
            return 0
        try:
            chunk, _ = Chunk.parse(record)
        except MalformedChunkError:
            return 0
        last = chunk.id == chunk.count - 1 and chunk.size <= self._assembler.limits.message_bytes
        return chunk.size if last else 0

    def add(self, lane: Lane, record: SourceRecord) -> tuple[AssembledRecord | None, list[Discarded]]:
        """Takes a record that `takes` is true of.

        Returns:
            The message that is whole now, if one is, and what was discarded, perhaps of other partitions.
        """
        if not is_chunk(record.headers):
            return None, []
        counts = self._assembler.counts
        duplicates = counts.duplicates
        whole: AssembledRecord | None = None
        discarded: list[Discarded] = []
        for event in self._assembler.add(lane.partition, record, int(self._now_ms)):
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
        """Takes in what was committed beside the offset of a partition, before its first record."""
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
        """The offset and the metadata to commit of a lane with a tracker.

        A restart there reads each message whole again of which a chunk is pending or whose result is not durable, and
        skips what was delivered above.
        """
        assert lane.tracker is not None
        safe = lane.tracker.safe()
        offset = min(lane.held_back(safe), self._assembler.safe_offset(lane.partition, safe))
        delivered = self._assembler.delivered_below(lane.partition, safe)
        return offset, note(offset, delivered, self._assembler.torn(lane.partition, offset))

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
    """The chunks, as they were read."""
    return cast("Sequence[SourceRecord]", discarded.records)


def _placed(last: SourceRecord, record: Record) -> AssembledRecord:
    return AssembledRecord(
        last.topic, last.partition, last.offset, record.key, record.value, record.headers, record.timestamp
    )
