"""The lengths of records in an uncompressed batch, read without creating objects for the records.

Each record starts with its length, a zigzag varint of 32 bits (`transforms/record_format.py`), so everything but the
lengths is skipped. Lengths are untrusted: a scan ends at the first invalid one.
"""

from __future__ import annotations

from collections.abc import Sequence

from transforms.errors import MalformedError
from transforms.record_format import LEAST_HEADER_BYTES, MAX_HEADERS, header_count

_MOST_LENGTH_BYTES = 5
# Brokers ignore the byte of the attributes; a client that reads a varint there would misread all following fields.
_MOST_ATTRIBUTES = 0x80
_LEAST_CROWDED_BYTES = MAX_HEADERS * LEAST_HEADER_BYTES  # no shorter record has more headers


def is_crowded(records: bytes | memoryview, count: int) -> bool:
    """True if one of `count` uncompressed records has more than `MAX_HEADERS`, or this cannot be determined.

    It creates no headers, and takes a third of a microsecond per record.
    """
    if len(records) <= _LEAST_CROWDED_BYTES:
        return False
    large = longer(records, count, _LEAST_CROWDED_BYTES)
    try:
        return large is None or any(header_count(records, at)[0] > MAX_HEADERS for at in large)
    except MalformedError:
        return True


def longer(records: bytes | memoryview, count: int, limit: int) -> Sequence[int] | None:
    """The start of each of `count` records that, including its length, has more than `limit` bytes.

    None if a length is invalid, or readers would disagree about the fields of a record.
    """
    found: list[int] = []
    at, end = 0, len(records)
    for _ in range(count):
        begin, size, shift = at, 0, 0
        while True:
            if at == end or shift > 7 * (_MOST_LENGTH_BYTES - 1):
                return None
            octet = records[at]
            at += 1
            size |= (octet & 0x7F) << shift
            if octet < 0x80:  # noqa: PLR2004  # the last one
                break
            shift += 7
        if size & 1:
            return None  # below 0
        if at < end and records[at] >= _MOST_ATTRIBUTES:
            return None
        at += size >> 1
        if at > end:
            return None
        if at - begin > limit:
            found.append(begin)
    return found if at == end else None
