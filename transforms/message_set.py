"""Kafka's message formats 0 and 1, which brokers before 0.11 wrote, and which current brokers still serve.

    Message => Offset Size CRC Magic Attributes [Timestamp] Key Value
      Offset     => int64
      Size       => int32  bytes after this field
      CRC        => uint32 CRC-32 of all bytes after this field
      Magic      => int8   0 or 1
      Attributes => int8   bits 0 to 2: codec; 3: time of the broker (format 1)
      Timestamp  => int64  format 1 only
      Key, Value => int32 length, bytes; -1 for null

All numbers are big-endian. Messages that are compressed together are the value of one message, which has the offset of
the last one. In format 0 they have their absolute offsets, in format 1 the distances from the first one. The bytes are
untrusted: a length is checked before it is used.
Source: Kafka protocol, "Message Sets"; KIP-31, KIP-32; Kafka's `AbstractLegacyRecordBatch`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from transforms.compression import Codec, CompressionError
from transforms.errors import MalformedError
from transforms.frames import OversizeError
from transforms.packed_records import most_bytes, unpacked
from transforms.record import Record

_HEAD = struct.Struct(">qiIbb")
_CRC_BEGIN = 16  # the bytes that it covers
_OFFSET = _TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_SIZED = _OFFSET.size + _LENGTH.size  # the bytes that are not counted in the size
_CODECS: tuple[Codec | None, ...] = (None, "gzip", "snappy", "lz4")
_CODEC_BITS, _BROKER_TIME = 0x07, 0x08
_NO_TIMESTAMP = -1


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it is in the log: a record, or several that are compressed together.

    Attributes:
        data: all its bytes.
        last_offset: the offset of the only or of the last record.
        magic: the format, 0 or 1.
        codec: the number of the codec; 0 for none.
        latest_timestamp: in milliseconds since 1970; -1 without.
        broker_time: True if the broker's time, `latest_timestamp`, is the timestamp of each record.
    """

    data: memoryview
    last_offset: int
    magic: int
    codec: int
    latest_timestamp: int
    broker_time: bool

    @classmethod
    def read(cls, data: memoryview) -> Self:
        """The message that consists of exactly `data`.

        Raises:
            MalformedError: the bytes before key and value break the format.
        """
        if len(data) < _HEAD.size:
            raise MalformedError("message", f"{len(data)} bytes", f"at least {_HEAD.size}")
        offset, size, _, magic, attributes = _HEAD.unpack_from(data)
        if magic not in (0, 1):
            raise MalformedError("magic of a message", str(magic), "0 or 1")
        if size != len(data) - _SIZED:
            raise MalformedError("size of a message", f"{size:,}", f"{len(data) - _SIZED:,}")
        codec = attributes & _CODEC_BITS
        if codec >= len(_CODECS):
            raise MalformedError("codec of a message", str(codec), f"0 to {len(_CODECS) - 1}")
        timestamp = _NO_TIMESTAMP
        if magic:
            if len(data) < _HEAD.size + _TIMESTAMP.size:
                raise MalformedError("message", f"{len(data)} bytes", f"at least {_HEAD.size + _TIMESTAMP.size}")
            (timestamp,) = _TIMESTAMP.unpack_from(data, _HEAD.size)
        return cls(data, offset, magic, codec, timestamp, bool(magic and attributes & _BROKER_TIME))

    @property
    def intact(self) -> bool:
        """True if the checksum is right."""
        return self.is_intact(self.data)

    @staticmethod
    def offset_of(data: memoryview) -> int:
        """The offset of a message, even if the rest is invalid."""
        offset: int = _OFFSET.unpack_from(data)[0]
        return offset

    @staticmethod
    def is_intact(data: memoryview) -> bool:
        """True if the checksum of a message is right."""
        return len(data) >= _HEAD.size and _HEAD.unpack_from(data)[2] == zlib.crc32(data[_CRC_BEGIN:])

    @property
    def most_plain_bytes(self) -> int:
        """An upper bound of the size before compression, without decompressing anything.

        Raises:
            MalformedError: key or value break the format, or the compressed messages are damaged.
        """
        codec = _CODECS[self.codec]
        if codec is None:
            return len(self.data)
        try:
            return most_bytes(codec, self._packed())
        except CompressionError as exc:
            raise MalformedError("value of a message", str(exc), f"one of {codec}") from exc

    def plain(self, limit: int) -> bytes:
        """The messages as they were before compression.

        Raises:
            OversizeError: they have more than `limit` bytes.
            MalformedError: see `most_plain_bytes`.
        """
        codec = _CODECS[self.codec]
        if codec is None:
            return bytes(self.data)
        try:
            return unpacked(codec, self._packed(), limit)
        except OversizeError:
            raise
        except CompressionError as exc:
            raise MalformedError("value of a message", str(exc), f"one of {codec}") from exc

    def records(self, plain: bytes) -> Iterator[tuple[int, Record]]:
        """Offsets and records, in order.

        Args:
            plain: the result of `plain`.

        Raises:
            MalformedError: the messages break the format.
        """
        if not self.codec:
            yield self.last_offset, self._record(self.data, self.latest_timestamp)
            return
        left, last_at = _walked(plain)
        view, at = memoryview(plain), 0
        # Some clients wrote distances in format 0 as well: then the last offset differs from that of the outer message.
        base, before = self.last_offset - Message.offset_of(view[last_at:]), -1
        while left:
            left -= 1
            end = at + _SIZED + _LENGTH.unpack_from(view, at + _OFFSET.size)[0]
            inner = Message.read(view[at:end])
            if inner.magic != self.magic or inner.codec:
                raise MalformedError("compressed messages", "one of another format, or compressed again", "neither")
            offset, last = base + inner.last_offset, self.last_offset - left  # later messages need offsets, too
            if not before < offset <= last:
                raise MalformedError("offset of a message", str(offset), f"{before + 1} to {last}")
            before, at = offset, end
            timestamp = self.latest_timestamp if self.broker_time else inner.latest_timestamp
            yield offset, self._record(inner.data, timestamp)

    def _packed(self) -> bytes:
        value = self._record(self.data, 0).value
        if value is None:
            raise MalformedError("value of a message", "null", "compressed messages")
        return value

    def _record(self, data: memoryview, timestamp: int) -> Record:
        at = _HEAD.size + (_TIMESTAMP.size if self.magic else 0)
        key, at = _octets(data, at)
        value, at = _octets(data, at)
        return Record(key, value, (), timestamp)


def _walked(plain: bytes) -> tuple[int, int]:
    """The number of messages, and the index of the last one; only sizes are read, as there may be millions."""
    count, begin, at, end, size_of = 0, 0, 0, len(plain), _LENGTH.unpack_from
    while at < end:
        if end - at < _HEAD.size:
            raise MalformedError("compressed messages", f"{end - at} bytes more", "a message, or none")
        size = size_of(plain, at + _OFFSET.size)[0]
        if not _HEAD.size - _SIZED <= size <= end - at - _SIZED:
            raise MalformedError("size of a message", f"{size:,}", f"up to {end - at - _SIZED:,}")
        count, begin = count + 1, at
        at += _SIZED + size
    if not count:
        raise MalformedError("compressed messages", "none", "at least one")
    return count, begin


def _octets(data: memoryview, at: int) -> tuple[bytes | None, int]:
    """Key or value at index `at`, and the index of its end."""
    left = len(data) - at - _LENGTH.size
    if left < 0:
        raise MalformedError("message", f"{len(data)} bytes", "a key and a value")
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    if length < 0:
        return None, at
    if length > left:
        raise MalformedError("length in a message", f"{length:,}", f"up to {left:,}")
    return bytes(data[at : at + length]), at + length
