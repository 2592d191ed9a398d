"""Where to split a batch that was refused (KIP-126: "split it into two and send it again")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from transforms.batch_size import record_bytes
from transforms.record import RecordLike

R = TypeVar("R", bound=RecordLike)


def split_index(sizes: Sequence[int]) -> int:
    """The number of records in the first part. Both parts get at least one, and about the same number of bytes.

    Args:
        sizes: bytes of each record, in order; at least two.

    Raises:
        ValueError: there are fewer than two records.
    """
    if len(sizes) < 2:  # noqa: PLR2004
        raise ValueError(f"{len(sizes)} records cannot be split in two")
    total = sum(sizes)
    before = sizes[0]
    for index in range(1, len(sizes) - 1):
        # This record belongs to the first part only if it brings that closer to half.
        if abs(total - 2 * (before + sizes[index])) >= abs(total - 2 * before):
            return index
        before += sizes[index]
    return len(sizes) - 1


def split(records: Sequence[R]) -> tuple[Sequence[R], Sequence[R]]:
    """The records in two parts, in order.

    Raises:
        ValueError: there are fewer than two.
    """
    index = split_index([record_bytes(record) for record in records])
    return records[:index], records[index:]
