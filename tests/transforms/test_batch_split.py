"""Batches in two parts: nothing lost, nothing moved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import batches
from transforms.batch_size import record_bytes
from transforms.batch_split import split, split_index
from transforms.record import Record


@given(batches(2, 30))
def test_split_keeps_every_record(batch: list[Record]) -> None:
    """Both parts have a record, and together they are the batch: order, timestamps, headers, nulls."""
    first, second = split(batch)
    assert first
    assert second
    assert [*first, *second] == batch


@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=200))
def test_split_index_is_nearest_to_the_half(sizes: list[int]) -> None:
    """No other place would make the two parts more equal."""
    index = split_index(sizes)
    away = [abs(sum(sizes) - 2 * sum(sizes[:at])) for at in range(1, len(sizes))]
    assert away[index - 1] == min(away)


@given(batches(1, 20), st.integers(80, 400))
def test_split_as_often_as_refused(batch: list[Record], limit: int) -> None:
    """However often parts are refused and split again, each record arrives or is refused alone, once and in order."""
    arrived: list[Record] = []
    parts = [batch]
    splits = 0
    while parts:
        part = parts.pop(0)
        if len(part) > 1 and sum(map(record_bytes, part)) > limit:
            parts[:0] = map(list, split(part))
            splits += 1
        else:
            arrived += part
    assert arrived == batch
    assert splits < len(batch)


@pytest.mark.parametrize("sizes", [[], [5]])
def test_split_index_of_fewer_than_two(sizes: list[int]) -> None:
    """What is no batch of several is a mistake of the caller."""
    with pytest.raises(ValueError, match=f"{len(sizes)} records"):
        split_index(sizes)


def test_split_index_of_one_large_record() -> None:
    """A record as large as all others together stands alone."""
    assert split_index([1_000, 1, 1, 1]) == 1
    assert split_index([1, 1, 1, 1_000]) == 3
    assert split_index([0, 0, 0]) in (1, 2)
