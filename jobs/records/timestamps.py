"""Which timestamps Spark can hold: Kafka has any number of milliseconds, Spark has as many microseconds."""

from __future__ import annotations

__all__ = ["LAST_MS", "bad_timestamp", "holds"]

LAST_MS = (2**63 - 1) // 1_000
"""The last millisecond that a timestamp of Spark can hold, in the year 294,247; the first is as far before 1970."""


def holds(timestamp_ms: int) -> bool:
    """Whether Spark can hold a timestamp of Kafka."""
    return -LAST_MS <= timestamp_ms <= LAST_MS


def bad_timestamp(timestamp_ms: int) -> str:
    """What is wrong with a timestamp that Spark cannot hold."""
    return (
        f"the timestamp is {timestamp_ms} ms, out of Spark's range of {LAST_MS} ms before and after 1970 (is it in "
        "another unit?)"
    )
