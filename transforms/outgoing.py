"""How a record is written: unchanged, compressed, as a reference, or in chunks.

The first row that applies is the plan. A record's size is that of an uncompressed batch with it alone:

    the value is longer than the threshold, and there is a store    OFFLOAD
    the record is within the limit                                  WHOLE
    it will be compressed, and has not been measured yet            COMPRESSED
    there is a store, and the value is not empty                    OFFLOAD
    values are split, and this one is neither empty nor too long    CHUNKS
    anything else                                                   REFUSED

A record that compression did not bring within the limit is planned again without `compresses`; one that the store did
not accept, or whose reference is over the limit, without a threshold. Nulls and empty values are neither stored nor
split, because they contain nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from transforms.batch_size import is_within
from transforms.record import RecordLike


class Plan(Enum):
    """How a record is sent."""

    WHOLE = "it is sent unchanged"
    COMPRESSED = "it is sent if compression brings it within the limit"
    OFFLOAD = "its value is stored, and a reference is sent in its place"
    CHUNKS = "it is split"
    REFUSED = "its topic would refuse it in any form"


WHOLE, COMPRESSED, OFFLOAD, CHUNKS, REFUSED = Plan


def plan(
    record: RecordLike,
    limit_bytes: int | None,
    threshold_bytes: float | None = None,
    message_bytes: int | None = None,
    compresses: bool = False,  # noqa: FBT001, FBT002  # by position, as the worker asks for many a record
    measure: Callable[[RecordLike], int] | None = None,
) -> Plan:
    """The plan for a record; see the table of this module.

    Args:
        record: to be written.
        limit_bytes: the most bytes of an uncompressed batch with it alone; None if there is no limit.
        threshold_bytes: a longer value is stored, whatever the limit is; `math.inf` if the limit alone decides,
            None if there is no store.
        message_bytes: the longest value that is split; None if none is.
        compresses: whether the record will be compressed, and is too large only if that does not help.
        measure: the size of a record, alone in a batch, as it is sent; None if it is sent as it is.
    """
    size = len(record.value or b"")
    if threshold_bytes is not None and size > threshold_bytes:
        return OFFLOAD
    if limit_bytes is None:
        return WHOLE
    if is_within(record, limit_bytes) if measure is None else measure(record) <= limit_bytes:
        return WHOLE
    if compresses:
        return COMPRESSED
    if size and threshold_bytes is not None:
        return OFFLOAD
    return CHUNKS if size and size <= (message_bytes or 0) else REFUSED
