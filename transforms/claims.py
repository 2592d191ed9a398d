"""Claims: headers by which a reader takes a record for a reference or a chunk of ours, no matter who has written it.

A record may have them before `offload` or `chunk` has seen it. Then its writer has made it a reference by itself, or
wants readers to take it for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from transforms.bakdata import KEY_FLAG, refers_by_key
from transforms.chunk import is_chunk
from transforms.record import Header, RecordLike
from transforms.record_batch import RecordBatch
from transforms.reference import KEY, VALUE, is_reference

OnReference = Literal["offload", "fail", "pass"]
"""What `offload` does with a record that is a reference already; `chunk` refuses it, unless it may `pass`."""
ON_REFERENCE: tuple[OnReference, ...] = get_args(OnReference)

CLAIM_PREFIX = VALUE.flag
"""So the names of all headers of references and chunks begin."""
_PREFIXES = (CLAIM_PREFIX, KEY_FLAG)

Claim = Literal["value", "key", "chunk"]
"""What readers would take a record for: a reference in place of its value or key, or a chunk."""


def claim(record: RecordLike, *, marked: bool = False, split: bool = False) -> Claim | None:
    """What readers take the record for: a reference in place of its value or key, or a chunk; None for neither.

    Args:
        record: whose headers are looked at.
        marked: whether it goes to a topic of one of bakdata's formats. There the mark behind a value says what it is,
            whatever the headers before it are; and bakdata's readers follow a key that has their own header.
        split: whether it is forwarded as chunks. Readers put these together, and the record's own headers come back as
            they were: so it is not a chunk for them, but it may be a reference.
    """
    headers = record.headers
    prefix = _PREFIXES if marked else CLAIM_PREFIX
    for name, _ in headers:
        if name.startswith(prefix):
            return _claim(record, headers, marked=marked, split=split)
    return None


def _claim(record: RecordLike, headers: Sequence[Header], *, marked: bool, split: bool) -> Claim | None:
    if not split and is_chunk(headers):
        return "chunk"
    if record.key is not None and (is_reference(headers, KEY) or (marked and refers_by_key(headers))):
        return "key"
    return "value" if not marked and record.value is not None and is_reference(headers) else None


def may_hold_claims(batch: RecordBatch) -> bool:
    """False if no record of the batch has such a header; True if finding out would be expensive."""
    return batch.may_hold(CLAIM_PREFIX.encode())
