"""What was replayed of a partition, as a group remembers it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.deadletters.replay_offsets import ReplayedOffsets


@given(st.integers(0, 20), st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)), max_size=30))
def test_replayed_is_a_set_of_offsets(begin: int, ranges: list[tuple[int, int]]) -> None:
    """In whatever order offsets are added, those and no others are in it, also when it comes back from a commit."""
    replayed = ReplayedOffsets(begin)
    expected = set(range(begin))
    for start, length in ranges:
        replayed.add(start, start + length)
        expected.update(range(start, start + length))
    metadata = replayed.metadata() or ""
    former = (metadata or "wideload:replayed=") + ":0a1b2c3d"  # as it was written when replays had no transactions
    read = [ReplayedOffsets.parse(replayed.offset, each) for each in (metadata, former)]
    for each in (replayed, *read):
        assert each is not None
        assert {offset for offset in range(80) if offset in each} == expected
        assert each.offset == next(offset for offset in range(80) if offset not in expected)


def test_note_says_when_it_has_no_room() -> None:
    """Thousands of gaps in a row fit beside a commit; random ones come to an end, and are not cut."""
    regular, wild = ReplayedOffsets(), ReplayedOffsets()
    rng = random.Random(1)
    at = 0
    for number in range(20_000):
        regular.add(3 * number + 1, 3 * number + 2)
        at += rng.randrange(2, 10_000)
        wild.add(at, at + 1)
    assert len(regular.metadata() or "") in range(1, 4_097)
    assert wild.metadata() is None
    note = wild.metadata(limit=1_000_000)
    assert note is not None
    assert wild.metadata(limit=len(note)) == note
    assert wild.metadata(limit=len(note) - 1) is None


@pytest.mark.parametrize(
    "metadata",
    [
        "wideload:delivered=7",
        "wideload:replayed=!",
        "wideload:replayed=!:0a",
        "wideload:replayed=AAAA",
        "x" * 9,
        "wideload:replayed=ü",
    ],
)
def test_note_of_another_program(metadata: str) -> None:
    """Metadata that is not ours is none, and no error of another kind."""
    assert ReplayedOffsets.parse(5, metadata) is None
