"""Messages of the formats 0 and 1 as source batches: each has one record, or those that are compressed together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException

from app.kafka.source_batch import ReadRecord, SourceBatch, Unopened, placed
from transforms.errors import WORKER_ALLOWS, BatchTooLargeError, MalformedError, TransformError
from transforms.frames import OversizeError
from transforms.message_set import Message
from transforms.record import SourceRecord

__all__ = ["OldBatch"]


class OldBatch(SourceBatch):
    """As `SourceBatch`. It never goes on whole: no broker takes the format any more.

    Args:
        partition: the source partition.
        offset: of the first record that is wanted.
        message: whose records they are.
    """

    __slots__ = ("_message", "_plain")

    def __init__(self, partition: TopicPartition, offset: int, message: Message) -> None:
        super().__init__(partition, offset if message.codec else max(offset, message.offset), None)
        self._message = message
        self._plain: bytes | None = None
        self.codec = message.codec
        self.size = len(message.data)

    @property
    def timestamp(self) -> int | None:
        """See `SourceBatch`."""
        return self._message.timestamp

    @property
    def timestamp_type(self) -> int:
        """See `SourceBatch`."""
        return int(self._message.broker_time) if self._message.magic else -1

    @property
    def plain_bytes(self) -> int:
        """See `SourceBatch`; as it was read, before `unopened` has decompressed it."""
        return self.size if self._plain is None else len(self._plain)

    def most_plain_bytes(self, limit: int) -> int:
        """See `SourceBatch`."""
        if not self.codec:
            return 0
        if self._most_plain_bytes is None:
            try:
                self._most_plain_bytes = self._message.most_plain_bytes
            except MalformedError:
                self._most_plain_bytes = 0
        return min(limit, self._most_plain_bytes)

    def kept(self) -> SourceBatch:
        """See `SourceBatch`."""
        return OldBatch(self.partition, self.offset, Message.read(memoryview(bytes(self._message.data))))

    def unopened(self, limit: int, allowed: str = WORKER_ALLOWS) -> Unopened | None:
        """See `SourceBatch`."""
        try:
            self._plain = self._message.plain(limit)
        except OversizeError:
            return self._all_from(self.offset, BatchTooLargeError(self.offset, self._message.offset, limit, allowed))
        except MalformedError as exc:
            return self._failed(self.offset, exc)
        return None

    def forget(self) -> None:
        """See `SourceBatch`."""
        self._plain = None

    def rows(self) -> Sequence[SourceRecord]:
        """See `SourceBatch`."""
        return list(self.records())

    def records(self) -> Iterator[SourceRecord]:
        """See `SourceBatch`; what is compressed is there once `unopened` has let it be decompressed."""
        topic, number = self.partition.topic, self.partition.partition
        first, plain = self.offset, self._plain or b""
        try:
            for offset, record in self._message.records(plain):
                if offset >= first:
                    yield ReadRecord(topic, number, offset, record.timestamp, record.key, record.value, ())
                    first = offset + 1
        except MalformedError as exc:
            yield self._failed(first, exc)

    def _failed(self, first: int, error: MalformedError) -> Unopened:
        if not self._message.intact:
            raise CorruptRecordException(f"{self.partition}, offset {first}: {error}") from error
        return self._all_from(first, placed(error, first, self._message.offset))

    def _all_from(self, first: int, error: TransformError) -> Unopened:
        topic, number, message = self.partition.topic, self.partition.partition, self._message
        # How many they are is not known: offsets before the first record may have been removed by compaction.
        return Unopened(topic, number, message.offset, message.timestamp, bytes(message.data), error, first)
