"""The records that a consumer has read and not delivered: chunks of incomplete messages, and records that are ready."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from transforms.assembly import Assembled, Assembler, ChunkMessageId, Discarded, Limits
from transforms.chunk import is_chunk
from transforms.commit_metadata import note, noted

__all__ = ["AssembledRecord", "Pending", "ReadingClock"]


@dataclass
class AssembledRecord(ConsumerRecord):  # type: ignore[misc]  # aiokafka has no types
    """A whole message, with the offset of its last chunk; everything else is as in the record that was split.

    Attributes:
        chunk_message_id: the offsets of its first and its last chunk.
    """

    chunk_message_id: ChunkMessageId


class ReadingClock:
    """Counts the milliseconds in which a call was reading. It stands still while no call reads.

    Args:
        time: a clock that never goes back, in seconds.
    """

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._readers = 0
        self._since = 0.0
        self._elapsed = 0.0

    def now_ms(self) -> int:
        """The time so far."""
        running = self._time() - self._since if self._readers else 0.0
        return int((self._elapsed + running) * 1000)

    @contextmanager
    def running(self) -> Iterator[None]:
        """The clock runs inside this context."""
        if not self._readers:
            self._since = self._time()
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._elapsed += self._time() - self._since


class Pending:
    """Assembles chunks into messages, and says which offsets may be committed. Belongs to one event loop.

    Args:
        limits: how much may be pending.
        quiet_evictions: whether evicted messages are only counted, and not put into `discarded`.

    Attributes:
        assembler: the incomplete messages.
        ready: ordinary records and whole messages to deliver, by partition.
        discarded: the messages that `on_discarded` has not taken yet.
    """

    def __init__(self, limits: Limits, *, quiet_evictions: bool = False) -> None:
        self.assembler = Assembler(limits)
        self.ready: dict[TopicPartition, deque[ConsumerRecord]] = {}
        self.discarded: deque[Discarded] = deque()
        self._quiet_evictions = quiet_evictions
        self._known: set[TopicPartition] = set()

    def take(self, found: Mapping[TopicPartition, Sequence[ConsumerRecord]], now_ms: int) -> None:
        """Takes records in the order of offsets."""
        for partition, records in found.items():
            for record in records:
                if is_chunk(record.headers):
                    for event in self.assembler.add(partition, record, now_ms):
                        if isinstance(event, Assembled):
                            self.ready.setdefault(partition, deque()).append(_whole(event, record))
                        else:
                            self._keep([event])
                elif not self.assembler.delivered(partition, record.offset):
                    self.ready.setdefault(partition, deque()).append(record)

    def expire(self, now_ms: int) -> None:
        """Discards the messages that are too old."""
        self._keep(self.assembler.expire(now_ms))

    def safe(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit if all records below `offsets` have been read.

        They pass neither the first chunk of an incomplete message nor a record that is ready. If records behind them
        have been delivered, the metadata notes this, unless the application gave metadata.
        """
        return {partition: self._safe(partition, *given) for partition, given in offsets.items()}

    def _safe(self, partition: TopicPartition, offset: int, metadata: str) -> OffsetAndMetadata:
        waiting = [each.records for each in self.discarded if _partition(each) == partition]
        ready = self.ready.get(partition)
        ends = [records[-1].offset for records in waiting]
        ends += [ready[0].offset] if ready else []
        position = min([offset, *ends])
        safe = min([self.assembler.safe_offset(partition, position), *(records[0].offset for records in waiting)])
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

    def _keep(self, events: Iterable[Discarded]) -> None:
        self.discarded.extend(each for each in events if not (self._quiet_evictions and each.reason == "evicted"))


def _partition(discarded: Discarded) -> TopicPartition:
    record = cast("Any", discarded.records[0])
    return TopicPartition(record.topic, record.partition)


def _whole(event: Assembled, last: ConsumerRecord) -> AssembledRecord:
    record = event.record
    return AssembledRecord(
        topic=last.topic,
        partition=last.partition,
        offset=last.offset,
        timestamp=record.timestamp,
        timestamp_type=last.timestamp_type,
        key=record.key,
        value=record.value,
        checksum=None,
        serialized_key_size=len(record.key) if record.key is not None else -1,
        serialized_value_size=len(record.value or b""),
        headers=tuple(record.headers),
        chunk_message_id=event.id,
    )
