"""What a cluster says of topics: which timestamps one takes, and while they come and go, on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from app.config.client import embedded_client_settings
from app.kafka.clients import admin
from app.kafka.topics import NEWEST, OLDEST, timestamp_bound_ms, topics
from tests.integration.operations import Operations
from tests.integration.way import MakeTopic
from tests.integration.worker_process import until

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
    """By the properties of Kafka up to 3.5, from 4.0 on, and of both between; brokers that set timestamps take all."""
    assert (timestamp_bound_ms(config, OLDEST), timestamp_bound_ms(config, NEWEST)) == (oldest_ms, newest_ms)
    assert timestamp_bound_ms({**config, "message.timestamp.type": "LogAppendTime"}, NEWEST) is None


@pytest.mark.integration
async def test_a_topic_that_is_deleted_meanwhile(
    broker: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that goes between two questions is one that does not exist, and no matter of rights."""
    stays, goes = make_topic(1, **{"max.message.bytes": 7_000}), make_topic(1)
    operations = Operations(broker)
    async with admin(embedded_client_settings({"bootstrap.servers": broker})) as connection:
        send = connection.send

        async def describe_and_delete(*request: Any) -> Any:
            found = await send(*request)
            await asyncio.to_thread(operations.delete_topic, goes)
            await asyncio.to_thread(until, lambda: operations.topic(goes) is None, "it is gone")
            return found

        monkeypatch.setattr(connection, "send", describe_and_delete)
        found = await topics(connection, [stays, goes])
    assert {name: topic.max_message_bytes for name, topic in found.items()} == {stays: 7_000}
