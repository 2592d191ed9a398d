"""The sizes of records and record batches, in format version 2.

Source: Kafka protocol, "Record Batch" (magic 2): a header of 61 bytes, then records whose lengths are zigzag varints.
The broker compares the whole batch with the topic's `max.message.bytes`.
"""

from __future__ import annotations

from transforms.record import Record, RecordLike

BATCH_OVERHEAD_BYTES = 61
# An upper bound for a batch of one record without headers, in addition to key and value: varints of five bytes for
# record, key and value.
HEADERLESS_OVERHEAD_BYTES = 80
HEADER_OVERHEAD_BYTES = 14  # an upper bound, in addition to name and value: their varints, and a share of the count's


def varint_bytes(number: int) -> int:
    """The size of a number as a zigzag varint; Kafka's lengths are never below −1."""
    zigzag = number << 1 if number >= 0 else -(number << 1) - 1
    return max(1, (zigzag.bit_length() + 6) // 7)


def _length_prefixed(data: bytes | None) -> int:
    return 1 if data is None else varint_bytes(len(data)) + len(data)


def _rest_bytes(record: RecordLike) -> int:
    """The size of a record without its value and without its length prefix."""
    size = 3  # attributes, timestamp delta and offset delta, one byte each
    size += _length_prefixed(record.key)
    size += varint_bytes(len(record.headers))
    for name, value in record.headers:
        size += _length_prefixed(name.encode()) + _length_prefixed(value)
    return size


def record_bytes(record: RecordLike) -> int:
    """The size of the record as the first of a batch, including its length prefix."""
    size = _rest_bytes(record) + _length_prefixed(record.value)
    return varint_bytes(size) + size


def value_room_bytes(record: RecordLike, limit_bytes: int) -> int:
    """The length of the longest value with which the record, alone in a batch, fits the limit; below 0 if none does.

    Args:
        record: its value is ignored.
        limit_bytes: the maximum size of the batch.
    """
    rest = _rest_bytes(record)
    # The longer the value, the longer its length prefix and that of the record: by at most four bytes each.
    room = limit_bytes - BATCH_OVERHEAD_BYTES - rest - 2
    while room >= 0:
        size = rest + varint_bytes(room) + room
        if BATCH_OVERHEAD_BYTES + varint_bytes(size) + size <= limit_bytes:
            break
        room -= 1
    return room


def batch_of_one_bytes(record: RecordLike) -> int:
    """The size of an uncompressed batch with this record alone."""
    return BATCH_OVERHEAD_BYTES + record_bytes(record)


def is_within(record: RecordLike, limit_bytes: int) -> bool:
    """Whether an uncompressed batch with this record alone fits a limit; rarely needs to compute the exact size.

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
    """The size of an uncompressed batch of one record without headers; the value need not exist yet."""
    size = _rest_bytes(Record(key, None)) + varint_bytes(value_bytes) + value_bytes
    return BATCH_OVERHEAD_BYTES + varint_bytes(size) + size
