"""Raw batches: of records that aiokafka's builder does not take, because the name of a header is not UTF-8."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from aiokafka.record.util import calc_crc32c

from app.kafka.batches.batch import Builder
from transforms import record_format
from transforms.record import Record, RecordLike

__all__ = ["raw_batch"]

# Kafka protocol, "Record Batch", magic 2: the fields before the CRC, and those between the CRC and the records.
_BEFORE = struct.Struct(">qiib")
_AFTER = struct.Struct(">hiqqqhii")
_CRC = struct.Struct(">I")
_LENGTH_AT = 12  # the length field does not count the bytes before


def raw_batch(records: Sequence[RecordLike]) -> Builder:
    """An uncompressed batch of records, for `send_batch` of a producer.

    Args:
        records: one or more; the names of headers have bytes that are not UTF-8 by `surrogateescape`.
    """
    first = records[0].timestamp
    data = b"".join(
        record_format.serialize(Record(record.key, record.value, record.headers, record.timestamp - first), offset)
        for offset, record in enumerate(records)
    )
    latest = max(record.timestamp for record in records)
    body = _AFTER.pack(0, len(records) - 1, first, latest, -1, -1, -1, len(records)) + data
    return _built(body, len(records))


def _built(body: bytes, records: int) -> Builder:
    """A batch with these bytes behind its CRC; only its stamp is missing."""
    size = _BEFORE.size + _CRC.size + len(body)
    head = _BEFORE.pack(0, size - _LENGTH_AT, -1, 2)
    batch = Builder(size, 0, transactional=False)
    batch._buffer = bytearray(head + _CRC.pack(calc_crc32c(body)) + body)
    batch._relative_offset = records
    batch.close()
    return batch
