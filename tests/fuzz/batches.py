"""What is fuzzed of batches and of the records in them: each way to look at the same bytes says the same."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Sequence

from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException

from app.kafka.source_batch import SourceBatch, decoded
from tests.built_batches import PACKERS, built
from transforms import record_format
from transforms.batch_merge import merge
from transforms.batch_size import BATCH_OVERHEAD_BYTES
from transforms.chunk import Chunking, is_chunk, may_hold_chunks
from transforms.errors import MalformedError, TooManyHeadersError
from transforms.formats import FORMATS
from transforms.offload import Offload
from transforms.record import Record, RecordLike
from transforms.record_batch import RecordBatch, Stamp, is_old, pack, split
from transforms.record_lengths import is_crowded, longer

_OWN = (("own", b"1"), ("own", None))
BATCHES = [
    built(0, [Record(b"k", b"v" * 90, _OWN, 1_700_000_000_000), Record(None, None), Record(b"", b"", (), 5)], base=7),
    bytes(pack([Record(b"k", b"v", (("\udcff", b"x"), ("large-messag", b"true")), -1)])),
    built(0, [Record(b"k", b"v" * 9, (*_OWN, ("large-message", b"true")), 9)] * 3),
]

BATCH_REFUSALS = (MalformedError, CorruptRecordException)
_FIXED = struct.Struct(">i4xb4xh")  # length, magic, attributes


def _repaired(data: bytes, codec: int | None = None) -> memoryview:
    """With the length and the magic of a batch, and a codec; or nearly all would be refused for these."""
    repaired = bytearray(data.ljust(BATCH_OVERHEAD_BYTES, b"\0"))
    attributes = 0 if codec is None else _FIXED.unpack_from(repaired, 8)[-1] & ~7 | codec
    _FIXED.pack_into(repaired, 8, len(repaired) - 12, 2, attributes)
    return memoryview(bytes(repaired))


def batch_of(packer: str) -> Callable[[bytes], None]:
    """A batch of one codec."""
    return lambda data: _read_batch(_repaired(data, PACKERS[packer][0]))


def fetched(data: bytes) -> bool:
    """A response to a fetch is cut into pieces that lie behind one another."""
    pieces: list[memoryview] = []
    taken = 0
    for piece in split(memoryview(data)):
        pieces.append(piece)
        with contextlib.suppress(*BATCH_REFUSALS):
            if not is_old(piece):
                _read_batch(piece)
            taken += 1
    assert data.startswith(b"".join(pieces))
    return taken > 0


def _read_batch(piece: memoryview) -> None:
    """Records are read whole, in two ways that agree, or refused; none is wanted where `wants_any` says so."""
    batch = RecordBatch.read(piece)
    flags = (batch.intact, batch.appendable, batch.broker_time, batch.control, batch.transactional)
    assert not any(flag not in {True, False} for flag in flags)
    sent = RecordBatch.read(memoryview(batch.forwarded(_STAMP, transactional=True)))
    assert sent.intact
    assert sent.transactional
    source = SourceBatch(TopicPartition("t", 0), 0, batch)
    wanted = [wants for wants_any, wants in _WANTING if not wants_any(batch)]
    plain, records = source.plain, list(source.records())
    assert len(records) <= batch.count
    if plain and not _has_odd_attributes(batch):  # a batch with names that are no text never goes whole
        assert not any(wants(record) for record in records for wants in wanted)
        read = [(r.offset, Record(r.key, r.value, tuple(r.headers), r.timestamp)) for r in records]
        assert read == list(decoded(batch))


def _has_odd_attributes(batch: RecordBatch) -> bool:
    """Whether a record's attributes have their highest bit, which is unused: aiokafka takes the next for them."""
    data, at = bytes(batch.uncompressed()[BATCH_OVERHEAD_BYTES:]), 0
    for _ in range(batch.count):
        size = shift = 0
        while data[at] & 0x80:
            size |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
        size |= data[at] << shift
        if data[at + 1] & 0x80:
            return True
        at += 1 + (size >> 1)
    return False


def merged(data: bytes) -> bool:
    """A batch behind a sound one: merged, they have the records of both, or it is refused and goes on alone."""
    own, batch = RecordBatch.read(memoryview(BATCHES[0])), RecordBatch.read(_repaired(data))
    if not (batch.appendable and batch.timely):
        return False
    records = _records(batch)
    whole = merge([own, batch])
    assert whole.count == own.count + batch.count
    found = _records(whole)
    assert records is None or found == [*(_records(own) or ()), *records]
    return found is not None


def _records(batch: RecordBatch) -> list[RecordLike] | None:
    try:
        return [record for _, record in decoded(batch)]
    except MalformedError:
        return None


def record_lengths(data: bytes) -> None:
    """To skip a record, to count its headers and to read it say the same of where it ends and what it has."""
    for count in (1, 3):
        begins = longer(data, count, 20)
        assert begins is None or (sorted(begins) == list(begins) and len(begins) <= count)
        is_crowded(data, count)
    try:
        record, delta, end = record_format.read(data, 0)
    except TooManyHeadersError:
        assert record_format.header_count(data, 0)[0] > record_format.MAX_HEADERS
        raise
    assert record_format.header_count(data, 0) == (len(record.headers), end)
    assert record_format.place(data, 0) == (record.timestamp, delta, end)


_STAMP = Stamp(1, 2, 3)
_OFFLOAD, _STRICT, _CHUNKING = Offload(100, 300), Offload(10_000, on_reference="offload"), Chunking(250)
_WANTING: Sequence[tuple[Callable[[RecordBatch], bool], Callable[[RecordLike], bool]]] = (
    (_OFFLOAD.wants_any, _OFFLOAD.changes),
    (_STRICT.wants_any, _STRICT.changes),
    (_CHUNKING.wants_any, _CHUNKING.wants),
    (FORMATS["wideload"].wants_any, FORMATS["wideload"].wants),
    (FORMATS["bakdata-headers"].wants_any, FORMATS["bakdata-headers"].wants),
    (may_hold_chunks, lambda record: is_chunk(record.headers)),
)
