"""Batches as other producers build them: by aiokafka's builder, and with each codec."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cramjam
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from app.kafka.batches.batch import Batch
from transforms.frames import compress_frame
from transforms.record import Record, RecordLike
from transforms.record_batch import CODECS, RecordBatch, Stamp, pack, restamp

HEADER_BYTES = 61
NUMBERS: Mapping[str, int] = {codec or "none": number for number, codec in enumerate(CODECS)}

# What the producers of others put behind the header; librdkafka compresses by snappy without xerial's blocks.
PACKERS: Mapping[str, tuple[int, Callable[[bytes], bytes]]] = {
    "none": (0, bytes),
    "gzip": (1, gzip.compress),
    "snappy": (2, lambda data: compress_frame("snappy", data)),
    "snappy-raw": (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "lz4": (3, lambda data: compress_frame("lz4", data)),
    "zstd": (4, lambda data: compress_frame("zstd", data)),
}


def record(number: int, size: int = 100) -> Record:
    """A record that compresses well."""
    return Record(b"k%d" % number, b"v" * size, (("h", b"%d" % number), ("h", None)), 1_700_000_000_000 + number)


def built(
    codec: int, records: Sequence[RecordLike], *, base: int = 0, transactional: bool = False, stamp: Stamp | None = None
) -> bytes:
    """A batch from aiokafka's builder, as a log has it: with a base offset and the epoch of a leader."""
    producer_id, epoch, sequence = stamp or (-1, -1, -1)
    builder = DefaultRecordBatchBuilder(2, codec, int(transactional), producer_id, epoch, sequence, 1 << 30)
    for offset, each in enumerate(records):
        appended = builder.append(offset, each.timestamp, each.key, each.value, list(each.headers))
        assert appended is not None
    data = bytearray(builder.build())
    struct.pack_into(">q", data, 0, base)
    struct.pack_into(">i", data, 12, 7)
    return bytes(data)


def whole_batch(batch: RecordBatch, *, transactional: bool = False) -> Batch[Any]:
    """A batch as it is, for `send_batch`."""
    return Batch(None, 0.0, batch.codec, transactional=transactional, whole=batch)


def raw_batch(records: Sequence[RecordLike]) -> Batch[Any]:
    """An uncompressed batch for `send_batch`; header names have bytes that are not UTF-8 by `surrogateescape`."""
    return whole_batch(RecordBatch.read(memoryview(pack(records))))


def changed(data: bytes, field: str, at: int, *numbers: int) -> bytes:
    """A batch with other numbers in its header, and the checksum of these."""
    other = bytearray(data)
    struct.pack_into(field, other, at, *numbers)
    restamp(other, Stamp(*struct.unpack_from(">qhi", other, 43)))
    return bytes(other)


def repacked(data: bytes, packer: str) -> bytes:
    """An uncompressed batch, with its records compressed."""
    number, pack = PACKERS[packer]
    packed = pack(bytes(data[HEADER_BYTES:]))
    whole = data[:HEADER_BYTES] + packed
    attributes = struct.unpack_from(">h", data, 21)[0] & ~7 | number
    return changed(changed(whole, ">i", 8, len(whole) - 12), ">h", 21, attributes)


def rows_of(data: bytes | bytearray | memoryview) -> list[tuple[int, Record]]:
    """Offsets and records, as aiokafka reads them."""
    rows: list[Any] = list(DefaultRecordBatch(bytes(data)))
    return [(row.offset, Record(row.key, row.value, tuple(row.headers), row.timestamp)) for row in rows]


def message(
    magic: int, offset: int, key: bytes | None, value: bytes | None, timestamp: int = 0, attributes: int = 0
) -> bytes:
    """A message of the format 0 or 1."""
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for data in (key, value):
        body += struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def wrapped(magic: int, packer: str, records: Mapping[int, Record], timestamp: int = 0, attributes: int = 0) -> bytes:
    """Records by their offsets, compressed together in one message of the format 0 or 1."""
    number, pack = PACKERS[packer]
    first = min(records) if magic else 0
    inner = b"".join(message(magic, n - first, r.key, r.value, r.timestamp) for n, r in records.items())
    return message(magic, max(records), None, pack(inner), timestamp, number | attributes)
