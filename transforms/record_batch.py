"""Kafka's record batch, format version 2: a header and records. It is forwarded if no transform wants a record of it.

    RecordBatch => BaseOffset Length LeaderEpoch Magic CRC Attributes LastOffsetDelta FirstTimestamp LatestTimestamp
                   ProducerId ProducerEpoch BaseSequence Count Records
      BaseOffset      => int64  offset of the first record; a producer writes 0
      Length          => int32  bytes after this field
      LeaderEpoch     => int32  of the leader that appended the batch; a producer writes -1
      Magic           => int8   2
      CRC             => uint32 CRC-32C of all bytes after this field
      Attributes      => int16  bits 0 to 2: codec; 3: time of the broker; 4: transactional; 5: control batch
      LastOffsetDelta => int32  of the last record, which compaction may have removed
      FirstTimestamp  => int64  base of the records' timestamps
      LatestTimestamp => int64
      ProducerId, ProducerEpoch, BaseSequence => int64, int16, int32; -1 without idempotence
      Count           => int32  of the records
      Records         => see `transforms/record_format.py`; compressed together if there is a codec

All numbers are big-endian. The bytes are untrusted: a length is checked before it is used.
Source: Kafka protocol, "Record Batch" (KIP-98); Kafka's `DefaultRecordBatch`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from crc32c import crc32c

from transforms.batch_size import BATCH_OVERHEAD_BYTES
from transforms.compression import Codec, CompressionError
from transforms.errors import MalformedError
from transforms.frames import OversizeError, compress_frame
from transforms.packed_records import most_bytes, unpacked
from transforms.record import RecordLike
from transforms.record_format import serialized, wrapped
from transforms.record_lengths import longer

CODECS: Sequence[Codec | None] = (None, "gzip", "snappy", "lz4", "zstd")
"""The codecs by their numbers."""

_START = struct.Struct(">qi")
_HEADER = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH_AT = 12
_LEADER_EPOCH = struct.Struct(">i")
_MAGIC_AT = 16
_MAGIC = 2
_CRC_AT = 17
_CRC = struct.Struct(">I")
_ATTRIBUTES_AT = 21
_ATTRIBUTES = struct.Struct(">h")
_STAMP_AT = 43
_STAMP = struct.Struct(">qhi")

_CODEC_BITS = 0x07
_BROKER_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_DELETE_HORIZON = 0x40

_MOST_TIMESTAMP = 2**62
_LEAST_RECORD_BYTES = 7  # length, attributes, two deltas, null key, null value, no headers: a byte each
# The most that is decompressed to look for records that a transform wants. Batches that hold more are decoded.
_MOST_LOOKED_AT_BYTES = 64 * 1_048_576
_DECOMPRESSED_AT_ONCE_BYTES = 65_536  # for less, finding an upper bound takes as long as decompressing
_MOST_LOOKED_AT_RECORDS = 100_000  # takes 30 ms
_MOST_BYTES = 2**31 - 1 - BATCH_OVERHEAD_BYTES  # the length of a batch is a signed 32-bit number


class Stamp(NamedTuple):
    """The producer's state in a batch, which makes it idempotent; otherwise all are -1."""

    producer_id: int
    epoch: int
    sequence: int


NO_STAMP = Stamp(-1, -1, -1)


@dataclass(slots=True, eq=False)
class RecordBatch:
    """One batch, whose header was checked; its records were not. It is immutable.

    Attributes:
        data: all bytes of the batch.
        base_offset: the offset of the first record.
        attributes: codec and flags, as in the format.
        last_offset: the offset of the last record, which may have been removed.
        first_timestamp: the base of the records' timestamps.
        latest_timestamp: the greatest timestamp, as declared by the producer; with `broker_time` that of all records.
        producer_id: of the producer; -1 if it is not idempotent.
        count: the number of records.
    """

    data: memoryview
    base_offset: int
    attributes: int
    last_offset: int
    first_timestamp: int
    latest_timestamp: int
    producer_id: int
    count: int
    _records: bytes | None = field(default=None, repr=False)
    _huge: bool = field(default=False, repr=False)

    @classmethod
    def read(cls, data: memoryview) -> Self:
        """The batch that consists of exactly `data`.

        Raises:
            MalformedError: the header breaks the format.
        """
        if len(data) < BATCH_OVERHEAD_BYTES:
            raise MalformedError("batch", f"{len(data)} bytes", f"at least {BATCH_OVERHEAD_BYTES}")
        (base, length, _, magic, _, attributes, delta, first, latest, producer_id, _, _, count) = _HEADER.unpack_from(
            data
        )
        if magic != _MAGIC:
            raise MalformedError("magic of a batch", str(magic), str(_MAGIC))
        if length != len(data) - _START.size:
            raise MalformedError("length of a batch", f"{length:,}", f"{len(data) - _START.size:,}")
        if attributes & _CODEC_BITS >= len(CODECS):
            raise MalformedError("codec of a batch", str(attributes & _CODEC_BITS), f"0 to {len(CODECS) - 1}")
        if base < 0 or delta < 0 or base + delta >= 2**63:
            raise MalformedError("offsets of a batch", f"{base} and {delta} more", "0 to 2^63 - 1")
        most = delta + 1
        if not attributes & _CODEC_BITS:
            most = min(most, (len(data) - BATCH_OVERHEAD_BYTES) // _LEAST_RECORD_BYTES)
        if not 0 <= count <= most:
            raise MalformedError("records of a batch", f"{count:,}", f"0 to {most:,}")
        return cls(data, base, attributes, base + delta, first, latest, producer_id, count)

    # --- the header --------------------------------------------------------------------------------------------------

    @property
    def codec(self) -> int:
        """The number of the codec; 0 for none."""
        return self.attributes & _CODEC_BITS

    @property
    def leader_epoch(self) -> int:
        """The epoch of the leader that has appended the batch; -1 if it is not from a broker."""
        return leader_epoch_of(self.data)

    @property
    def broker_time(self) -> bool:
        """True if the broker's time, `latest_timestamp`, is the timestamp of each record."""
        return bool(self.attributes & _BROKER_TIME)

    @property
    def transactional(self) -> bool:
        """True if the batch is part of a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """True if the batch marks the end of a transaction, and has no record for readers."""
        return bool(self.attributes & _CONTROL)

    @property
    def appendable(self) -> bool:
        """True if a broker accepts the batch from a producer: no gaps in its offsets, and each record has its own time.

        A batch with a delete horizon was written by compaction.
        """
        special = self.attributes & (_BROKER_TIME | _CONTROL | _DELETE_HORIZON)
        return not special and self.count > 0 and self.last_offset - self.base_offset == self.count - 1

    @property
    def intact(self) -> bool:
        """True if the checksum is right."""
        return is_intact(self.data)

    @property
    def timely(self) -> bool:
        """True if the timestamps are far enough from the limits of an int64 that their sums do not overflow."""
        return -1 <= self.first_timestamp < _MOST_TIMESTAMP and self.latest_timestamp < _MOST_TIMESTAMP

    # --- the records -------------------------------------------------------------------------------------------------

    def fits(self, limit: int) -> bool:
        """True if no record has more than `limit` bytes; False if one has, or this cannot be determined.

        Consequently, no key, value or header is longer either. Usually the length of the batch is enough.
        """
        if self._most_record_bytes() <= limit:
            return True
        records = self.data[BATCH_OVERHEAD_BYTES:] if not self.codec else self._plain()
        if records is None:
            return False
        return len(records) <= limit or (
            self.count <= _MOST_LOOKED_AT_RECORDS and longer(records, self.count, limit) == []
        )

    @property
    def modest(self) -> bool:
        """True if the records have at most 64 MiB before compression; no more is decompressed for a check."""
        return self._most_record_bytes() <= _MOST_LOOKED_AT_BYTES or self._plain() is not None

    @property
    def most_plain_bytes(self) -> int:
        """An upper bound of the records' size before compression; exact if they can be decompressed for a check."""
        records = self._plain()
        return self._most_record_bytes() if records is None else len(records)

    def _most_record_bytes(self) -> int:
        if self._records is not None:
            return len(self._records)
        packed, codec = self.data[BATCH_OVERHEAD_BYTES:], CODECS[self.codec]
        if codec is None:
            return len(packed)
        if len(packed) <= _DECOMPRESSED_AT_ONCE_BYTES and (records := self._plain()) is not None:
            return len(records)
        try:
            return most_bytes(codec, bytes(packed))
        except CompressionError:
            return _MOST_LOOKED_AT_BYTES + 1

    @property
    def looked_at_bytes(self) -> int:
        """An upper bound of the memory for records decompressed by checks; 0 if there are none, or after `forget`."""
        return _MOST_LOOKED_AT_BYTES if self._huge else len(self._records or b"")

    def forget(self) -> None:
        """Releases the uncompressed records, which are kept from one check to the next."""
        self._records = None

    def opens_within(self, limit: int) -> bool:
        """False if the records have more than `limit` bytes before compression; the check needs no more memory.

        Raises:
            MalformedError: the compressed records are damaged.
        """
        codec = CODECS[self.codec]
        if codec is None or self._most_record_bytes() <= limit:
            return True
        if (records := self._plain()) is not None:
            return len(records) <= limit
        try:
            unpacked(codec, bytes(self.data[BATCH_OVERHEAD_BYTES:]), limit)
        except OversizeError:
            return False
        except CompressionError as exc:
            raise MalformedError("records of a batch", str(exc), f"one frame of {codec}") from exc
        return True

    def may_hold(self, *octets: bytes) -> bool:
        """False if none of these are anywhere in the records; True if one is, or this cannot be determined."""
        records = self._plain()
        return records is None or any(each in records for each in octets)

    def _plain(self) -> bytes | None:
        """The uncompressed records; None if they are too large for a check, or damaged."""
        if self._records is None and not self._huge:
            packed, codec = bytes(self.data[BATCH_OVERHEAD_BYTES:]), CODECS[self.codec]
            if codec is None:
                return packed
            try:
                self._records = unpacked(codec, packed, _MOST_LOOKED_AT_BYTES)
            except CompressionError:
                self._huge = True
        return self._records

    @property
    def plain_bytes(self) -> int:
        """The size of the batch before compression.

        Raises:
            MalformedError: see `uncompressed`.
        """
        records = self._plain() if self.codec else None
        return len(self.uncompressed()) if records is None else BATCH_OVERHEAD_BYTES + len(records)

    def uncompressed(self) -> bytes | memoryview:
        """The whole batch with uncompressed records; its checksum is still that of `data`.

        Raises:
            MalformedError: the compressed records are damaged, or hold more bytes than a batch can have.
        """
        codec = CODECS[self.codec]
        if codec is None:
            return self.data
        records = self._plain()
        if records is None:
            packed = bytes(self.data[BATCH_OVERHEAD_BYTES:])
            try:
                records = unpacked(codec, packed, _MOST_BYTES)
            except CompressionError as exc:
                raise MalformedError("records of a batch", str(exc), f"one frame of {codec}") from exc
        head = bytearray(self.data[:BATCH_OVERHEAD_BYTES])
        _ATTRIBUTES.pack_into(head, _ATTRIBUTES_AT, self.attributes & ~_CODEC_BITS)
        _START.pack_into(head, 0, self.base_offset, len(head) + len(records) - _START.size)
        return bytes(head) + records

    def plain(self) -> RecordBatch:
        """The batch with uncompressed records.

        Raises:
            MalformedError: see `uncompressed`.
        """
        return RecordBatch.read(memoryview(self.uncompressed())) if self.codec else self

    def compressed(self, codec: int) -> RecordBatch:
        """The batch, which is uncompressed, with its records compressed; without a valid checksum until `forwarded`.

        If compression does not make the records shorter, the batch stays as it is.
        """
        name = CODECS[codec]
        assert not self.codec
        if name is None:
            return self
        packed = compress_frame(name, bytes(self.data[BATCH_OVERHEAD_BYTES:]))
        if len(packed) >= len(self.data) - BATCH_OVERHEAD_BYTES:
            return self
        data = bytearray().join((self.data[:BATCH_OVERHEAD_BYTES], packed))
        _ATTRIBUTES.pack_into(data, _ATTRIBUTES_AT, self.attributes | codec)
        _START.pack_into(data, 0, self.base_offset, len(data) - _START.size)
        return self.read(memoryview(data))

    # --- the batch of another producer -------------------------------------------------------------------------------

    def forwarded(self, stamp: Stamp, *, transactional: bool) -> bytearray:
        """The batch as our producer sends it, with unchanged records.

        The broker sets base offset and leader epoch. If `data` is writable, it is changed and returned.
        """
        # A batch that was built here is not shared; one that was fetched is read-only.
        made = self.data.obj
        data = made if isinstance(made, bytearray) and not self.data.readonly else bytearray(self.data)
        attributes = self.attributes & ~_TRANSACTIONAL | (_TRANSACTIONAL if transactional else 0)
        _BASE_OFFSET.pack_into(data, 0, 0)
        _LEADER_EPOCH.pack_into(data, _LEADER_EPOCH_AT, -1)
        _ATTRIBUTES.pack_into(data, _ATTRIBUTES_AT, attributes)
        restamp(data, stamp)
        return data


def restamp(data: bytearray, stamp: Stamp) -> None:
    """Sets the stamp of a batch, and updates its checksum."""
    _STAMP.pack_into(data, _STAMP_AT, *stamp)
    _CRC.pack_into(data, _CRC_AT, crc32c(memoryview(data)[_ATTRIBUTES_AT:]))


def pack(records: Sequence[RecordLike]) -> bytearray:
    """An uncompressed batch of one or more records; header names may be any bytes (`record_format`)."""
    first = records[0].timestamp
    pieces = [bytes(BATCH_OVERHEAD_BYTES)]
    for offset, record in enumerate(records):
        pieces += serialized(record, offset, wrapped(record.timestamp - first))
    data = bytearray().join(pieces)
    latest = max(record.timestamp for record in records)
    _head(data, 0, len(records), first, latest)
    restamp(data, NO_STAMP)
    return data


def rebuilt(batch: RecordBatch, data: bytearray, count: int, latest_timestamp: int) -> RecordBatch:
    """A batch of other records with the header of `batch`, uncompressed, as written by a producer without idempotence.

    Args:
        batch: the base offset and first timestamp of this batch are kept.
        data: room for the header, followed by the records.
        count: the number of records.
        latest_timestamp: the greatest of their timestamps.
    """
    _head(data, batch.base_offset, count, batch.first_timestamp, latest_timestamp)
    return RecordBatch.read(memoryview(data))


def _head(data: bytearray, base: int, count: int, first: int, latest: int) -> None:
    """Writes the header of an uncompressed batch, except the checksum."""
    length = len(data) - _START.size
    _HEADER.pack_into(data, 0, base, length, -1, _MAGIC, 0, 0, count - 1, first, latest, *NO_STAMP, count)


def split(data: memoryview) -> Iterator[memoryview]:
    """The batches in a response to a fetch, of any format; an incomplete last batch is omitted.

    Raises:
        MalformedError: a length is not valid for a batch.
    """
    at = 0
    while len(data) - at >= _START.size:
        length = _START.unpack_from(data, at)[1]
        if length < _MAGIC_AT + 1 - _START.size:
            raise MalformedError("length of a batch", f"{length:,}", f"at least {_MAGIC_AT + 1 - _START.size}")
        end = at + _START.size + length
        if end > len(data):
            return
        yield data[at:end]
        at = end


def is_intact(data: memoryview) -> bool:
    """True if a batch of `split` is of version 2 and its checksum is right, whatever the checksum covers."""
    if len(data) < BATCH_OVERHEAD_BYTES or data[_MAGIC_AT] != _MAGIC:
        return False
    expected: int = _CRC.unpack_from(data, _CRC_AT)[0]
    return crc32c(data[_ATTRIBUTES_AT:]) == expected


def leader_epoch_of(data: memoryview) -> int:
    """See `RecordBatch.leader_epoch`."""
    epoch: int = _LEADER_EPOCH.unpack_from(data, _LEADER_EPOCH_AT)[0]
    return epoch


def offsets_of(data: memoryview) -> tuple[int, int]:
    """The offsets of the first and the last record that a batch declares; `is_intact` does not make them valid."""
    base, *_, delta = _HEADER.unpack_from(data)[:7]
    return base, base + delta


def is_old(data: memoryview) -> bool:
    """True if a batch of `split` has a format before version 2."""
    return data[_MAGIC_AT] < _MAGIC


def single(batch: RecordBatch, record: bytes | memoryview, offset: int) -> bytes:
    """A batch with one record of an uncompressed batch, byte for byte.

    Args:
        batch: the batch that has the record.
        record: the bytes of the record, including its length.
        offset: of the record. The base offset stays that of `batch`, as a record contains its distance from it.
    """
    data = bytearray().join((batch.data[:BATCH_OVERHEAD_BYTES], record))
    delta, latest = offset - batch.base_offset, batch.latest_timestamp
    _HEADER.pack_into(
        data, 0, batch.base_offset, len(data) - _START.size, -1, _MAGIC, 0, batch.attributes & _BROKER_TIME, delta,
        batch.first_timestamp, latest, *NO_STAMP, 1,
    )  # fmt: skip
    restamp(data, NO_STAMP)
    return bytes(data)
