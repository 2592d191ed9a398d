"""A batch: records in Kafka's format, and the data that is kept with them until they are durable."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.structs import RecordMetadata

from app.kafka.source_batch import decoded
from transforms.batch_size import BATCH_OVERHEAD_BYTES
from transforms.batch_split import split
from transforms.record import Header, RecordLike
from transforms.record_batch import NO_STAMP, RecordBatch, Stamp, restamp

__all__ = ["Batch", "Builder", "Load", "WholeBuilder", "sent_bytes"]

_NO_TIMESTAMP = -1
_COMPRESSING = threading.Lock()


class Load(Protocol):
    """The data of a sender for the records of one batch."""

    def split(self, count: int) -> Self:
        """Keeps the data of the first `count` records, and returns the data of the others."""

    def delivered(self, metadata: RecordMetadata, records: int, size: int) -> None:
        """The batch is durable, its first record at `metadata.offset`; its records have `size` bytes uncompressed."""

    def failed(self, error: BaseException) -> None:
        """The batch is not delivered, or it is not known whether it is."""


class Builder(BatchBuilder):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka's builder; it remembers its stamp, and can build the batch before the client does.

    Building compresses the records; on a thread it does not hold up the event loop.

    Attributes:
        codec: the number of the codec; 0 for none.
        compresses: whether building it takes time.
        stamp: the last one; None before the first.
        tries: how often the client has taken the batch to send it.
    """

    def __init__(self, room_bytes: int, codec: int, *, transactional: bool) -> None:
        super().__init__(room_bytes, codec, is_transactional=transactional)
        self._buffer: bytearray | None = None
        self.codec = codec
        self.compresses = codec != 0
        self.stamp: Stamp | None = None
        self.tries = 0
        self._room_bytes = room_bytes
        self._untimed = False

    # Called for each record, so it leaves out what aiokafka does for serializers.
    def append(
        self, *, timestamp: int, key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()
    ) -> object | None:
        """None if the batch has no room for the record, or is closed."""
        if self._closed or (self._untimed and not self._takes_untimed(timestamp, key, value, headers)):
            self.close()
            return None
        appended: object | None = self._builder.append(self._relative_offset, timestamp, key, value, headers)
        if appended is None:
            self.close()
        else:
            self._relative_offset += 1
            if timestamp == _NO_TIMESTAMP and self._relative_offset == 1:
                self._untimed = True
        return appended

    def extend(self, records: Sequence[RecordLike], start: int) -> int:
        """Appends records from `start` on, and returns how many; 0 if `append` has to try, or there is no room."""
        if self._closed or self._untimed:
            return 0
        append, first = self._builder.append, self.record_count()
        at = first
        for record in records[start:] if start else records:
            # Without a timestamp, aiokafka would take it for the first.
            if record.timestamp < 0 or append(at, record.timestamp, record.key, record.value, record.headers) is None:
                break
            at += 1
        taken: int = at - first
        self._relative_offset = at
        return taken

    def _takes_untimed(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> bool:
        # aiokafka takes each record behind one without a timestamp for the first: it would change the timestamps of
        # those before, and would append without limit.
        more: int = self._builder.size_in_bytes(self._relative_offset, timestamp, key, value, headers)
        return timestamp == _NO_TIMESTAMP and self._builder.size() + more <= self._room_bytes

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        stamp = Stamp(producer_id, producer_epoch, base_sequence)
        if self._buffer is None:
            super()._set_producer_state(*stamp)
        elif stamp != self.stamp:
            restamp(self._buffer, stamp)
        self.stamp = stamp

    def stamped(self, stamp: Stamp) -> None:
        """Takes the stamp that the client will give it, so that the batch is built once."""
        self._set_producer_state(*stamp)

    def _build(self) -> bytearray:  # the client calls it
        self.tries += 1
        return self.built()

    def built(self) -> bytearray:
        """The bytes of the batch; the first call compresses it.

        If it does not become shorter, it stays as it is: a chunk that just fits its topic would no longer do so.
        """
        if self._buffer is None:
            plain_bytes = self.size()
            buffer: bytearray = super()._build()
            if self.codec and len(buffer) >= plain_bytes:
                buffer = bytearray(RecordBatch.read(memoryview(buffer)).uncompressed())
                restamp(buffer, self.stamp or NO_STAMP)
            self._buffer = buffer
        return self._buffer

    def built_bytes(self) -> int:
        """The length of what `built` would return; the batch cannot be sent any more."""
        plain_bytes: int = self.size()
        packed_bytes: int = len(super()._build())
        return min(plain_bytes, packed_bytes)


class WholeBuilder(Builder):
    """A batch that goes on as it was read, or was merged; it takes no records.

    Args:
        batch: `appendable`.
        transactional: whether it becomes part of a transaction.
        codec: the number of the codec with which it leaves: that of the batch, or any if the batch is uncompressed.
    """

    def __init__(self, batch: RecordBatch, *, transactional: bool, codec: int) -> None:
        super().__init__(0, codec, transactional=transactional)
        self.compresses = codec != batch.codec
        self._batch: RecordBatch | None = batch
        self._transactional = transactional
        self._plain_bytes = len(batch.data)
        self._relative_offset = batch.count
        self._closed = True

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        stamp = Stamp(producer_id, producer_epoch, base_sequence)
        if self._buffer is not None:
            super()._set_producer_state(*stamp)
        elif self.compresses:
            self.stamp = stamp  # building it comes next, perhaps on a thread
        else:
            self._forward(stamp)

    def _forward(self, stamp: Stamp) -> None:
        assert self._batch is not None
        batch = self._batch.compressed(self.codec) if self.compresses else self._batch
        self.stamp = stamp
        self._buffer = batch.forwarded(stamp, transactional=self._transactional)
        self._batch = None  # the bytes that were fetched may be let go

    def built(self) -> bytearray:
        """The bytes of the batch; the first call compresses it, if need be."""
        if self._buffer is None:
            self._forward(self.stamp or NO_STAMP)
        assert self._buffer is not None
        return self._buffer

    def size(self) -> int:
        """Bytes of the batch: as they are sent once it has been built."""
        return self._plain_bytes if self._buffer is None else len(self._buffer)


def _append(builder: Builder, record: RecordLike) -> object | None:
    headers = list(record.headers) if record.headers else []
    return builder.append(timestamp=record.timestamp, key=record.key, value=record.value, headers=headers)


def sent_bytes(record: RecordLike, codec: int) -> int:
    """Bytes of a batch with this record alone, as it is sent with the codec of this number; takes time.

    The broker compares them with the topic's `max.message.bytes`. Several threads may call this. One at a time does the
    work, as it takes three times the bytes of the record, which a budget may not have counted.
    """
    with _COMPRESSING:
        builder = Builder(0, codec, transactional=False)
        appended = _append(builder, record)
        assert appended is not None, "a batch takes its first record whatever its size"
        return builder.built_bytes()


L = TypeVar("L", bound=Load)


@dataclass(slots=True, eq=False)
class Batch(Generic[L]):
    """Records for one partition, in Kafka's format only: the client holds them in that format anyway.

    Attributes:
        builder: of the batch; an empty one at first.
        load: the data for the records.
        began_s: when its first record was appended, on the loop's clock.
        uncompressed_bytes: of its records, once the batch is closed.
    """

    builder: Builder
    load: L
    began_s: float
    uncompressed_bytes: int = 0

    def append(self, record: RecordLike) -> bool:
        """False if the batch has no room; it takes its first record whatever the size.

        Raises:
            TypeError: a part of the record has the wrong type.
        """
        return _append(self.builder, record) is not None

    @property
    def records(self) -> int:
        """The number of records."""
        return int(self.builder.record_count())

    @property
    def wire_bytes(self) -> int:
        """Bytes of the records as they are sent; uncompressed before the batch is built."""
        return int(self.builder.size()) - BATCH_OVERHEAD_BYTES

    @property
    def timestamp(self) -> int:
        """The greatest timestamp of the records, once the batch has been built."""
        return RecordBatch.read(memoryview(self.builder.built())).latest_timestamp

    def close(self) -> None:
        """Takes no more records."""
        if not self.uncompressed_bytes:
            self.uncompressed_bytes = self.wire_bytes
            self.builder.close()

    def divided(self, make: Callable[[], Builder]) -> list[Builder]:
        """The records, of which there must be several, in two builders with about as many bytes each.

        There are more builders if a record has no timestamp, because the next record may need a batch of its own.
        The built batch is decoded, so that normal batches keep nothing for this. It takes time; a thread may call it.

        Args:
            make: an empty builder that takes any number of records.
        """
        records = [record for _, record in decoded(RecordBatch.read(memoryview(self.builder.built())))]
        builders = []
        for part in split(records):
            builders.append(make())
            for record in part:
                if _append(builders[-1], record) is None:
                    builders.append(make())
                    appended = _append(builders[-1], record)
                    assert appended is not None, "a batch takes its first record whatever its size"
        return builders

    def parts(self, builders: Sequence[Builder]) -> list[Batch[L]]:
        """The batches into which this one has been `divided`; they replace it."""
        loads = []
        left = sum(builder.record_count() for builder in builders)
        # From the end: a load has a hundred thousand parts, and is cheap to shorten.
        for builder in reversed(builders[1:]):
            left -= builder.record_count()
            loads.append(self.load.split(left))
        loads.append(self.load)
        parts = [Batch(builder, load, self.began_s) for builder, load in zip(builders, reversed(loads), strict=True)]
        for part in parts:
            part.close()
        return parts
