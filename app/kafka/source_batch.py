"""Batches as they were read, and their records.

A batch that brokers have accepted and that cannot be decoded is a failed record (`UnreadBatch`), which the error policy
handles. Only a wrong checksum is an error of the reader: the next fetch may return the batch undamaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch

from transforms import record_format
from transforms.batch_merge import merge
from transforms.batch_size import BATCH_OVERHEAD_BYTES
from transforms.compression import Codec
from transforms.errors import WORKER_ALLOWS, BatchTooLargeError, MalformedError, TooManyHeadersError, TransformError
from transforms.message_set import Message
from transforms.record import Header, Record, RecordLike, SourceRecord
from transforms.record_batch import CODECS, RecordBatch, single
from transforms.record_format import MAX_HEADERS
from transforms.record_lengths import is_crowded

# Measured microseconds of CPU time: of a request; of each record that is merged; and of each KB as it was read, which
# is copied, or decompressed and compressed again.
_REQUEST_US = 150
_RECORD_US = 1.0
_KB_US: Mapping[Codec | None, float] = {None: 0.2, "gzip": 80, "snappy": 1.5, "lz4": 1.5, "zstd": 12}

_READ_ONCE_BYTES = 131_072  # larger batches are read twice: the objects of all records need as much memory again
# Headers of this size need 32 MiB as objects. Up to this size they are counted afterwards, otherwise before.
_COUNTED_LATE_BYTES = 1_048_576
_HEADER_BYTES = 64  # the least memory of a header object
# The memory that all header objects of a batch may need: a constant, plus a multiple of the size of the batch.
_HEADERS_BYTES, _HEADERS_FOR_BYTES = 8_388_608, 4


# What aiokafka raises for a record that it cannot read; the last three for lengths near the ends of an int64. Our
# slower reader then finds out whether the record is damaged, or one that brokers accept.
_UNREAD = (UnicodeDecodeError, CorruptRecordException, OverflowError, MemoryError, SystemError)


class ReadRecord(NamedTuple):
    """A `SourceRecord`. A tuple, because nothing else is created as fast."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[Header] = ()


@dataclass(frozen=True, slots=True)
class UnreadBatch:
    """A batch too large to decompress, or that cannot be decoded, passed on as one record: its value is the raw batch.

    Attributes:
        offset: of its last record.
        timestamp: of its last record, or the greatest.
        value: the batch, as it was read, or a batch of a single record of it that has too many headers.
        error: what is wrong.
        first: the offset of its first wanted record.
        count: the number of its records; 1 if that is not known.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    value: bytes
    error: TransformError
    first: int
    count: int = 1
    key: bytes | None = None
    headers: Sequence[Header] = ()


@dataclass(slots=True, eq=False)
class SourceBatch:
    """Records of one batch of a source partition, from `offset` on.

    If records cannot be decoded and the checksum of their batch is wrong, its methods raise CorruptRecordException.

    Attributes:
        partition: the source partition.
        offset: of the first wanted record; those before it in the batch were read before.
        batch: the batch, whose header was checked; None if the records are not from a batch.
        unbatched: the records, if there is no batch.
        codec: the number of the records' codec; 0 for none.
        size: bytes of the batch; without a batch, bytes of keys and values.
        offsets: of the records of the batch, if it is `whole`.
        passes: whether each of its records passes; None if this is not known yet.
        merged_from: the number of batches from which it was merged; 0 if it is a batch as it was read.
    """

    partition: TopicPartition
    offset: int
    batch: RecordBatch | None
    unbatched: Sequence[SourceRecord] = ()
    codec: int = field(init=False)
    size: int = field(init=False)
    offsets: Sequence[int] = field(init=False)
    passes: bool | None = field(init=False, default=None)
    merged_from: int = field(init=False, default=0)
    _plain_bytes: int | None = field(init=False, default=None)
    _most_plain_bytes: int | None = field(init=False, default=None)
    _rows: list[Any] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if (batch := self.batch) is not None:
            self.codec, self.size = batch.codec, len(batch.data)
            self.offsets = range(batch.base_offset, batch.last_offset + 1)
        else:
            self.codec, self.offsets = 0, ()
            self.size = 1 + sum(len(record.key or b"") + len(record.value or b"") for record in self.unbatched)

    @property
    def whole(self) -> bool:
        """True if every record of the batch is wanted, and a broker accepts the batch as it is."""
        return self.batch is not None and self.batch.appendable and self.offset <= self.batch.base_offset

    @property
    def timestamp(self) -> int | None:
        """The timestamp of the first record, in milliseconds since 1970; None without records."""
        if self.batch is None:
            return self.unbatched[0].timestamp if self.unbatched else None
        return self.batch.latest_timestamp if self.batch.broker_time else self.batch.first_timestamp

    @property
    def timestamp_type(self) -> int:
        """0 if producers have set the timestamps, 1 if the broker has, -1 if the format has none."""
        return int(self.batch is not None and self.batch.broker_time)

    @property
    def worth_a_request(self) -> bool:
        """True if sending the batch alone costs less than merging it with others."""
        assert self.batch is not None
        return self.batch.count * _RECORD_US + self.size / 1024 * _KB_US[CODECS[self.batch.codec]] >= _REQUEST_US

    def is_forwarded(self, codec: int | None, limit_bytes: int) -> bool:
        """True if it is forwarded as it is: alone if it is worth a request, or as the result of a merge.

        `codec` is the number of the codec with which all records are sent; None if each keeps its codec.
        """
        if not self.whole or self.size > limit_bytes:
            return False
        return self.merged_from > 0 or (codec in (None, self.codec) and self.worth_a_request)

    @property
    def mergeable(self) -> bool:
        """True if it may be merged with others: it is small, and could be forwarded as it is."""
        return self.whole and self.batch is not None and self.batch.timely and not self.worth_a_request

    @property
    def plain_bytes(self) -> int:
        """Bytes of the batch before compression; the size as read, if it cannot be decompressed."""
        if self.batch is None:
            return self.size
        if self._plain_bytes is None:
            try:
                self._plain_bytes = self.batch.plain_bytes
            except MalformedError:
                self._plain_bytes = self.size
        return self._plain_bytes

    def most_plain_bytes(self, limit: int) -> int:
        """An upper bound of the memory for opening the batch: 0 if it is not compressed, otherwise up to `limit`."""
        if self.batch is None or not self.batch.codec:
            return 0
        if self._most_plain_bytes is None:  # asked again and again while the batch waits for memory
            self._most_plain_bytes = self.batch.most_plain_bytes
        return min(limit, self._most_plain_bytes)

    @classmethod
    def merged(cls, batches: Sequence[SourceBatch]) -> SourceBatch:
        """One uncompressed batch with the records of `mergeable` batches of one codec and one partition, in order.

        Its `codec` is the codec of these batches.

        Raises:
            MalformedError: a batch cannot be decoded, or the batches cannot be merged.
        """
        merged = merge([each.batch.plain() for each in batches if each.batch is not None])
        whole = cls(batches[0].partition, batches[0].offset, merged)
        whole.merged_from, whole.codec = len(batches), batches[0].codec
        begin, end = batches[0].offsets[0], batches[-1].offsets[-1] + 1
        gapless = sum(len(each.offsets) for each in batches) == end - begin
        whole.offsets = range(begin, end) if gapless else [offset for each in batches for offset in each.offsets]
        return whole

    def kept(self) -> SourceBatch:
        """A copy with separate bytes: a waiting batch must not keep everything alive that was fetched with it."""
        assert self.batch is not None
        kept = SourceBatch(self.partition, self.offset, RecordBatch.read(memoryview(bytes(self.batch.data))))
        kept.offsets, kept.merged_from, kept.codec = self.offsets, self.merged_from, self.codec
        return kept

    def unread(self, limit: int, allowed: str = WORKER_ALLOWS) -> UnreadBatch | None:
        """All its records as one, if they exceed `limit` bytes before compression, or are damaged; otherwise None."""
        if (batch := self.batch) is None:
            return None
        try:
            if batch.opens_within(limit):
                return None
        except MalformedError as exc:
            return self._undecoded(batch, self.offset, exc)
        error = BatchTooLargeError(self.offset, batch.last_offset, limit, allowed)
        return self._passed_on(batch, self.offset, error, batch.count)

    def opened(self, limit: int, allowed: str = WORKER_ALLOWS) -> Iterator[SourceRecord]:
        """The wanted records, or the `UnreadBatch` in their place; `allowed` describes `limit` in messages."""
        unread = self.unread(limit, allowed)
        return self.records() if unread is None else iter((unread,))

    @property
    def plain(self) -> bool:
        """True if aiokafka may read all records together.

        False if it cannot read a record, for example if the name of a header is not UTF-8; if a record is an
        `UnreadBatch`; or if the headers would need much more memory than their bytes.
        """
        assert self.batch is not None
        try:
            data = self.batch.uncompressed()
            self._plain_bytes = len(data)
            if _is_crowded(data, self.batch):
                return False
            rows: Iterable[Any] = DefaultRecordBatch(data)
            if len(data) <= _READ_ONCE_BYTES:
                self._rows = rows = list(rows)
            if not _sound(rows, self.batch, _HEADERS_FOR_BYTES * len(data) + _HEADERS_BYTES):
                self._rows = None
                return False
        except (MalformedError, *_UNREAD):
            return False
        return True

    def forget(self) -> None:
        """Releases what was kept of the uncompressed records: a waiting batch keeps only its own bytes."""
        self._rows = None
        if self.batch is not None:
            self.batch.forget()

    def rows(self) -> Sequence[SourceRecord]:
        """The records, if it is `plain` and all are wanted. Each has an offset, but neither topic nor partition."""
        assert self.batch is not None
        return self._rows or list(DefaultRecordBatch(self.batch.uncompressed()))

    def records(self) -> Iterator[SourceRecord]:
        """The wanted records, created one by one.

        A record with too many headers is an `UnreadBatch`, as are all records from the first that cannot be decoded.
        """
        if self.batch is None:
            yield from self.unbatched
            return
        batch, read, before = self.batch, 0, self.batch.base_offset - 1
        try:
            for record in self._quickly(batch):
                read, before = read + 1, record.offset
                if before >= self.offset:
                    yield record
            for record in islice(self._decoded(batch), read, None) if read < batch.count else ():
                read += 1
                last = batch.last_offset - (batch.count - read)  # the records after it need offsets, too
                if not before < record.offset <= last:
                    raise MalformedError("offset of a record", str(record.offset), f"{before + 1} to {last}")  # noqa: TRY301  # as where a record is decoded
                before = record.offset
                if before >= self.offset:
                    yield record
        except MalformedError as exc:
            yield self._undecoded(batch, before + 1, exc)

    def _quickly(self, batch: RecordBatch) -> Iterator[SourceRecord]:
        """The records as aiokafka reads them, up to the first that it cannot or must not read."""
        topic, number = self.partition.topic, self.partition.partition
        before, last = batch.base_offset - 1, batch.last_offset - batch.count
        data = batch.uncompressed()
        if _is_crowded(data, batch):
            return
        held: ReadRecord | None = None  # the last record is complete only if nothing follows it
        try:
            for row in DefaultRecordBatch(data):
                if held is not None:
                    yield held
                last, offset = last + 1, row.offset
                if len(row.headers) > MAX_HEADERS or not before < offset <= last:
                    return
                before = offset
                held = ReadRecord(topic, number, offset, row.timestamp, row.key, row.value, row.headers)
        except _UNREAD:
            return
        if held is not None:
            yield held

    def _undecoded(self, batch: RecordBatch, first: int, error: MalformedError) -> UnreadBatch:
        """The records from offset `first` on, passed on, as committing later offsets would lose them."""
        first = max(first, self.offset)
        return self._passed_on(batch, first, error, batch.last_offset - first + 1)

    def _passed_on(self, batch: RecordBatch | Message, first: int, error: TransformError, count: int) -> UnreadBatch:
        if isinstance(error, MalformedError):
            if not batch.intact:
                raise CorruptRecordException(f"{self.partition}, offset {first}: {error}") from error
            error = placed(error, first, batch.last_offset)
        topic, number = self.partition
        return UnreadBatch(
            topic, number, batch.last_offset, batch.latest_timestamp, bytes(batch.data), error, first, count
        )

    def _decoded(self, batch: RecordBatch) -> Iterator[SourceRecord]:
        """The records as our reader decodes them: names that are not UTF-8 keep their bytes by `surrogateescape`."""
        topic, number = self.partition
        for offset, timestamp, found, data in _entries(batch):
            if isinstance(found, TooManyHeadersError):
                yield UnreadBatch(topic, number, offset, timestamp, single(batch, data, offset), found, offset)
            else:
                yield ReadRecord(topic, number, offset, timestamp, found.key, found.value, list(found.headers))


def placed(error: MalformedError, first: int, last: int) -> MalformedError:
    """The error of records that cannot be decoded, with their offsets."""
    return MalformedError(f"{error.field} (offsets {first} to {last})", error.found, error.allowed)


def _is_crowded(data: bytes | memoryview, batch: RecordBatch) -> bool:
    return len(data) > _COUNTED_LATE_BYTES and is_crowded(memoryview(data)[BATCH_OVERHEAD_BYTES:], batch.count)


def _sound(rows: Iterable[Any], batch: RecordBatch, most_bytes: int) -> bool:
    """Whether the offsets of the rows rise within the batch, and their headers are not too many, alone or together."""
    before, last, left = batch.base_offset - 1, batch.last_offset, most_bytes // _HEADER_BYTES
    for row in rows:
        offset, headers = row.offset, len(row.headers)
        left -= headers
        if not before < offset <= last or headers > MAX_HEADERS or left < 0:
            return False
        before = offset
    return True


def decoded(batch: RecordBatch) -> Iterator[tuple[int, RecordLike]]:
    """The offsets and records of a batch. Needs several microseconds per record; aiokafka's reader needs 0.2.

    Raises:
        TooManyHeadersError: a record has more than `MAX_HEADERS`.
        MalformedError: the records break the format.
    """
    for offset, timestamp, found, _ in _entries(batch):
        if isinstance(found, TooManyHeadersError):
            raise found
        yield offset, Record(found.key, found.value, found.headers, timestamp)


def _entries(batch: RecordBatch) -> Iterator[tuple[int, int, Record | TooManyHeadersError, bytes]]:
    """Offset, timestamp, record and bytes of each record; the error in place of one with too many headers."""
    records, at = bytes(batch.uncompressed()[BATCH_OVERHEAD_BYTES:]), 0
    for left in range(batch.count - 1, -1, -1):
        begin = at
        found: Record | TooManyHeadersError
        try:
            found, delta, at = record_format.read(records, at)
            later_ms, data = found.timestamp, b""
        except TooManyHeadersError as exc:
            later_ms, delta, at = record_format.place(records, begin)
            found, data = exc, records[begin:at]
        if not left and at != len(records):  # the rest may be records: without them, the last one is not returned
            raise MalformedError(
                "records of a batch", f"{len(records) - at:,} bytes more", f"those of {batch.count:,} records"
            )
        broker_ms = batch.latest_timestamp if batch.broker_time else None
        timestamp = record_format.wrapped(batch.first_timestamp + later_ms) if broker_ms is None else broker_ms
        yield batch.base_offset + delta, timestamp, found, data
