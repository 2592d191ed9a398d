"""What is reserved for a record that is inflated."""

from __future__ import annotations

from transforms.errors import TransformError
from transforms.inflate import Inflate
from transforms.record import RecordLike


def reserved_bytes(inflate: Inflate, record: RecordLike) -> int:
    """Bytes for the payloads of a record; 0 if it is refused."""
    try:
        return inflate.reserve_bytes(inflate.read(record))
    except TransformError:
        return 0
