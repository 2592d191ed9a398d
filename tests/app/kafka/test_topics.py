"""What a cluster says of topics while they come and go, on a real broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.config.client import embedded_client_settings
from app.kafka.clients import admin
from app.kafka.topics import topics
from tests.integration.operations import Operations
from tests.integration.way import MakeTopic
from tests.integration.worker_process import until

pytestmark = pytest.mark.integration


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
