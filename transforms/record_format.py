"""Kafka's record format, version 2: the bytes of one record, without the batch around it.

    Record => Length Attributes TimestampDelta OffsetDelta Key Value Headers
      Length         => varint  size of the rest
      Attributes     => int8    0
      TimestampDelta => varlong milliseconds since the batch's first timestamp, see `wrapped`; alone: since the epoch
      OffsetDelta    => varint  since the batch's first offset; alone: 0
      Key, Value     => varint length, bytes; -1 for null
      Headers        => varint count, [Name Value]
        Name         => varint length, bytes; should be UTF-8
        Value        => varint length, bytes; -1 for null

Varints are zigzag-encoded. The reader accepts what brokers accept: any negative length is a null, a varint has 64 bits,
and bytes after the last header are ignored, as in librdkafka. A header name that is not UTF-8 is decoded with
`surrogateescape`, as Python does with file names, so that it is written back byte for byte.
Source: Kafka protocol, "Record Batch", and KIP-98, KIP-82; Kafka's `DefaultRecord` and `ByteUtils`.
"""

from __future__ import annotations

from transforms.errors import HeaderNameError, MalformedError, TooManyHeadersError
from transforms.record import Header, Record, RecordLike

MAX_HEADERS = 65_536
"""The maximum number of headers that are read, of a record or a message wrapper: 2 bytes each, and 60 in memory."""

LEAST_HEADER_BYTES = 2
"""The size of a header with an empty name and a null value."""

_MOST_VARINT_BYTES = 10
_MOST_VARINT = 2**64 - 1
_ESCAPE = "surrogateescape"


def name_bytes(name: str) -> bytes:
    """The bytes of a header's name, even if they are not UTF-8."""
    return name.encode(errors=_ESCAPE)


def is_writable(record: RecordLike) -> bool:
    """Whether the name of each header is UTF-8, so that clients can write it."""
    try:
        check_names(record)
    except HeaderNameError:
        return False
    return True


def check_names(record: RecordLike) -> None:
    """Refuses a record that is not `is_writable`.

    Raises:
        HeaderNameError: the name of a header is not UTF-8.
    """
    for name, _ in record.headers:
        try:
            name.encode()
        except UnicodeEncodeError as exc:
            raise HeaderNameError(name) from exc


def serialize(record: RecordLike, offset: int = 0) -> bytes:
    """The bytes of a record; the inverse of `parse`.

    Args:
        record: for a record of a batch, its timestamp must be the delta.
        offset: the offset delta.
    """
    return b"".join(serialized(record, offset, record.timestamp))


def serialized(record: RecordLike, offset: int, timestamp: int) -> tuple[bytes, bytes, bytes]:
    """The bytes of a record in three pieces, the second of which is its value, so that a large value is not copied.

    Args:
        record: its own timestamp is ignored.
        offset: the offset delta.
        timestamp: the timestamp delta.
    """
    before = bytearray(b"\0")
    _put_number(before, timestamp)
    _put_number(before, offset)
    _put_bytes(before, record.key)
    value = record.value or b""
    _put_number(before, -1 if record.value is None else len(value))
    behind = bytearray()
    _put_number(behind, len(record.headers))
    for name, content in record.headers:
        _put_bytes(behind, name_bytes(name))
        _put_bytes(behind, content)
    return number_bytes(len(before) + len(value) + len(behind)) + before, value, bytes(behind)


def parse(data: bytes) -> Record:
    """The record that `serialize` has encoded.

    Raises:
        MalformedError: the bytes are not exactly one record.
        TooManyHeadersError: the record has more than `MAX_HEADERS`.
    """
    record, _, end = read(data, 0)
    if end != len(data):
        raise MalformedError("record", f"{len(data) - end:,} bytes behind it", "one record")
    return record


def read(data: bytes, at: int) -> tuple[Record, int, int]:
    """The record at index `at`; its timestamp is the delta.

    No length is used before it is checked against the bytes that exist.

    Returns:
        The record, its offset delta, and the index of its end.

    Raises:
        MalformedError: there is no valid record.
        TooManyHeadersError: the record has more than `MAX_HEADERS`.
    """
    at, end = _body(data, at)
    timestamp, at = number(data, at + 1, end)
    offset, at = number(data, at, end)
    key, at = _bytes(data, at, end)
    value, at = _bytes(data, at, end)
    count, at = number(data, at, end)
    _check_count(count, at, end)
    if count > MAX_HEADERS:
        raise TooManyHeadersError("headers", f"{count:,}", f"at most {MAX_HEADERS:,}")
    headers: list[Header] = []
    for _ in range(count):
        name, at = _bytes(data, at, end)
        if name is None:
            raise MalformedError("name of a header", "null", "bytes")
        content, at = _bytes(data, at, end)
        headers.append((name.decode(errors=_ESCAPE), content))
    return Record(key, value, tuple(headers), timestamp), offset, end


def header_count(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number of headers of the record at index `at`, and the index of its end; no headers are created.

    Raises:
        MalformedError: there is no valid record, up to its headers.
    """
    at, end = _body(data, at)
    at += 1
    for _ in range(2):  # the deltas
        at = number(data, at, end)[1]
    for _ in range(2):  # key and value
        at = _skipped(data, at, end)
    count, at = number(data, at, end)
    _check_count(count, at, end)
    return count, end


def place(data: bytes | memoryview, at: int) -> tuple[int, int, int]:
    """Timestamp and offset delta of the record at index `at`, and the index of its end; nothing else is read.

    Raises:
        MalformedError: there is no valid record, up to these.
    """
    at, end = _body(data, at)
    timestamp, at = number(data, at + 1, end)
    return timestamp, number(data, at, end)[0], end


def _body(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Start and end of a record after its length."""
    size, at = number(data, at, len(data))
    if not 1 <= size <= len(data) - at:
        raise MalformedError("record", f"a length of {size:,}", f"1 to {len(data) - at:,}")
    return at, at + size


def _check_count(count: int, at: int, end: int) -> None:
    most = (end - at) // LEAST_HEADER_BYTES
    if not 0 <= count <= most:
        raise MalformedError("headers", f"{count:,}", f"0 to {most:,}, for which there are bytes")


def wrapped(timestamp: int) -> int:
    """A sum or a difference of timestamps as an int64: brokers and clients let these overflow in both directions."""
    return (timestamp + 2**63) % 2**64 - 2**63


def number_bytes(value: int) -> bytes:
    """The varint of a number."""
    data = bytearray()
    _put_number(data, value)
    return bytes(data)


def _put_number(data: bytearray, value: int) -> None:
    zigzag = value << 1 if value >= 0 else -(value << 1) - 1
    while zigzag > 0x7F:  # noqa: PLR2004  # seven bits a byte
        data.append(0x80 | zigzag & 0x7F)
        zigzag >>= 7
    data.append(zigzag)


def _put_bytes(data: bytearray, octets: bytes | None) -> None:
    _put_number(data, -1 if octets is None else len(octets))
    data += octets or b""


def number(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """The number whose varint is at index `at`, and the index of its end, which is at most `end`.

    Raises:
        MalformedError: the varint does not end.
    """
    zigzag = 0
    for place in range(_MOST_VARINT_BYTES):
        if at + place >= end:
            break
        octet = data[at + place]
        zigzag |= (octet & 0x7F) << (7 * place)
        if octet < 0x80:  # noqa: PLR2004  # the last one
            zigzag &= _MOST_VARINT  # a tenth byte may have more
            return (zigzag >> 1) ^ -(zigzag & 1), at + place + 1
    raise MalformedError("number", "one that does not end", f"at most {_MOST_VARINT_BYTES} bytes")


def _bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = _length(data, at, end)
    return (None, at) if size < 0 else (bytes(data[at : at + size]), at + size)


def _skipped(data: bytes | memoryview, at: int, end: int) -> int:
    size, at = _length(data, at, end)
    return at + max(0, size)


def _length(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """The length of a key, a name or a value, and where that begins; any below 0 is a null."""
    size, at = number(data, at, end)
    if size > end - at:
        raise MalformedError("length", f"{size:,}", f"up to {end - at:,}")
    return size, at
