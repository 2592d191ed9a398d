"""The estimate of KIP-126: a table worked out by hand, its bounds, and where a batch is full by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transforms.ratio import (
    DETERIORATE_STEP,
    IMPROVING_STEP,
    INITIAL_ESTIMATE,
    Estimates,
    estimated_bytes,
    next_estimate,
    room_bytes,
)

# observed, the estimate behind it; worked out by hand from the formulas, beginning at 1.0
TABLE = [
    (0.100, 0.995),  # better: one step of 0.005
    (0.100, 0.990),
    (0.990, 0.990),  # as estimated: stays
    (0.988, 0.988),  # better by less than a step: to what was seen, not below
    (0.990, 1.038),  # worse by less than a step: a whole step of 0.05
    (0.200, 1.033),
    (0.200, 1.028),
    (1.000, 1.023),
]


def test_estimate_table() -> None:
    """The estimate follows the document's formulas to the digit."""
    estimates = Estimates()
    assert estimates.of("t", "zstd") == INITIAL_ESTIMATE
    for observed, expected in TABLE:
        assert estimates.observe("t", "zstd", observed) == pytest.approx(expected)


def test_estimate_far_worse_follows_at_once() -> None:
    """A batch far worse than estimated sets the estimate to what was seen: 1/10 of one topic, then 1/5."""
    assert next_estimate(0.1, 0.2) == pytest.approx(0.2)
    assert next_estimate(0.1, 0.12) == pytest.approx(0.15)


def test_estimate_improves_by_a_tenth_in_twenty_batches() -> None:
    """The document's "about 20 batches to decrease compression ratio by 0.1": 0.005 is the improving step."""
    estimate = INITIAL_ESTIMATE
    for _ in range(20):
        estimate = next_estimate(estimate, 0.1)
    assert estimate == pytest.approx(0.9)


def test_estimate_nine_better_pay_for_one_worse() -> None:
    """Nine batches that improve it do not outweigh one that deteriorates it: 10:1."""
    estimate = 0.5
    for _ in range(9):
        estimate = next_estimate(estimate, 0.3)
    assert next_estimate(estimate, 0.46) > 0.5
    assert pytest.approx(10) == DETERIORATE_STEP / IMPROVING_STEP


def test_estimates_of_topics_and_codecs_are_independent() -> None:
    """What one topic or codec does moves no other, nor does a reset."""
    estimates = Estimates()
    for _ in range(100):
        estimates.observe("a", "gzip", 0.1)
        estimates.observe("a", "lz4", 0.2)
    estimates.observe("b", "gzip", 0.9)
    assert estimates.of("a", "gzip") == pytest.approx(0.5)
    assert estimates.of("b", "gzip") == pytest.approx(0.995)
    estimates.reset("a", "gzip")
    assert estimates.of("a", "gzip") == INITIAL_ESTIMATE
    assert estimates.of("a", "lz4") == pytest.approx(0.5)
    assert estimates.of("b", "gzip") == pytest.approx(0.995)


@given(st.lists(st.floats(0.001, 2.0), max_size=300))
def test_estimate_is_bounded(observed: list[float]) -> None:
    """Above 0, never below the best ratio seen, never over the worst one (or the start) and a step."""
    estimate = INITIAL_ESTIMATE
    for index, ratio in enumerate(observed):
        before, estimate = estimate, next_estimate(estimate, ratio)
        seen = [INITIAL_ESTIMATE, *observed[: index + 1]]
        assert min(seen) <= estimate <= max(seen) + DETERIORATE_STEP
        assert estimate >= min(ratio, before)
        assert estimate >= before - IMPROVING_STEP - 1e-12


@given(st.integers(100, 2**31 - 1), st.floats(0.0001, 2.0))
def test_room_is_the_most_that_fits(batch_bytes: int, estimate: float) -> None:
    """A batch is full where estimate × uncompressed × 1.05 reaches the batch size, and not before."""
    room = room_bytes(batch_bytes, estimate)
    assert estimated_bytes(room, estimate) <= batch_bytes
    assert estimated_bytes(room + 2, estimate) > batch_bytes * (1 - 1e-9)


def test_room_where_floats_round_up() -> None:
    """A byte less where the product comes out above the batch size; not where it is the very size."""
    estimate = 0.0212211283835414
    assert (room_bytes(1_821_067_375, estimate), room_bytes(4_410, 1.0)) == (81_727_505_229, 4_200)


def test_room_of_the_documents_example() -> None:
    """Batches of 1 MB at 1/10: nine messages of 1 MB and not ten, for the factor."""
    assert room_bytes(1_000_000, 0.1) // 1_000_000 == 9
