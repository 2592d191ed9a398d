"""What a producer counts of its batches."""

from __future__ import annotations

import pytest

from app.kafka.batches.numbers import BatchNumbers


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


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
            "a": {
                "compression-rate": 0.1,
                "compression-estimates": {"lz4": 0.995},
                "record-error-rate": 3.0,
                "record-error-total": 3,
            },
            "b": {
                "compression-rate": 0.2,
                "compression-estimates": {},
                "record-error-rate": 7.0,
                "record-error-total": 7,
            },
        },
    }
