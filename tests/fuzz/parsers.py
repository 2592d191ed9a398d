"""What is fuzzed: parsers of bytes that anybody may have written, and what each of them promises of any bytes."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stores.root import Root
from tests.vectors.bakdata import bakdata_cases
from tests.vectors.wrapper import wrapper_cases
from transforms import record_format
from transforms.chunk import Chunk, Chunking
from transforms.compression import CODECS, Codec, CompressionError, compress, decompress
from transforms.errors import (
    MalformedChunkError,
    MalformedError,
    MalformedReferenceError,
    MalformedWrapperError,
    ReferenceRefusedError,
    SignatureError,
)
from transforms.formats import FORMATS, WIDELOAD, FormatName
from transforms.frames import compress_frame, decompress_frame
from transforms.record import Record, RecordLike
from transforms.reference import Reference
from transforms.signing import Signing
from transforms.wrapper import MessageWrapper, Unwrap, Wrap

__all__ = ["PARSERS", "Parser"]


@dataclass(frozen=True, slots=True)
class Parser:
    """One parser.

    Attributes:
        name: what `--parser` takes.
        seeds: bytes to begin with, sound ones and others.
        examine: parses the bytes; True where they are taken, False where the documented error is raised. Any other
            exception, an `AssertionError` among them, is a defect.
    """

    name: str
    seeds: Sequence[bytes]
    examine: Callable[[bytes], bool]


def _wrapper(data: bytes) -> bool:
    """A wrapper is written again to the byte, by way of a record too; `check` agrees."""
    try:
        found = MessageWrapper.parse(data)
    except MalformedWrapperError:
        assert not MessageWrapper.check(data)
        return False
    assert MessageWrapper.check(data)
    assert found.serialize() == data
    record = Record(None, data)
    assert Wrap().wrap(Unwrap().unwrap(record)) == record
    return True


# --- records: what stands in a value and in headers, in bytes that can be mutated

_BETWEEN = b"|~|"


def _bytes_of(record: RecordLike) -> bytes:
    return _BETWEEN.join([record.value or b"", *(part for n, v in record.headers for part in (n.encode(), v or b""))])


def _record_of(data: bytes) -> Record:
    value, *parts = data.split(_BETWEEN)
    names = [part.decode(errors="replace") for part in parts[::2]]
    return Record(None, value, tuple(zip(names, [*parts[1::2], None], strict=False)))


def _reference(data: bytes) -> bool:
    """What is read of a reference is written again, and read as the same; own headers stay in their order."""
    record = _record_of(data)
    try:
        reference, own = Reference.parse(record)
    except MalformedReferenceError:
        return False
    assert Reference.parse(Record(None, reference.value(), (*own, *reference.headers()))) == (reference, own)
    assert set(own) <= set(record.headers)
    with contextlib.suppress(SignatureError):
        _SIGNING.verify(reference)
    return True


def _root(data: bytes) -> bool:
    """What a root takes begins with it, and is the path of exactly one topic and one id."""
    path = data.decode(errors="surrogateescape")
    try:
        topic, object_id = _ROOT.split(path)
    except ReferenceRefusedError:
        return False
    assert _ROOT.path(topic, object_id) == path
    assert not {".", "..", ""} & set(path.removeprefix("s3://").split("/"))
    return True


def _bakdata(name: FormatName) -> Callable[[bytes], bool]:
    form = FORMATS[name]

    def examine(data: bytes) -> bool:
        record = _record_of(data)
        if not form.refers(record):
            return form.wants(record) and form.read_inline(record).value is not None
        try:
            reference, own = form.read_reference(record)
        except MalformedReferenceError:
            return False
        assert set(own) <= set(record.headers)
        assert reference.value()
        return True

    return examine


def _chunk(data: bytes) -> bool:
    """What is read of a chunk is written again, and read as the same; its numbers are within one another."""
    record = _record_of(data)
    try:
        chunk, own = Chunk.parse(record)
    except MalformedChunkError:
        return False
    assert 0 <= chunk.id < chunk.count <= chunk.size
    assert Chunk.parse(Record(None, record.value, (*own, *chunk.headers()))) == (chunk, own)
    return True


def _wire(data: bytes) -> bool:
    """A record in Kafka's bytes is written again, and read as the same."""
    try:
        record = record_format.parse(data)
    except MalformedError:
        return False
    assert record_format.parse(record_format.serialize(record)) == record
    return True


def _frame(codec: Codec) -> Callable[[bytes], bool]:
    def examine(data: bytes) -> bool:
        try:
            value = decompress_frame(codec, data, _LIMIT)
        except CompressionError:
            return False
        assert len(value) <= _LIMIT
        return True

    return examine


def _compressed(codec: Codec) -> Callable[[bytes], bool]:
    def examine(data: bytes) -> bool:
        try:
            value = decompress(codec, data, len(_PLAIN))
        except CompressionError:
            return False
        assert len(value) == len(_PLAIN)
        return True

    return examine


_LIMIT = 10_000
_PLAIN = b"compressible " * 100
_SIGNING = Signing("k" * 32, ("p" * 32,), required=False)
_ROOT = Root("s3://payloads/wide/")
_OWN = (("own", b"1"), ("own", None))
_WHOLE = Reference("s3://payloads/wide/orders/2c26b46b68ffc68f", 3, hashlib.sha256(b"foo").hexdigest(), "zstd")
_REFERENCES = [
    _bytes_of(WIDELOAD.write_reference(Record(None, b"?", _OWN), each))
    for each in (_WHOLE, _SIGNING.signed(_WHOLE), Reference("file:///r/t/id"))
]
_CHUNKS = [_bytes_of(each) for each in Chunking(400).split(Record(b"k", bytes(1_000), _OWN), "uuid-1")]
_WIRE = [
    record_format.serialize(Record(b"k", b"v" * 200, _OWN, 1_700_000_000_000)),
    record_format.serialize(Record(None, None)),
    record_format.serialize(Record(b"k", b"", (("\udcff", b"x"),), -1), 7),
]

PARSERS: Sequence[Parser] = (
    Parser("wrapper", [case.bytes for case in wrapper_cases()], _wrapper),
    Parser("reference", _REFERENCES, _reference),
    Parser("root", [_WHOLE.path.encode(), b"s3://payloads/wide/t/i", b"s3://payloads/wide/../t/%2e%2e"], _root),
    *(
        Parser(name, [_bytes_of(case.wire) for case in bakdata_cases() if case.format == name], _bakdata(name))
        for name in ("bakdata-headers", "bakdata-flag")
    ),
    Parser("chunk", _CHUNKS, _chunk),
    Parser("wire", _WIRE, _wire),
    *(Parser(f"frame-{codec}", [compress_frame(codec, _PLAIN)], _frame(codec)) for codec in CODECS),
    *(Parser(f"compressed-{codec}", [compress(codec, _PLAIN)], _compressed(codec)) for codec in CODECS),
)
