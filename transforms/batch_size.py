"""The sizes of records and record batches, in format version 2.

Source: Kafka protocol, "Record Batch" (magic 2): a header of 61 bytes, then records whose lengths are zigzag varints.
The broker compares the whole batch with the topic's `max.message.bytes`.
"""

from __future__ import annotations

from transforms.record import Record, RecordLike

BATCH_OVERHEAD_BYTES = 61
# The most bytes of a batch of one record without headers, beside key and value: varints of five bytes for record, key
# and value.
HEADERLESS_OVERHEAD_BYTES = 80
HEADER_OVERHEAD_BYTES = 14  # the most beside name and value: varints of both, and its part of that of the count


def varint_bytes(number: int) -> int:
    """Bytes of a number as a zigzag varint; Kafka's lengths are never below −1."""
    zigzag = number << 1 if number >= 0 else -(number << 1) - 1
    return max(1, (zigzag.bit_length() + 6) // 7)


def _length_prefixed(data: bytes | None) -> int:
    return 1 if data is None else varint_bytes(len(data)) + len(data)


def _rest_bytes(record: RecordLike) -> int:
    """Bytes of a record beside its value and its own length prefix."""
    size = 3  # attributes, timestamp delta and offset delta, one byte each
    size += _length_prefixed(record.key)
    size += varint_bytes(len(record.headers))
    for name, value in record.headers:
        size += _length_prefixed(name.encode()) + _length_prefixed(value)
    return size


def record_bytes(record: RecordLike) -> int:
    """Bytes of the record as the first of a batch, its own length prefix included."""
    size = _rest_bytes(record) + _length_prefixed(record.value)
    return varint_bytes(size) + size


def value_room_bytes(record: RecordLike, limit_bytes: int) -> int:
    """The longest value with which the record, alone in a batch, is within the limit; below 0 if there is none.

    Args:
        record: its value is ignored.
        limit_bytes: the most bytes of the batch.
    """
    rest = _rest_bytes(record)
    # The longer the value, the longer its own prefix and that of the record: by at most four bytes each.
    room = limit_bytes - BATCH_OVERHEAD_BYTES - rest - 2
    while room >= 0:
        size = rest + varint_bytes(room) + room
        if BATCH_OVERHEAD_BYTES + varint_bytes(size) + size <= limit_bytes:
            break
        room -= 1
    return room


def batch_of_one_bytes(record: RecordLike) -> int:
    """Bytes of an uncompressed batch with this record alone."""
    return BATCH_OVERHEAD_BYTES + record_bytes(record)


def is_within(record: RecordLike, limit_bytes: int) -> bool:
    """Whether an uncompressed batch with this record alone is within a limit; for most records without its exact size.

    Raises:
        UnicodeEncodeError: the name of a header is not UTF-8.
    """
    most = HEADERLESS_OVERHEAD_BYTES + len(record.value or b"") + len(record.key or b"")
    for name, value in record.headers:
        if not name.isascii():
            break
        most += HEADER_OVERHEAD_BYTES + len(name) + len(value or b"")
    else:
        if most <= limit_bytes:
            return True
    return batch_of_one_bytes(record) <= limit_bytes


def headerless_batch_bytes(key: bytes | None, value_bytes: int) -> int:
    """Bytes of an uncompressed batch of one record without headers; the value need not exist yet."""
    size = _rest_bytes(Record(key, None)) + varint_bytes(value_bytes) + value_bytes
    return BATCH_OVERHEAD_BYTES + varint_bytes(size) + size
