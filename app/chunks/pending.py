"""The records that a consumer has read and not delivered: chunks of incomplete messages, and records that are ready."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from app.chunks.rereader import Again
from transforms.assembly import Assembled, Assembler, ChunkMessageId, Discarded, Limits, Reread
from transforms.chunk import is_chunk
from transforms.commit_metadata import note, noted

__all__ = ["AssembledRecord", "Pending", "ReadingClock"]

_logger = logging.getLogger(__name__)


@dataclass
class AssembledRecord(ConsumerRecord):  # type: ignore[misc]  # aiokafka has no types
    """A whole message, with the offset of its last chunk; everything else is as in the record that was split.

    Attributes:
        chunk_message_id: the offsets of its first and its last chunk.
    """

    chunk_message_id: ChunkMessageId


class ReadingClock:
    """Counts, for each partition, the milliseconds in which a call was reading it.

    Args:
        time: a clock that never goes back, in seconds.
    """

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._elapsed: dict[TopicPartition, float] = {}
        self._until: dict[TopicPartition, float] = {}

    def now_ms(self, partition: TopicPartition) -> int:
        """The time of a partition so far."""
        return int(self._elapsed.get(partition, 0.0) * 1000)

    def count(self, partitions: Iterable[TopicPartition], since_s: float) -> None:
        """Adds the time from `since_s` on to partitions that a call was reading, once however many calls did."""
        now = self._time()
        for partition in partitions:
            since = max(since_s, self._until.get(partition, since_s))
            self._elapsed[partition] = self._elapsed.get(partition, 0.0) + max(0.0, now - since)
            self._until[partition] = now


class Pending:
    """Assembles chunks into messages, and says which offsets may be committed. Belongs to one event loop.

    Args:
        limits: how much may be held in memory. What is over them is read again from the log.
        evicts: whether the oldest message is dropped instead, and only counted.

    Attributes:
        assembler: the incomplete messages.
        ready: ordinary records and whole messages to deliver, by partition; or what is to be read again for one.
        discarded: the messages that `on_discarded` has not taken yet; or what is to be read again for one.
    """

    def __init__(self, limits: Limits, *, evicts: bool = False) -> None:
        self.assembler = Assembler(limits, self._read_again, evicts=evicts)
        self.ready: dict[TopicPartition, deque[ConsumerRecord | Again]] = {}
        self.discarded: deque[Discarded | Again] = deque()
        self._evicts = evicts
        self._known: set[TopicPartition] = set()

    def take(self, partition: TopicPartition, records: Iterable[ConsumerRecord], now_ms: int) -> None:
        """Takes records in the order of offsets."""
        for record in records:
            if is_chunk(record.headers):
                for event in self.assembler.add(partition, record, now_ms):
                    if isinstance(event, Assembled):
                        self._ready(partition, _whole(event, partition, record.timestamp_type))
                    else:
                        self._keep([event])
            elif not self.assembler.delivered(partition, record.offset):
                self._ready(partition, record)

    def expire(self, partition: TopicPartition, now_ms: int) -> None:
        """Discards the messages of a partition that are too old."""
        self._keep(self.assembler.expire(now_ms, partition))

    def resolve(self, again: Again, outcome: Assembled | Discarded | None, timestamp_type: int) -> None:
        """Takes what reading again gave, unless the partition has been left meanwhile."""
        ready = self.ready.get(again.partition, deque())
        if again in self.discarded:
            self.discarded[self.discarded.index(again)] = cast("Discarded", outcome)
        elif ready and ready[0] is again:
            ready.popleft()
            if isinstance(outcome, Assembled):
                ready.appendleft(_whole(outcome, again.partition, timestamp_type))
            elif outcome is not None:
                self.discarded.append(outcome)
            if not ready:
                del self.ready[again.partition]
        else:
            return
        self.assembler.resolve(again.reread, outcome)
        self._drop_empty()

    def safe(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit if all records below `offsets` have been read.

        They pass neither the first chunk of an incomplete message nor a record that is ready. If records behind them
        have been delivered, the metadata notes this, unless the application gave metadata.
        """
        return {partition: self._safe(partition, *given) for partition, given in offsets.items()}

    def position(self, partition: TopicPartition, offset: int) -> int:
        """The offset of the next record to deliver or to discard, if all below `offset` have been read."""
        ends = [_bounds(each)[1] for each in self.discarded if _partition(each) == partition]
        ready = self.ready.get(partition)
        return min([offset, *ends, *([ready[0].offset] if ready else [])])

    def _safe(self, partition: TopicPartition, offset: int, metadata: str) -> OffsetAndMetadata:
        waiting = [_bounds(each) for each in self.discarded if _partition(each) == partition]
        position = self.position(partition, offset)
        safe = min([self.assembler.safe_offset(partition, position), *(first for first, _ in waiting)])
        delivered = self.assembler.delivered_below(partition, position)
        return OffsetAndMetadata(safe, metadata or note(safe, delivered, self.assembler.torn(partition, safe)))

    def moved(self, partition: TopicPartition, metadata: str | None = None) -> None:
        """See `Undelivered`."""
        self.assembler.clear(partition)
        self.ready.pop(partition, None)
        self.discarded = deque(each for each in self.discarded if _partition(each) != partition)
        self._known.add(partition)
        found = noted(metadata)
        if found is not None:
            self.assembler.resume(partition, found.delivered, found.torn)

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """See `Undelivered`."""
        for partition in self._known | set(partitions):
            self.moved(partition)
        self._known = set(partitions)

    def _ready(self, partition: TopicPartition, record: ConsumerRecord | Again) -> None:
        self.ready.setdefault(partition, deque()).append(record)

    def _read_again(self, reread: Reread) -> None:
        partition = cast("TopicPartition", reread.partition)
        again = Again(partition, reread)
        if reread.reason is None:
            self._ready(partition, again)
        elif not (self._evicts and reread.reason == "evicted"):
            self.discarded.append(again)

    def _keep(self, events: Iterable[Discarded]) -> None:
        self.discarded.extend(each for each in events if not (self._evicts and each.reason == "evicted"))

    def _drop_empty(self) -> None:
        """Kafka has removed all chunks of a message before they could be read again: there is nothing to give."""
        for each in [each for each in self.discarded if isinstance(each, Discarded) and not each.records]:
            _logger.warning("a message of chunks has left the log unread: %s (%s)", each.reason, each.detail)
            self.discarded.remove(each)


def _partition(discarded: Discarded | Again) -> TopicPartition:
    if isinstance(discarded, Again):
        return discarded.partition
    record = cast("Any", discarded.records[0])
    return TopicPartition(record.topic, record.partition)


def _bounds(discarded: Discarded | Again) -> tuple[int, int]:
    """The offsets of the first and the last chunk."""
    if isinstance(discarded, Again):
        return discarded.reread.first, discarded.reread.last
    return discarded.records[0].offset, discarded.records[-1].offset


def _whole(event: Assembled, partition: TopicPartition, timestamp_type: int) -> AssembledRecord:
    record = event.record
    return AssembledRecord(
        topic=partition.topic,
        partition=partition.partition,
        offset=event.id.last,
        timestamp=record.timestamp,
        timestamp_type=timestamp_type,
        key=record.key,
        value=record.value,
        checksum=None,
        serialized_key_size=len(record.key) if record.key is not None else -1,
        serialized_value_size=len(record.value or b""),
        headers=tuple(record.headers),
        chunk_message_id=event.id,
    )
