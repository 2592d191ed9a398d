"""Timestamps that Spark can hold, and others."""

from __future__ import annotations

import pyarrow as pa
import pytest

from jobs.records.arrow import LAST_MS, holds, timestamps

MICROSECONDS = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize("timestamp_ms", [0, -1, 1_700_000_000_000_000, LAST_MS, -LAST_MS])
def test_a_timestamp_that_fits(timestamp_ms: int) -> None:
    """Whatever fits into microseconds is kept, however far away it is."""
    assert holds(timestamp_ms)
    assert timestamps([timestamp_ms], MICROSECONDS).cast(pa.int64()).to_pylist() == [timestamp_ms * 1_000]


@pytest.mark.parametrize("timestamp_ms", [LAST_MS + 1, -LAST_MS - 1, 1_700_000_000_000_000_000, 2**63 - 1, -(2**63)])
def test_a_timestamp_that_does_not_fit(timestamp_ms: int) -> None:
    """It is null, and its neighbours are as they are."""
    assert not holds(timestamp_ms)
    assert timestamps([5, timestamp_ms], MICROSECONDS).cast(pa.int64()).to_pylist() == [5_000, None]
