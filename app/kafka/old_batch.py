"""Messages of formats 0 and 1 as source batches: each has one record, or several that were compressed together."""

from __future__ import annotations

from collections.abc import Iterator

from aiokafka import TopicPartition

from app.kafka.source_batch import ReadRecord, SourceBatch, UnreadBatch
from transforms.errors import WORKER_ALLOWS, BatchTooLargeError, MalformedError
from transforms.frames import OversizeError
from transforms.message_set import Message
from transforms.record import SourceRecord


class OldBatch(SourceBatch):
    """A source batch that is never forwarded as it is: no broker accepts the format any more. See `SourceBatch`."""

    __slots__ = ("_message", "_plain")

    def __init__(self, partition: TopicPartition, offset: int, message: Message) -> None:
        super().__init__(partition, offset if message.codec else max(offset, message.last_offset), None)
        self._message = message
        self._plain = b""
        self.codec = message.codec
        self.size = len(message.data)

    @property
    def timestamp(self) -> int | None:
        """See `SourceBatch`."""
        return self._message.latest_timestamp

    @property
    def timestamp_type(self) -> int:
        """See `SourceBatch`."""
        return int(self._message.broker_time) if self._message.magic else -1

    @property
    def plain_bytes(self) -> int:
        """The size as read, until `unread` has decompressed it."""
        return len(self._plain) or self.size

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

    def unread(self, limit: int, allowed: str = WORKER_ALLOWS) -> UnreadBatch | None:
        """See `SourceBatch`. The number of records is not known: compaction may have removed some."""
        try:
            self._plain = self._message.plain(limit)
        except OversizeError:
            error = BatchTooLargeError(self.offset, self._message.last_offset, limit, allowed)
            return self._passed_on(self._message, self.offset, error, 1)
        except MalformedError as exc:
            return self._passed_on(self._message, self.offset, exc, 1)
        return None

    def forget(self) -> None:
        """See `SourceBatch`."""
        self._plain = b""

    def records(self) -> Iterator[SourceRecord]:
        """See `SourceBatch`; compressed records are available once `unread` has decompressed them."""
        topic, number = self.partition
        first = self.offset
        try:
            for offset, record in self._message.records(self._plain):
                if offset >= first:
                    yield ReadRecord(topic, number, offset, record.timestamp, record.key, record.value, ())
                    first = offset + 1
        except MalformedError as exc:
            yield self._passed_on(self._message, first, exc, 1)
