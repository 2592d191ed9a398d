"""The sender of commands where a broker does not answer."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import TopicPartition

from app.config.settings import ClientSettings
from app.kafka.sender import SendError, find_topic, open_sender
from tests.integration.topics import read_all
from tests.integration.way import MakeTopic
from transforms.record import Record


async def test_a_broker_that_does_not_answer_ends_the_sender(broker: str, make_topic: MakeTopic) -> None:
    """After the delivery timeout: the error names the first message, those before count, and nothing waits longer."""
    client, name = ClientSettings(broker), make_topic()
    topic = await find_topic(client, name)
    async with asyncio.timeout(30):
        async with open_sender(client, topic, delivery_timeout_s=2.0) as sender:
            await sender.send(Record(b"k", b"before"), "before")
            await sender.drain()
            sender._batches.producer._sender._muted_partitions.add(TopicPartition(name, 0))  # as while it is silent
            await sender.send(Record(b"k", b"lost"), "lost")
            await sender.send(Record(b"k", b"behind"), "behind")
            with pytest.raises(SendError, match=r"^lost: .*not acknowledged within the 2 s of delivery\.timeout\.ms"):
                await sender.drain()
            with pytest.raises(SendError, match=r"^lost: "):
                await sender.send(Record(b"k", b"more"), "more")
    assert sender.sent.messages == 1
    assert [record.value for record in (await asyncio.to_thread(read_all, broker, name))[0]] == [b"before"]
