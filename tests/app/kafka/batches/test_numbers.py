"""Rates and averages of the last minute."""

from __future__ import annotations

import pytest

from app.kafka.batches.numbers import Average, BatchNumbers


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_average_forgets_after_a_minute() -> None:
    """What was added more than a minute ago counts neither in the average nor in the rate."""
    clock = Clock()
    average = Average(clock)
    assert average.average() is None
    average.add(1.0)
    average.add(2.0)
    clock.now_s += 30
    average.add(9.0)
    assert average.average() == 4.0
    assert average.per_second() == pytest.approx(3 / 30)
    clock.now_s += 31
    assert average.average() == 9.0
    assert average.per_second() == pytest.approx(1 / 60)
    clock.now_s += 60
    assert average.average() is None
    assert average.per_second() == 0.0


def test_average_of_a_busy_second_is_one_entry() -> None:
    """However much is added, what is kept does not grow with it."""
    average = Average(Clock())
    for _ in range(1_000):
        average.add(2.0)
    assert len(average._seconds) == 1
    assert average.average() == 2.0
    assert average.per_second() == 1_000.0


def test_numbers_of_topics_are_apart() -> None:
    """Compression and errors are counted by topic and over all, splits and batches over all."""
    numbers = BatchNumbers(Clock())
    numbers.delivered("a", wire_bytes=10, uncompressed_bytes=100, records=1)
    numbers.delivered("b", wire_bytes=20, uncompressed_bytes=100, records=3)
    numbers.failed("a", 3)
    numbers.failed("b", 7)
    numbers.split()
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
            "a": {"compression-rate": 0.1, "record-error-rate": 3.0, "record-error-total": 3},
            "b": {"compression-rate": 0.2, "record-error-rate": 7.0, "record-error-total": 7},
        },
    }
