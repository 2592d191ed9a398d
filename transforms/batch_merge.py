"""Merging: the records of several small batches in one batch, without reading keys, values and headers.

Only the length and the two deltas of a record change (`transforms/record_format.py`). The rest is copied in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence

from transforms.batch_size import BATCH_OVERHEAD_BYTES
from transforms.errors import MalformedError
from transforms.record_batch import RecordBatch, rebuilt
from transforms.record_format import number, number_bytes, wrapped

_LEAST_CONTINUED = 0x80  # a byte of a varint that is at least this is followed by another one
_SHORT = [number_bytes(each) for each in range(1 << 14)]
"""The varints of small numbers, by number: a lookup takes a tenth of the time."""
_SHORT_ZIGZAGS = 2 * len(_SHORT)
_LEAST, _MOST = -(2**63), 2**63 - 1


def merge(batches: Sequence[RecordBatch]) -> RecordBatch:
    """One batch with the records of all, in order; its base offset is that of the first.

    The offset deltas are consecutive across the batches, whatever gaps the source has.

    Args:
        batches: one or more, each uncompressed and `appendable`.

    Raises:
        MalformedError: the records of a batch break the format.
    """
    first = batches[0].first_timestamp
    merged = bytearray(BATCH_OVERHEAD_BYTES)
    index = 0
    for batch in batches:
        _append(merged, batch, index, batch.first_timestamp - first)
        index += batch.count
    return rebuilt(batches[0], merged, index, max(batch.latest_timestamp for batch in batches))


def _append(merged: bytearray, batch: RecordBatch, index: int, shift: int) -> None:
    """Appends the records of a batch: the first gets `index`, and `shift` is added to their timestamp deltas."""
    # About a microsecond per record, to which each line contributes.
    data = bytes(batch.data)
    at, size = BATCH_OVERHEAD_BYTES, len(data)
    short, most, shifted = _SHORT, len(_SHORT), shift << 1
    plain = 0 <= shifted < _SHORT_ZIGZAGS
    try:
        for order in range(index, index + batch.count):
            length = data[at]
            if length < _LEAST_CONTINUED:
                begin = at + 1
            elif data[at + 1] < _LEAST_CONTINUED:
                length = length & 0x7F | data[at + 1] << 7
                begin = at + 2
            else:
                long, begin = number(data, at, size)
                length = long << 1
            end = begin + (length >> 1)
            delta = data[begin + 1]
            if plain and not delta & 0x81 and delta + shifted < _SHORT_ZIGZAGS:
                stamp, rest = short[(delta + shifted) >> 1], begin + 2
            elif plain and delta & 0x81 == _LEAST_CONTINUED and data[begin + 2] < _LEAST_CONTINUED:
                both = (delta & 0x7F | data[begin + 2] << 7) + shifted >> 1
                stamp, rest = short[both] if both < most else number_bytes(both), begin + 3
            else:
                since, rest = number(data, begin + 1, size)
                both = since + shift
                stamp = number_bytes(both if _LEAST <= both <= _MOST else wrapped(both))
            while data[rest] >= _LEAST_CONTINUED:  # the offset delta
                rest += 1
            rest += 1
            if length & 1 or not rest < end <= size or data[begin]:
                raise MalformedError("record", f"a length of {length >> 1:,}", f"up to {size - begin:,}")
            place = short[order] if order < most else number_bytes(order)
            deltas = stamp + place
            length = 1 + len(deltas) + end - rest
            merged += short[length] if length < most else number_bytes(length)
            merged += b"\0"
            merged += deltas
            merged += data[rest:end]
            at = end
    except IndexError as exc:
        raise MalformedError("records of a batch", f"an end at byte {size:,}", f"{batch.count:,} records") from exc
    if at != size:
        raise MalformedError("records of a batch", f"{size - at:,} bytes more", f"{batch.count:,} records")
