"""A batch: records in Kafka's format, and the data that is kept with them until they are durable."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.structs import RecordMetadata

from app.kafka.source_batch import decoded
from transforms.batch_size import BATCH_OVERHEAD_BYTES
from transforms.batch_split import split
from transforms.record import RecordLike
from transforms.record_batch import NO_STAMP, RecordBatch, Stamp, restamp

UNLIMITED_BYTES = 2**31 - 1  # Kafka's lengths are signed 32-bit numbers
LARGEST_SEQUENCE = 2**31 - 1  # 0 follows; with aiokafka it is -2**31

_NO_TIMESTAMP = -1
_COMPRESSING = threading.Lock()


class Load(Protocol):
    """What a sender keeps with the records of one batch."""

    def split(self, count: int) -> Self:
        """Keeps the data of the first `count` records, and returns the data of the others."""

    def delivered(self, metadata: RecordMetadata, records: int, size: int) -> None:
        """The batch is durable. Its first record is at `metadata.offset`; its records had `size` bytes uncompressed."""

    def failed(self, error: BaseException) -> None:
        """The batch is not delivered, or it is not known whether it is."""


L = TypeVar("L", bound=Load)
E = TypeVar("E")


class Each(Generic[E]):
    """A `Load` with an entry for each record.

    Args:
        delivered: called with the entries of a durable batch, and the position of its first record.
        failed: called with the entries of a batch that is not delivered.
    """

    __slots__ = ("_delivered", "_failed", "entries")

    def __init__(
        self,
        delivered: Callable[[Sequence[E], RecordMetadata], None],
        failed: Callable[[Sequence[E], BaseException], None],
    ) -> None:
        self._delivered = delivered
        self._failed = failed
        self.entries: list[E] = []

    def split(self, count: int) -> Each[E]:
        """See `Load.split`."""
        rest = Each(self._delivered, self._failed)
        rest.entries, self.entries = self.entries[count:], self.entries[:count]
        return rest

    def delivered(self, metadata: RecordMetadata, records: int, size: int) -> None:  # noqa: ARG002
        """See `Load.delivered`."""
        self._delivered(self.entries, metadata)

    def failed(self, error: BaseException) -> None:
        """See `Load.failed`."""
        self._failed(self.entries, error)


class Batch(Generic[L]):
    """Records for one partition, held only in Kafka's format, as the client holds them in that format anyway.

    `send_batch` of aiokafka's producer accepts it in place of aiokafka's builder.

    Args:
        load: the data for the records.
        began_s: when its first record was appended, on the loop's clock.
        codec: the number of the codec with which it is sent; 0 for none.
        transactional: whether it becomes part of a transaction.
        room_bytes: the maximum size; the first record may exceed it.
        whole: an `appendable` batch that is forwarded as it was read or merged; no records are added to it. It has
            `codec`, or is uncompressed.

    Attributes:
        load, began_s, codec: see above.
        compresses: whether building it takes time.
        records: their number.
        uncompressed_bytes: of its records, once it is closed; of a forwarded batch, the bytes that are sent.
        sequence: the sequence number of the first record; None for the one that the client assigns.
        client_sequence: the one that the client assigns; None before that, or if its producer is not idempotent.
        stamp: the last one; None before the first.
        tries: how often the client has tried to send the batch.
    """

    def __init__(
        self,
        load: L,
        began_s: float,
        codec: int,
        *,
        transactional: bool,
        room_bytes: int = UNLIMITED_BYTES,
        whole: RecordBatch | None = None,
    ) -> None:
        self.load = load
        self.began_s = began_s
        self.codec = codec
        self.compresses = codec != (0 if whole is None else whole.codec)
        self.records = 0 if whole is None else whole.count
        self.uncompressed_bytes = 0
        self.sequence: int | None = None
        self.client_sequence: int | None = None
        self.stamp: Stamp | None = None
        self.tries = 0
        self._transactional = transactional
        self._room_bytes = room_bytes
        self._whole = whole
        self._builder: Any = None if whole is not None else _builder(codec, room_bytes, transactional=transactional)
        self._untimed = False
        self._data: bytearray | None = None
        self._closed = False
        if whole is not None:
            self.close()

    # Called for each record, so it omits what aiokafka's method does for serializers.
    def append(self, record: RecordLike) -> bool:
        """Appends a record; False if the batch is full or closed. The first record may have any size.

        Raises:
            TypeError: a part of the record has the wrong type.
        """
        if self._closed or (self._untimed and not self._takes_untimed(record)):
            return False
        headers = list(record.headers) if record.headers else []
        if self._builder.append(self.records, record.timestamp, record.key, record.value, headers) is None:
            return False
        if self.records == 0:
            self._untimed = record.timestamp == _NO_TIMESTAMP
        self.records += 1
        return True

    def extend(self, records: Sequence[RecordLike], start: int) -> int:
        """Appends records from `start` on, and returns how many; 0 if the batch is full, or `append` must be used."""
        if self._closed or self._untimed:
            return 0
        append, first = self._builder.append, self.records
        at = first
        for record in records[start:] if start else records:
            # aiokafka would treat a record without a timestamp as the first one.
            if record.timestamp < 0 or append(at, record.timestamp, record.key, record.value, record.headers) is None:
                break
            at += 1
        self.records = at
        return at - first

    def _takes_untimed(self, record: RecordLike) -> bool:
        # aiokafka treats each record after one without a timestamp as the first: it would change the timestamps of
        # those before, and would append without limit.
        if record.timestamp != _NO_TIMESTAMP:
            return False
        parts = record.timestamp, record.key, record.value, list(record.headers)
        more: int = self._builder.size_in_bytes(self.records, *parts)
        return bool(self._builder.size() + more <= self._room_bytes)

    @property
    def wire_bytes(self) -> int:
        """Bytes of the records as they are sent; uncompressed before the batch is built."""
        if self._data is not None:
            return len(self._data) - BATCH_OVERHEAD_BYTES
        size = self._builder.size() if self._whole is None else len(self._whole.data)
        return int(size) - BATCH_OVERHEAD_BYTES

    @property
    def timestamp(self) -> int:
        """The greatest timestamp of the records. Builds the batch."""
        return RecordBatch.read(memoryview(self.built())).latest_timestamp

    def stamped(self, stamp: Stamp) -> None:
        """Sets the producer's id and epoch, and the sequence number of the first record."""
        if self._data is not None and stamp != self.stamp:
            restamp(self._data, stamp)
        self.stamp = stamp

    def built(self) -> bytearray:
        """The bytes of the batch. The first call compresses it, so a large batch is built on a thread.

        A batch that compression does not shorten stays uncompressed; otherwise a chunk that just fits its topic would
        no longer fit.
        """
        if self._data is None:
            self.close()
            stamp = self.stamp or NO_STAMP
            if self._whole is not None:
                batch = self._whole.compressed(self.codec) if self.compresses else self._whole
                self._data = batch.forwarded(stamp, transactional=self._transactional)
                self._whole = None  # releases the bytes that were fetched
            else:
                self._builder.set_producer_state(*stamp)
                plain_bytes = self._builder.size()
                data: bytearray = self._builder.build()
                if self.codec and len(data) >= plain_bytes:
                    data = bytearray(RecordBatch.read(memoryview(data)).uncompressed())
                    restamp(data, stamp)
                self._data, self._builder = data, None
        return self._data

    # --- in place of a refused batch ---------------------------------------------------------------------------------

    def divided(self) -> list[Self]:
        """The records, of which there must be several, in two batches of about the same size.

        There are more batches if a record has no timestamp, because the next record may need a separate batch. The
        built batch is decoded, so that normal batches keep nothing for this. This takes time; a thread may call it.
        All parts have the load of this batch until `split_load`.
        """
        parts = []
        for half in split([record for _, record in decoded(RecordBatch.read(memoryview(self.built())))]):
            parts.append(self._part())
            for record in half:
                if not parts[-1].append(record):
                    parts.append(self._part())
                    parts[-1].append(record)
        for part in parts:
            part.close()
        return parts

    def _part(self) -> Self:
        return type(self)(self.load, self.began_s, self.codec, transactional=self._transactional)

    def split_load(self, parts: Sequence[Self]) -> None:
        """Assigns each of the batches into which this one is `divided` its part of the load."""
        left = self.records
        # From the end: a load has a hundred thousand parts, and is cheap to shorten.
        for part in reversed(parts[1:]):
            left -= part.records
            part.load = self.load.split(left)

    # --- the interface of aiokafka's builder -------------------------------------------------------------------------

    def close(self) -> None:
        """Closes the batch: no more records can be appended."""
        if not self._closed:
            self._closed = True
            self.uncompressed_bytes = self.wire_bytes

    def closed(self) -> bool:
        """Whether the batch is closed."""
        return self._closed

    def record_count(self) -> int:
        """The number of records."""
        return self.records

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self.client_sequence = base_sequence
        sequence = base_sequence & LARGEST_SEQUENCE if self.sequence is None else self.sequence
        self.stamped(Stamp(producer_id, producer_epoch, sequence))

    def _build(self) -> bytearray:
        self.tries += 1
        return self.built()


def _builder(codec: int, room_bytes: int, *, transactional: bool) -> Any:
    return DefaultRecordBatchBuilder(2, codec, transactional, *NO_STAMP, batch_size=room_bytes)


def sent_bytes(record: RecordLike, codec: int) -> int:
    """The size of a batch with this record alone, as it is sent with the codec of this number. This takes time.

    The broker compares it with the topic's `max.message.bytes`. Several threads may call this, but only one at a time
    compresses: that needs three times the size of the record, which a budget may not have counted.
    """
    with _COMPRESSING:
        builder = _builder(codec, 0, transactional=False)
        builder.append(0, record.timestamp, record.key, record.value, list(record.headers))
        return int(min(builder.size(), len(builder.build())))
