"""Claims: headers by which a reader takes a record for a reference or a chunk of ours, whoever has written it.

A record may have them before `offload` has seen it. Then its writer has made it a reference by itself, or wants readers
to take it for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from transforms.chunk import is_chunk
from transforms.record import Header, RecordLike
from transforms.record_batch import RecordBatch
from transforms.reference import KEY, VALUE, is_reference

__all__ = ["CLAIM_PREFIX", "ON_REFERENCE", "OnReference", "claim", "may_hold_claims"]

OnReference = Literal["offload", "fail", "pass"]
"""What `offload` does with a record that is a reference already."""
ON_REFERENCE: tuple[OnReference, ...] = get_args(OnReference)

CLAIM_PREFIX = VALUE.flag
"""So the names of all headers of references and chunks begin."""

Claim = Literal["value", "key", "chunk"]


def claim(record: RecordLike) -> Claim | None:
    """What readers take the record for: a reference in place of its value or key, or a chunk; None for neither."""
    headers = record.headers
    for name, _ in headers:
        if name.startswith(CLAIM_PREFIX):
            return _claim(record, headers)
    return None


def _claim(record: RecordLike, headers: Sequence[Header]) -> Claim | None:
    if is_chunk(headers):
        return "chunk"
    if record.key is not None and is_reference(headers, KEY):
        return "key"
    return "value" if record.value is not None and is_reference(headers) else None


def may_hold_claims(batch: RecordBatch) -> bool:
    """False if no record of the batch has such a header; True if that cannot be told cheaply."""
    return batch.may_hold(CLAIM_PREFIX.encode())
