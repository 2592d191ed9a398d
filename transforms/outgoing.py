"""What is done with a record that is written: whether it goes as it is, compressed, to the store, or in chunks.

The first row that holds is the plan. A record's size is that of an uncompressed batch with it alone:

    the value is longer than the threshold, and there is a store    OFFLOAD
    the record is within the limit                                  WHOLE
    it will be compressed, and was not measured yet                 COMPRESSED
    there is a store, and the value is not empty                    OFFLOAD
    values are split, and this one is not empty, nor too long       CHUNKS
    anything else                                                   REFUSED

A record that compression did not bring within the limit is planned again with `compresses=False`; one that the store
did not take, or whose reference is over the limit, with `threshold_bytes=None`. Nulls and empty values are neither
stored nor split: there is nothing to take out of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from transforms.batch_size import is_within
from transforms.record import RecordLike


class Plan(Enum):
    """What is done with a record."""

    WHOLE = "it goes as it is"
    COMPRESSED = "it goes if its compression brings it within the limit"
    OFFLOAD = "its value goes to the store, and a reference in its place"
    CHUNKS = "it is split"
    REFUSED = "its topic would refuse it, and nothing helps"


@dataclass(frozen=True, slots=True)
class Policy:
    """What a writer can do with large records.

    Attributes:
        threshold_bytes: a longer value goes to the store, whatever the limit is; `math.inf` if the limit alone decides,
            None if there is no store.
        message_bytes: the longest value that is split; None if none is.
        compresses: whether the record will be compressed, and is over the limit only if that does not help.
        measure: the size of a record as it is sent, alone in a batch; None if it is sent as it is planned.
    """

    threshold_bytes: float | None = None
    message_bytes: int | None = None
    compresses: bool = False
    measure: Callable[[RecordLike], int] | None = None


def plan(record: RecordLike, limit_bytes: int | None, policy: Policy) -> Plan:
    """What is done with a record; see the table of this module.

    Args:
        record: as it would be sent.
        limit_bytes: the most bytes of an uncompressed batch with it alone; None if there is no limit.
        policy: of its writer.
    """
    size, threshold = len(record.value or b""), policy.threshold_bytes
    if threshold is not None and size > threshold:
        return Plan.OFFLOAD
    if limit_bytes is None:
        return Plan.WHOLE
    if is_within(record, limit_bytes) if policy.measure is None else policy.measure(record) <= limit_bytes:
        return Plan.WHOLE
    if policy.compresses:
        return Plan.COMPRESSED
    if size and threshold is not None:
        return Plan.OFFLOAD
    return Plan.CHUNKS if size and size <= (policy.message_bytes or 0) else Plan.REFUSED
