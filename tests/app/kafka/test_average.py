"""Rates and averages of the last minute, and what a producer counts of its batches."""

from __future__ import annotations

import pytest

from app.kafka.average import Average
from app.kafka.batches.numbers import BatchNumbers
from tests.app.kafka.wired import Clock


def test_average_and_rate_forget_after_a_minute() -> None:
    """What was added more than a minute ago counts neither in the average nor in the rate."""
    clock = Clock()
    average = Average(clock)
    seen = []
    for numbers, passes_s in (((), 0), ((1.0, 2.0), 30), ((9.0,), 0), ((), 31), ((), 60)):
        for number in numbers:
            average.add(number)
        clock.now_s += passes_s
        seen.append((average.average(), average.per_second()))
    assert seen == [
        (None, 0.0),
        (1.5, pytest.approx(2 / 30)),
        (4.0, pytest.approx(3 / 30)),
        (9.0, pytest.approx(1 / 60)),
        (None, 0.0),
    ]


def test_average_of_a_busy_second_is_one_entry() -> None:
    """However much is added, what is kept does not grow with it."""
    average = Average(Clock())
    for _ in range(1_000):
        average.add(2.0)
    assert (len(average._seconds), average.average(), average.per_second()) == (1, 2.0, 1_000.0)


def test_numbers_of_topics_are_apart() -> None:
    """Compression and errors are counted by topic and over all, splits and batches over all."""
    numbers = BatchNumbers(Clock())
    numbers.delivered("a", wire_bytes=10, uncompressed_bytes=100, records=1)
    numbers.delivered("b", wire_bytes=20, uncompressed_bytes=100, records=3)
    numbers.failed("a", 3)
    numbers.failed("b", 7)
    numbers.split()
    numbers.estimates.observe("a", "lz4", 0.1)
    assert numbers.batch_total == 2
    assert numbers.page() == {
        "batch-split-rate": 1.0,
        "batch-split-total": 1,
        "batch-size-avg": 15.0,
        "records-per-request-avg": 2.0,
        "compression-rate-avg": pytest.approx(0.15),
        "record-error-rate": 10.0,
        "record-error-total": 10,
        "topics": {
            name: {
                "compression-rate": rate,
                "compression-estimates": estimates,
                "record-error-rate": float(errors),
                "record-error-total": errors,
            }
            for name, rate, estimates, errors in (("a", 0.1, {"lz4": 0.995}, 3), ("b", 0.2, {}, 7))
        },
    }
