"""How many bytes a record takes in Kafka: the arithmetic of record batches, format version 2.

Source: Kafka protocol, "Record Batch" (magic 2): a header of 61 bytes, then records whose lengths are zigzag varints.
The broker compares the whole batch with the topic's `max.message.bytes`.
"""

from __future__ import annotations

from transforms.record import RecordLike

__all__ = ["BATCH_OVERHEAD_BYTES", "HEADERLESS_OVERHEAD_BYTES", "batch_of_one_bytes", "record_bytes", "varint_bytes"]

BATCH_OVERHEAD_BYTES = 61
# The most that a batch of one without headers has beside key and value: five-byte varints for record, key and value.
HEADERLESS_OVERHEAD_BYTES = 80


def varint_bytes(number: int) -> int:
    """Bytes of a number as a zigzag varint; Kafka's lengths are never below −1."""
    zigzag = number << 1 if number >= 0 else -(number << 1) - 1
    return max(1, (zigzag.bit_length() + 6) // 7)


def _length_prefixed(data: bytes | None) -> int:
    return 1 if data is None else varint_bytes(len(data)) + len(data)


def record_bytes(record: RecordLike) -> int:
    """Bytes of the record as the first of a batch, its own length prefix included."""
    size = 3  # attributes, timestamp delta and offset delta, one byte each
    size += _length_prefixed(record.key) + _length_prefixed(record.value)
    size += varint_bytes(len(record.headers))
    for name, value in record.headers:
        size += _length_prefixed(name.encode()) + _length_prefixed(value)
    return varint_bytes(size) + size


def batch_of_one_bytes(record: RecordLike) -> int:
    """Bytes of a batch that holds this record alone, uncompressed."""
    return BATCH_OVERHEAD_BYTES + record_bytes(record)
