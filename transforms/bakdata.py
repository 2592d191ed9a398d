"""The two record formats of bakdata's kafka-large-message-serde.

    flag        value    0x00 and the value, or 0x01 and the URI of the object in UTF-8
    headers     value    the value, or the URI
                header   __large.message.backed.value: one byte, 0 or 1, on each record but tombstones
    both        header   __large.message.backed..compression: one byte, 1 gzip, 2 snappy, 3 lz4, 4 zstd; on records with
                         a compressed object, before the header above
                null     stays null, without any header

The object is the value, or one frame (see `transforms/frames.py`) with zeros after it. Their writer makes the URI
`s3://bucket/<base path><topic>/values/<id>`; their reader takes any. The records have neither size nor checksum.

Source: com.bakdata.kafka:large-message-serde 2.9.1, 3.0.0 and 3.1.1 as published, run by
`tests/vectors/Bakdata.java`:

- `large.message.use.headers` chooses the format to write; the default is the flag. Their reader decides for each
  record: by the header if there is one, else by the flag, or with `large.message.accept.no.headers` as a plain value.
- The last header of a name counts. The compression header has two dots in all three versions; the name with one dot is
  read here too.
- Their writer puts zeros after frames of snappy and zstd, and their reader fails on them. Here zeros are accepted when
  read, and not written.

Keys have the same formats, with `key` for `value`; they are passed unchanged, or refused (`refers_by_key`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from transforms.compression import Codec
from transforms.errors import MalformedReferenceError
from transforms.frames import compress_frame, decompress_frame
from transforms.record import Header, Record, RecordLike
from transforms.record_batch import RecordBatch
from transforms.reference import Reference, parse_path

FLAG = "__large.message.backed.value"
KEY_FLAG = "__large.message.backed.key"
COMPRESSION = "__large.message.backed..compression"
COMPRESSION_ONE_DOT = "__large.message.backed.compression"

_INLINE = b"\x00"
_BACKED = b"\x01"
MARKS = (_INLINE, _BACKED)
"""The two bytes of a header, or before a value, that say where it is."""
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
    """The common part of the two: frames. The methods are those of `transforms.formats.Format`."""

    marks = True

    def compress(self, codec: Codec, value: bytes) -> bytes:
        return compress_frame(codec, value)

    def decompress(self, reference: Reference, stored: bytes, limit_bytes: int) -> bytes:
        assert reference.codec is not None
        return decompress_frame(reference.codec, stored, limit_bytes)


class BakdataHeaders(_Bakdata):
    """The format with headers. A record without them is a plain value."""

    def wants(self, record: RecordLike) -> bool:
        return record.value is not None and _last(record.headers, FLAG) is not None

    def wants_any(self, batch: RecordBatch) -> bool:
        return batch.may_hold(FLAG.encode())

    def refers(self, record: RecordLike) -> bool:
        at = None if record.value is None else _last(record.headers, FLAG)
        return at is not None and record.headers[at][1] != _INLINE

    def read_inline(self, record: RecordLike) -> Record:
        at = _last(record.headers, FLAG)
        assert at is not None
        return Record(record.key, record.value, _without(record.headers, at), record.timestamp)

    def read_reference(self, record: RecordLike) -> tuple[Reference, tuple[Header, ...]]:
        at = _last(record.headers, FLAG)
        if at is None or record.headers[at][1] != _BACKED:
            raise MalformedReferenceError(FLAG, "absent" if at is None else _text(record.headers[at][1]), _FLAG_ALLOWED)
        codec, own = _compression(_without(record.headers, at))
        return Reference(parse_path(record.value), codec=codec), own

    def write_inline(self, record: RecordLike) -> Record:
        return Record(record.key, record.value, (*record.headers, (FLAG, _INLINE)), record.timestamp)

    def write_reference(self, record: RecordLike, reference: Reference) -> Record:
        headers = (*record.headers, *_compression_headers(record.headers, reference.codec), (FLAG, _BACKED))
        return Record(record.key, reference.value(), headers, record.timestamp)


class BakdataFlag(_Bakdata):
    """The format with a byte before the value.

    A record with the header of the other format is read and written in that format, as their reader does.
    """

    def wants(self, record: RecordLike) -> bool:
        return record.value is not None

    def wants_any(self, batch: RecordBatch) -> bool:  # noqa: ARG002
        return True

    def refers(self, record: RecordLike) -> bool:
        if _last(record.headers, FLAG) is not None:
            return _HEADERS.refers(record)
        return record.value is not None and record.value[:1] != _INLINE

    def read_inline(self, record: RecordLike) -> Record:
        if _last(record.headers, FLAG) is not None:
            return _HEADERS.read_inline(record)
        assert record.value is not None
        return Record(record.key, record.value[1:], record.headers, record.timestamp)

    def read_reference(self, record: RecordLike) -> tuple[Reference, tuple[Header, ...]]:
        if _last(record.headers, FLAG) is not None:
            return _HEADERS.read_reference(record)
        if record.value is None or record.value[:1] != _BACKED:
            found = None if record.value is None else record.value[:1]
            raise MalformedReferenceError("the value's flag", _text(found), _FLAG_ALLOWED)
        codec, own = _compression(tuple(record.headers))
        return Reference(parse_path(record.value[1:]), codec=codec), own

    def write_inline(self, record: RecordLike) -> Record:
        if _last(record.headers, FLAG) is not None:
            return _HEADERS.write_inline(record)
        assert record.value is not None
        return Record(record.key, _INLINE + record.value, record.headers, record.timestamp)

    def write_reference(self, record: RecordLike, reference: Reference) -> Record:
        if _last(record.headers, FLAG) is not None:
            return _HEADERS.write_reference(record, reference)
        headers = (*record.headers, *_compression_headers(record.headers, reference.codec))
        return Record(record.key, _BACKED + reference.value(), headers, record.timestamp)


_HEADERS = BakdataHeaders()


def refers_by_key(headers: Sequence[Header]) -> bool:
    """Whether bakdata's reader takes the key of a record with these headers for a reference, or for a malformed one."""
    at = _last(headers, KEY_FLAG)
    return at is not None and headers[at][1] != _INLINE


def _last(headers: Sequence[Header], *names: str) -> int | None:
    """The index of the last header with one of the names."""
    for i in reversed(range(len(headers))):
        if headers[i][0] in names:
            return i
    return None


def _without(headers: Sequence[Header], at: int) -> tuple[Header, ...]:
    return (*headers[:at], *headers[at + 1 :])


def _compression(headers: tuple[Header, ...]) -> tuple[Codec | None, tuple[Header, ...]]:
    """The compression of the object, and the headers without the compression header."""
    at = _last(headers, COMPRESSION, COMPRESSION_ONE_DOT)
    if at is None:
        return None, headers
    name, value = headers[at]
    if value is None or value not in _CODECS:
        raise MalformedReferenceError(name, _text(value), _COMPRESSION_ALLOWED)
    return _CODECS[value], _without(headers, at)


def _compression_headers(headers: Sequence[Header], codec: Codec | None) -> tuple[Header, ...]:
    # An existing header of the record would be taken for the header of the object.
    if codec is None and _last(headers, COMPRESSION, COMPRESSION_ONE_DOT) is None:
        return ()
    return ((COMPRESSION, _CODEC_BYTES[codec]),)


def _text(value: bytes | None) -> str:
    if value is None:
        return "null"
    return f"0x{value.hex()}" if len(value) == 1 else f"{len(value):,} bytes"
