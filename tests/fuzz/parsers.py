"""What is fuzzed: parsers of bytes that anybody may have written, and what each of them promises of any bytes."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from app.deadletters.replay_offsets import ReplayedOffsets
from jobs.reading.ranges import parse_offsets
from stores.root import Root
from tests.built_batches import PACKERS, repacked
from tests.fuzz.batches import BATCH_REFUSALS, BATCHES, batch_of, fetched, merged, record_lengths
from tests.vectors.bakdata import bakdata_cases
from tests.vectors.wrapper import wrapper_cases
from transforms import record_format
from transforms.chunk import Chunk, Chunking
from transforms.commit_metadata import note, noted
from transforms.compression import CODECS, Codec, CompressionError, compress, decompress
from transforms.errors import (
    ConfigurationError,
    MalformedChunkError,
    MalformedError,
    MalformedReferenceError,
    MalformedWrapperError,
    ReferenceRefusedError,
    SignatureError,
)
from transforms.formats import FORMATS, WIDELOAD, FormatName
from transforms.frames import compress_frame, decompress_frame
from transforms.letter import REPLAYS, mark_of, open_letter, replays_of
from transforms.masking import masked
from transforms.record import Record, RecordLike
from transforms.reference import Reference
from transforms.signing import Signing
from transforms.wrapper import MessageWrapper, Unwrap, Wrap


@dataclass(frozen=True, slots=True)
class Parser:
    """One parser.

    Attributes:
        name: what `--parser` takes.
        seeds: bytes to begin with, sound ones and others.
        parse: parses the bytes; False where it says that there is nothing in them. Any exception that is not
            documented, an `AssertionError` among them, is a defect.
        refusal: the documented error.
    """

    name: str
    seeds: Sequence[bytes]
    parse: Callable[[bytes], bool | None]
    refusal: type[Exception] | tuple[type[Exception], ...] = ()

    def takes(self, data: bytes) -> bool:
        """Whether the bytes are taken, and not refused."""
        try:
            return self.parse(data) is not False
        except self.refusal:
            return False


def _wrapper(data: bytes) -> None:
    """A wrapper is written again to the byte, by way of a record too; `check` agrees."""
    try:
        found = MessageWrapper.parse(data)
    except MalformedWrapperError:
        assert not MessageWrapper.check(data)
        raise
    assert MessageWrapper.check(data)
    assert found.serialize() == data
    record = Record(None, data)
    assert Wrap().wrap(Unwrap().unwrap(record)) == record


# What stands in a value and in headers, in bytes that can be mutated.
_BETWEEN = b"|~|"


def _bytes_of(record: RecordLike) -> bytes:
    return _BETWEEN.join([record.value or b"", *(part for n, v in record.headers for part in (n.encode(), v or b""))])


def _record_of(data: bytes) -> Record:
    value, *parts = data.split(_BETWEEN)
    names = [part.decode(errors="replace") for part in parts[::2]]
    return Record(None, value, tuple(zip(names, [*parts[1::2], None], strict=False)))


def _reference(data: bytes) -> None:
    """What is read of a reference is written again, and read as the same; own headers stay in their order."""
    record = _record_of(data)
    reference, own = Reference.parse(record)
    assert Reference.parse(Record(None, reference.value(), (*own, *reference.headers()))) == (reference, own)
    assert set(own) <= set(record.headers)
    with contextlib.suppress(SignatureError):
        _SIGNING.verify(reference)


def _root(data: bytes) -> None:
    """What a root takes begins with it, and is the path of exactly one topic and one id."""
    path = data.decode(errors="surrogateescape")
    topic, object_id = _ROOT.split(path)
    assert _ROOT.path(topic, object_id) == path
    assert not {".", "..", ""} & set(path.removeprefix("s3://").split("/"))


def _bakdata(name: FormatName) -> Callable[[bytes], bool]:
    form = FORMATS[name]

    def examine(data: bytes) -> bool:
        record = _record_of(data)
        if not form.refers(record):
            return form.wants(record) and form.read_inline(record).value is not None
        reference, own = form.read_reference(record)
        assert set(own) <= set(record.headers)
        return bool(reference.value())

    return examine


def _chunk(data: bytes) -> None:
    """What is read of a chunk is written again, and read as the same; its numbers are within one another."""
    record = _record_of(data)
    chunk, own = Chunk.parse(record)
    assert 0 <= chunk.id < chunk.count <= chunk.size
    assert Chunk.parse(Record(None, record.value, (*own, *chunk.headers()))) == (chunk, own)


def _wire(data: bytes) -> None:
    """A record in Kafka's bytes is written again, and read as the same."""
    record = record_format.parse(data)
    assert record_format.parse(record_format.serialize(record)) == record


def _frame(data: bytes, codec: Codec) -> None:
    assert len(decompress_frame(codec, data, _LIMIT)) <= _LIMIT


def _compressed(data: bytes, codec: Codec) -> None:
    assert len(decompress(codec, data, len(_PLAIN))) == len(_PLAIN)


def _letter(data: bytes) -> None:
    """What a replay would write is the record, with one more replay than the letter has."""
    letter = open_letter(_record_of(data))
    again = letter.replayed()
    assert replays_of(again.headers) in {letter.replays + 1, 0}  # a million replays are not counted
    assert again.value == letter.record.value


def _replayed_offsets(data: bytes) -> bool:
    """The offsets that a commit's metadata names are written again, and read as the same."""
    found = ReplayedOffsets.parse(7, data.decode(errors="replace"))
    if found is None:
        return False
    again = found.metadata()
    read = ReplayedOffsets.parse(found.offset, again)
    assert again is None or (read is not None and read.metadata() == again)
    return True


def _note(data: bytes) -> bool:
    """What a commit's metadata says of delivered messages is within an int64, or nothing."""
    found = noted(data.decode(errors="replace"))
    return found is not None and len(found.torn) <= 32  # the most that are noted


def _offsets(data: bytes) -> None:
    """Offsets are read, and written as Spark's JSON and read as the same, or refused."""
    found = parse_offsets("startingOffsets", data.decode(errors="replace"))
    assert isinstance(found, str) or parse_offsets("", json.dumps(found)) == found


def _masked(data: bytes) -> bool:
    """No signature of a URL is left, and what has none stays."""
    text = data.decode(errors="replace")
    said = masked(text, ["hunter2"])
    assert "hunter2" not in said
    assert masked(said, ["hunter2"]) == said
    return said != text


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
_CONTEXT = (("__connect.errors.topic", b"raw"), ("__connect.errors.partition", b"3"), ("__connect.errors.offset", b"7"))
_LETTERS = [
    _bytes_of(Record(b"k", b"v" * 20, (*_OWN, *_CONTEXT))),
    _bytes_of(Record(b"k", b"v", ((REPLAYS, b"2"), *_OWN, *_CONTEXT, mark_of("value", _CONTEXT)))),
    _bytes_of(Record(None, _WIRE[0], (mark_of("record"),))),
]
_DONE = ReplayedOffsets(7)
for _start in (20, 40, 70):
    _DONE.add(_start, _start + 5)
_REPLAYED = (_DONE.metadata() or "").encode()
_TEXTS = [b"GET https://me:pw@host/a?b=1&X-Amz-Signature=abc failed with hunter2: no", b"plain text"]
_OFFSETS = [b'{"orders": {"0": 23, "1": -2}}', b"latest", b'{"t": {"0": 1e9}, "u": {}}']
_PATHS = [_WHOLE.path.encode(), b"s3://payloads/wide/t/i", b"s3://payloads/wide/../t/%2e%2e"]

PARSERS: Sequence[Parser] = (
    Parser("letter", _LETTERS, _letter, MalformedError),
    Parser("replayed-offsets", [_REPLAYED, _REPLAYED + b":run1"], _replayed_offsets),
    Parser("commit-note", [note(3, 9, []).encode(), note(3, 9, ["a" * 22]).encode()], _note),
    Parser("masking", _TEXTS, _masked),
    Parser("offsets", _OFFSETS, _offsets, ConfigurationError),
    Parser("wrapper", [case.bytes for case in wrapper_cases()], _wrapper, MalformedWrapperError),
    Parser("reference", _REFERENCES, _reference, MalformedReferenceError),
    Parser("root", _PATHS, _root, ReferenceRefusedError),
    *(
        Parser(
            name,
            [_bytes_of(case.wire) for case in bakdata_cases() if case.format == name],
            _bakdata(name),
            MalformedReferenceError,
        )
        for name in ("bakdata-headers", "bakdata-flag")
    ),
    Parser("chunk", _CHUNKS, _chunk, MalformedChunkError),
    Parser("wire", _WIRE, _wire, MalformedError),
    Parser("lengths", _WIRE, record_lengths, MalformedError),
    Parser("batches", [b"".join(BATCHES), BATCHES[0], repacked(BATCHES[1], "zstd")], fetched, MalformedError),
    *(
        Parser(f"batch-{packer}", [repacked(each, packer) for each in BATCHES], batch_of(packer), BATCH_REFUSALS)
        for packer in PACKERS
    ),
    Parser("batch-merged", BATCHES, merged, MalformedError),
    *(
        Parser(f"{kind}-{codec}", [seed(codec, _PLAIN)], partial(parse, codec=codec), CompressionError)
        for kind, seed, parse in (("frame", compress_frame, _frame), ("compressed", compress, _compressed))
        for codec in CODECS
    ),
)
