"""The records that a consumer has read and not delivered: chunks of incomplete messages, and records that are ready."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from app.chunks.backlog import Backlog, Entry
from app.chunks.bounded_queue import BoundedQueue
from app.chunks.rereader import Again, ReadAgain
from transforms.assembly import Assembled, Assembler, ChunkMessageId, Discarded, Limits, Reread
from transforms.chunk import is_chunk
from transforms.commit_metadata import noted

__all__ = ["AssembledRecord", "Pending", "ReadingClock", "TornError"]


@dataclass
class AssembledRecord(ConsumerRecord):  # type: ignore[misc]  # aiokafka has no types
    """A whole message, with the offset of its last chunk; everything else is as in the record that was split.

    Attributes:
        chunk_message_id: the offsets of its first and its last chunk.
    """

    chunk_message_id: ChunkMessageId


class TornError(Exception):
    """Records could not be taken.

    Attributes:
        back: where to read on so that none is lost: the offset and the metadata of a commit.
    """

    def __init__(self, back: OffsetAndMetadata) -> None:
        super().__init__(back)
        self.back = back


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
        size: how many bytes a record downloads before it can be delivered; None for nothing.

    Attributes:
        assembler: the incomplete messages.
        backlog: ordinary records and whole messages to deliver, and what is to be read again for one.
        discarded: the messages that `on_discarded` has not taken yet; or what is to be read again for one.
    """

    def __init__(self, limits: Limits, size: Callable[[ConsumerRecord], int | None] = lambda _: None) -> None:
        self.assembler = Assembler(limits, self._read_again)
        self.backlog = Backlog()
        self.discarded = BoundedQueue[Discarded | Again]()
        self._size = size
        self._known: set[TopicPartition] = set()
        self._begun: set[TopicPartition] = set()  # those of which a record was read

    def take(self, partition: TopicPartition, records: Iterable[ConsumerRecord], now_ms: int) -> None:
        """Takes records in the order of offsets.

        Raises:
            TornError: not all were taken, as there was no memory, or an interrupt came. `__cause__` is the reason.
        """
        begins = offset = 0
        try:
            for record in records:
                begins = offset = record.offset
                if partition not in self._begun:
                    self._begun.add(partition)
                    self.assembler.begin(partition, offset)
                if record.headers and is_chunk(record.headers):
                    begins = self.assembler.safe_offset(partition, self.position(partition, offset))
                    for event in self.assembler.add(partition, record, now_ms):
                        if isinstance(event, Assembled):
                            self._add(partition, _whole(event, partition, record.timestamp_type))
                        else:
                            self._wait(_partition(event), event)  # an evicted one may be of another
                elif not self.assembler.delivered(partition, offset):
                    self._add(partition, record)
        except BaseException as exc:
            raise TornError(self._safe(partition, offset, "", told=False, begins=begins)) from exc

    def expire(self, partition: TopicPartition, now_ms: int) -> None:
        """Discards the messages of a partition that are too old."""
        for event in self.assembler.expire(now_ms, partition):
            self._wait(partition, event)

    def whole(self, entry: Entry, read: ReadAgain) -> None:
        """Takes what reading again gave for an entry: the message takes its place, or it is gone."""
        again, outcome = cast("Again", entry.record), read.outcome
        entry.gone = not isinstance(outcome, Assembled)
        if isinstance(outcome, Assembled):
            entry.record = _whole(outcome, again.partition, read.timestamp_type)
            entry.size = self._size(entry.record)
        if any(each is entry for each in self.backlog.entries(again.partition)):  # else the partition has been left
            self.assembler.resolve(again.reread, outcome, read.beginning)
            if isinstance(outcome, Discarded):
                self._wait(again.partition, outcome)

    def given_up(self, again: Again, read: ReadAgain) -> None:
        """Takes what reading again gave for the first message that is discarded, unless the partition has been left."""
        if not self.discarded or self.discarded.head is not again:
            return
        if isinstance(read.outcome, Discarded):
            self.discarded.replace_head(read.outcome)
        else:
            self.discarded.drop_head()

    def safe(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, told: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit if all records below `offsets` have been read.

        They pass neither the first chunk of an incomplete message nor a record that was not delivered. If records
        behind them have been delivered, the metadata notes this, unless the application gave metadata.

        Args:
            offsets: by partition.
            told: whether the application says that it is done with everything below `offsets`: then ordinary records
                that were not delivered do not count.
        """
        return {partition: self._safe(partition, *given, told=told) for partition, given in offsets.items()}

    def position(self, partition: TopicPartition, offset: int, *, told: bool = False) -> int:
        """The offset of the next record to deliver or to discard, if all below `offset` have been read.

        Args:
            partition: whose position.
            offset: the position of the client.
            told: as in `safe`.
        """
        lowest = self.discarded.lowest(partition)
        ends = [] if lowest is None else [lowest[1]]
        records = (entry.record for entry in self.backlog.entries(partition))
        undelivered = next((each for each in records if not told or isinstance(each, AssembledRecord | Again)), None)
        return min([offset, *ends, *([] if undelivered is None else [undelivered.offset])])

    def _safe(
        self, partition: TopicPartition, offset: int, metadata: str, *, told: bool, begins: int | None = None
    ) -> OffsetAndMetadata:
        lowest = self.discarded.lowest(partition)
        firsts = [] if lowest is None else [lowest[0]]
        firsts += [] if begins is None else [begins]
        safe, noted_too = self.assembler.commit(partition, self.position(partition, offset, told=told), firsts)
        return OffsetAndMetadata(safe, metadata or noted_too)

    def moved(
        self,
        partition: TopicPartition,
        metadata: str | None = None,
        *,
        by_client: bool = False,
        offset: int | None = None,
    ) -> None:
        """See `Undelivered`."""
        if offset is None:
            self.assembler.clear(partition)
        else:
            self.assembler.move(partition, offset)
        self._begun.discard(partition)
        if not by_client:
            self.backlog.forget(partition)
            self.discarded.forget(partition)
        self._known.add(partition)
        found = noted(metadata)
        if found is not None:
            self.assembler.resume(partition, found.delivered, found.torn)

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """See `Undelivered`."""
        for partition in self._known | set(partitions):
            self.moved(partition)
        self._known = set(partitions)

    def _add(self, partition: TopicPartition, record: ConsumerRecord) -> None:
        self.backlog.add(partition, Entry(record, self._size(record)))

    def _read_again(self, reread: Reread) -> None:
        partition = cast("TopicPartition", reread.partition)
        again = Again(partition, reread)
        if reread.reason is None:
            self.backlog.add(partition, Entry(again, reread.size))
        else:
            self._wait(partition, again)

    def _wait(self, partition: TopicPartition, event: Discarded | Again) -> None:
        found = event.reread if isinstance(event, Again) else event
        self.discarded.append(partition, event, found.first, found.last)


def _partition(discarded: Discarded) -> TopicPartition:
    record = cast("Any", discarded.records[0])
    return TopicPartition(record.topic, record.partition)


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
