"""Which timestamps a topic takes, by its properties: those of Kafka up to 3.5, from 4.0 on, and of both between."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from app.kafka.topics import NEWEST, OLDEST, timestamp_bound_ms

MOST = 2**63 - 1
NONE = str(MOST)
EITHER_WAY = "message.timestamp.difference.max.ms"


# Each was tried with a broker: 2.8.2, 3.9.2, 4.4.0.
@pytest.mark.parametrize(
    ("config", "oldest_ms", "newest_ms"),
    [
        ({EITHER_WAY: NONE}, MOST, MOST),
        ({EITHER_WAY: "5"}, 5, 5),
        ({EITHER_WAY: "5", OLDEST: NONE, NEWEST: NONE}, 5, 5),
        ({EITHER_WAY: "5", OLDEST: NONE, NEWEST: "7"}, 5, 7),
        ({EITHER_WAY: "7", OLDEST: "5", NEWEST: NONE}, 5, 7),
        ({EITHER_WAY: NONE, OLDEST: NONE, NEWEST: NONE}, MOST, MOST),
        ({OLDEST: NONE, NEWEST: "3600000"}, MOST, 3_600_000),
        ({OLDEST: "0", NEWEST: "0"}, 0, 0),
        ({}, None, None),
    ],
)
def test_bounds_of_timestamps(config: Mapping[str, str], oldest_ms: int | None, newest_ms: int | None) -> None:
    """The older property holds for each newer one that is not set; brokers that set timestamps take all.

    No bound is one too: brokers refuse a timestamp that is further from now, as -2**63 is.
    """
    assert (timestamp_bound_ms(config, OLDEST), timestamp_bound_ms(config, NEWEST)) == (oldest_ms, newest_ms)
    assert timestamp_bound_ms({**config, "message.timestamp.type": "LogAppendTime"}, NEWEST) is None
