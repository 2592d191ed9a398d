"""Rates and averages of the last minute."""

from __future__ import annotations

import pytest

from app.kafka.average import Average


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


def test_rate_over_the_last_minute() -> None:
    """The rate is that of the last minute, and falls to nothing."""
    clock = Clock()
    rate = Average(clock)
    for _ in range(120):
        rate.add()
        clock.now_s += 0.5
    assert rate.per_second() == pytest.approx(2, rel=0.05)
    clock.now_s += 61
    assert rate.per_second() == 0
    rate.add()
    assert 0 < rate.per_second() < 0.1
