"""Timestamps that Spark can hold, and others."""

from __future__ import annotations

import pyarrow as pa
import pytest

from jobs.records.arrow import LAST_MS, holds, timestamps


@pytest.mark.parametrize("sign", [1, -1])
def test_timestamps(sign: int) -> None:
    """Whatever fits into microseconds is kept, however far away it is; what does not is null."""
    fits, others = [0, 1, 1_700_000_000_000_000, LAST_MS], [LAST_MS + 1, 1_700_000_000_000_000_000, 2**63 - 1]
    millis = [sign * each for each in (*fits, *others)]
    assert [holds(each) for each in millis] == [True] * 4 + [False] * 3
    found = timestamps(millis, pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    assert found == [*(each * 1_000 for each in millis[:4]), None, None, None]
