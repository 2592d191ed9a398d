"""The two formats of bakdata's kafka-large-message-serde, as its serializer writes and its deserializer reads them.

    flag        value    0x00 and the value, or 0x01 and the URI of the object in UTF-8
    headers     value    the value, or the URI
                header   __large.message.backed.value: one byte, 0 or 1, on each record but tombstones
    both        header   __large.message.backed..compression: one byte, 1 gzip, 2 snappy, 3 lz4, 4 zstd; on records with
                         an object that is compressed, in front of the header above
                null     stays null, without any header

The object is the value, or one frame (see `transforms/frames.py`) with zeros behind it. Its URI, as their writer makes
it: `s3://bucket/<base path><topic>/values/<id>`; their reader takes any. They say neither size nor checksum.

Source: com.bakdata.kafka:large-message-serde 2.9.1, 3.0.0 and 3.1.1 as published, run by
`tests/vectors/Bakdata.java`:

- `large.message.use.headers` chooses what is written; without it, flags. Their reader goes by the record: a record with
  the header is read by it, another one by its flag, or with `large.message.accept.no.headers` as it is.
- The last header of a name counts. The one of the compression has two dots in all three; a name with one is read here
  all the same.
- Their reader fails on zeros behind frames of snappy and zstd, which their writer puts there. So no zeros are written
  here, and they are read.

Keys have formats of their own, the same with `key` for `value`; they are left as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from transforms.compression import Codec
from transforms.errors import MalformedReferenceError
from transforms.frames import compress_frame, decompress_frame
from transforms.record import Header, Record, RecordLike
from transforms.reference import Reference, parse_path

__all__ = ["COMPRESSION", "COMPRESSION_ONE_DOT", "FLAG", "BakdataFlag", "BakdataHeaders"]

FLAG = "__large.message.backed.value"
COMPRESSION = "__large.message.backed..compression"
COMPRESSION_ONE_DOT = "__large.message.backed.compression"

_INLINE = b"\x00"
_BACKED = b"\x01"
_FLAG_ALLOWED = "one byte, 0 or 1"
_COMPRESSION_ALLOWED = "one byte, 0 to 4"
_CODECS: Mapping[bytes, Codec | None] = {
    b"\x00": None,
    b"\x01": "gzip",
    b"\x02": "snappy",
    b"\x03": "lz4",
    b"\x04": "zstd",
}
_CODEC_BYTES: Mapping[Codec | None, bytes] = {codec: number for number, codec in _CODECS.items()}


class _Bakdata:
    """What the two have in common: frames, and the header of the compression."""

    marks = True

    def compress(self, codec: Codec, value: bytes) -> bytes:
        """See `Format.compress`."""
        return compress_frame(codec, value)

    def decompress(self, reference: Reference, stored: bytes, limit_bytes: int) -> bytes:
        """See `Format.decompress`."""
        assert reference.codec is not None
        return decompress_frame(reference.codec, stored, limit_bytes)


class BakdataHeaders(_Bakdata):
    """The format with headers. A record without them is a value as it is."""

    def wants(self, record: RecordLike) -> bool:
        """See `Format.wants`."""
        return record.value is not None and _last(record.headers, FLAG) is not None

    def refers(self, record: RecordLike) -> bool:
        """See `Format.refers`."""
        at = None if record.value is None else _last(record.headers, FLAG)
        return at is not None and record.headers[at][1] != _INLINE

    def read_inline(self, record: RecordLike) -> Record:
        """See `Format.read_inline`."""
        at = _last(record.headers, FLAG)
        assert at is not None
        return Record(record.key, record.value, _without(record.headers, at), record.timestamp)

    def read_reference(self, record: RecordLike) -> tuple[Reference, tuple[Header, ...]]:
        """See `Format.read_reference`."""
        at = _last(record.headers, FLAG)
        if at is None or record.headers[at][1] != _BACKED:
            raise MalformedReferenceError(FLAG, "absent" if at is None else _text(record.headers[at][1]), _FLAG_ALLOWED)
        codec, own = _compression(_without(record.headers, at))
        return Reference(parse_path(record.value), codec=codec), own

    def write_inline(self, record: RecordLike) -> Record:
        """See `Format.write_inline`."""
        return Record(record.key, record.value, (*record.headers, (FLAG, _INLINE)), record.timestamp)

    def write_reference(self, record: RecordLike, reference: Reference) -> Record:
        """See `Format.write_reference`."""
        headers = (*record.headers, *_compression_headers(record.headers, reference.codec), (FLAG, _BACKED))
        return Record(record.key, reference.value(), headers, record.timestamp)


class BakdataFlag(_Bakdata):
    """The format with a byte in front of the value.

    A record that has the other format's header is read and written in that format, since their reader does so.
    """

    def wants(self, record: RecordLike) -> bool:
        """See `Format.wants`."""
        return record.value is not None

    def refers(self, record: RecordLike) -> bool:
        """See `Format.refers`."""
        if _last(record.headers, FLAG) is not None:
            return _HEADERS.refers(record)
        return record.value is not None and record.value[:1] != _INLINE

    def read_inline(self, record: RecordLike) -> Record:
        """See `Format.read_inline`."""
        if _last(record.headers, FLAG) is not None:
            return _HEADERS.read_inline(record)
        assert record.value is not None
        return Record(record.key, record.value[1:], record.headers, record.timestamp)

    def read_reference(self, record: RecordLike) -> tuple[Reference, tuple[Header, ...]]:
        """See `Format.read_reference`."""
        if _last(record.headers, FLAG) is not None:
            return _HEADERS.read_reference(record)
        if record.value is None or record.value[:1] != _BACKED:
            found = None if record.value is None else record.value[:1]
            raise MalformedReferenceError("the value's flag", _text(found), _FLAG_ALLOWED)
        codec, own = _compression(tuple(record.headers))
        return Reference(parse_path(record.value[1:]), codec=codec), own

    def write_inline(self, record: RecordLike) -> Record:
        """See `Format.write_inline`."""
        if _last(record.headers, FLAG) is not None:
            return _HEADERS.write_inline(record)
        assert record.value is not None
        return Record(record.key, _INLINE + record.value, record.headers, record.timestamp)

    def write_reference(self, record: RecordLike, reference: Reference) -> Record:
        """See `Format.write_reference`."""
        if _last(record.headers, FLAG) is not None:
            return _HEADERS.write_reference(record, reference)
        headers = (*record.headers, *_compression_headers(record.headers, reference.codec))
        return Record(record.key, _BACKED + reference.value(), headers, record.timestamp)


_HEADERS = BakdataHeaders()


def _last(headers: Sequence[Header], *names: str) -> int | None:
    """Where the last header with one of the names stands."""
    for i in reversed(range(len(headers))):
        if headers[i][0] in names:
            return i
    return None


def _without(headers: Sequence[Header], at: int) -> tuple[Header, ...]:
    return (*headers[:at], *headers[at + 1 :])


def _compression(headers: tuple[Header, ...]) -> tuple[Codec | None, tuple[Header, ...]]:
    """How the object is compressed, and the headers without the one that says so."""
    at = _last(headers, COMPRESSION, COMPRESSION_ONE_DOT)
    if at is None:
        return None, headers
    name, value = headers[at]
    if value is None or value not in _CODECS:
        raise MalformedReferenceError(name, _text(value), _COMPRESSION_ALLOWED)
    return _CODECS[value], _without(headers, at)


def _compression_headers(headers: Sequence[Header], codec: Codec | None) -> tuple[Header, ...]:
    # A header that is there already would be taken for the object's own.
    if codec is None and _last(headers, COMPRESSION, COMPRESSION_ONE_DOT) is None:
        return ()
    return ((COMPRESSION, _CODEC_BYTES[codec]),)


def _text(value: bytes | None) -> str:
    if value is None:
        return "null"
    return f"0x{value.hex()}" if len(value) == 1 else f"{len(value):,} bytes"
