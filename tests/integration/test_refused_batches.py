"""Batches that a real broker refuses as too large go in parts, with any aiokafka producer."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError

from app.kafka.producer import RefusedBatches
from tests.integration.topics import Found, read_all
from tests.integration.way import MakeTopic

LIMIT = 5_000
SMALL_TOPIC: dict[str, Any] = {"max.message.bytes": LIMIT}


def value_of(seed: int, size: int = 1_500) -> bytes:
    """Bytes that do not compress."""
    return random.Random(seed).randbytes(size)


async def log_of(broker: str, topic: str) -> list[Found]:
    """The records of the topic's partition."""
    return (await asyncio.to_thread(read_all, broker, topic))[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"enable_idempotence": True},
        {"enable_idempotence": True, "compression_type": "zstd"},
        {"acks": 1},
        {"transactional_id": "refused"},
    ],
    ids=["idempotent", "compressed", "plain", "transactional"],
)
async def test_halves_until_each_fits(broker: str, make_topic: MakeTopic, settings: dict[str, Any]) -> None:
    """The log has each record once, in order, where its future says, as it was sent; nothing fails.

    `flush` and the commit of a transaction wait for the halves.
    """
    topic = make_topic(**SMALL_TOPIC)
    refused: list[str] = []
    producer = AIOKafkaProducer(bootstrap_servers=broker, linger_ms=50, **settings)
    RefusedBatches(producer, 40.0, refused.append, lambda _: None)
    async with producer:
        futures = []
        for turn in range(3):
            if "transactional_id" in settings:
                await producer.begin_transaction()
            for number in range(turn * 10, turn * 10 + 10):
                headers = [("n", b"%d" % number)]
                stamp = 1_700_000_000_000 + number
                futures.append(await producer.send(topic, value_of(number), b"k%d" % number, 0, stamp, headers))
            if "transactional_id" in settings:
                await producer.commit_transaction()
            else:
                await producer.flush()
            assert all(future.done() for future in futures)
    results = [future.result() for future in futures]
    log = await log_of(broker, topic)
    assert [(each.key, each.value, each.headers, each.timestamp) for each in log] == [
        (b"k%d" % n, value_of(n), (("n", b"%d" % n),), 1_700_000_000_000 + n) for n in range(30)
    ]
    assert [each.offset for each in results] == [each.offset for each in log]
    assert refused.count(topic) >= 3


@pytest.mark.parametrize("idempotent", [True, False])
async def test_one_that_is_too_large_alone(broker: str, make_topic: MakeTopic, idempotent: bool) -> None:  # noqa: FBT001
    """Only its future fails; those before and behind it are in the log, and so is what is sent later."""
    topic = make_topic(**SMALL_TOPIC)
    sizes = [1_500, 1_500, 6_000, 1_500, 1_500]
    producer = AIOKafkaProducer(bootstrap_servers=broker, linger_ms=50, enable_idempotence=idempotent)
    settled: list[asyncio.Future[Any]] = []
    RefusedBatches(producer, 40.0, lambda _: None, settled.append)
    async with producer:
        await producer.send_and_wait(topic, b"begin")  # a broker takes any number from who has sent it nothing
        futures = [await producer.send(topic, value_of(n, size)) for n, size in enumerate(sizes)]
        found = await asyncio.gather(*futures, return_exceptions=True)
        await producer.send_and_wait(topic, b"end")
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(topic, value_of(7, 6_000))
        await producer.send_and_wait(topic, b"end")
    assert [type(each) is MessageSizeTooLargeError for each in found] == [False, False, True, False, False]
    assert [each.value for each in await log_of(broker, topic)] == [
        b"begin",
        *(value_of(n, size) for n, size in enumerate(sizes) if size != 6_000),
        b"end",
        b"end",
    ]
    assert all(future.exception() is None for future in settled)


async def test_a_batch_of_the_application_is_not_split(broker: str, make_topic: MakeTopic) -> None:
    """`send_batch` has one future for all its records; it fails, and the partition takes the next batch."""
    topic = make_topic(**SMALL_TOPIC)
    producer = AIOKafkaProducer(bootstrap_servers=broker, enable_idempotence=True)
    RefusedBatches(producer, 40.0, lambda _: None, lambda _: None)
    async with producer:
        await producer.send_and_wait(topic, b"begin")
        batch = producer.create_batch()
        for number in range(5):
            batch.append(key=None, value=value_of(number), timestamp=None)
        batch.close()
        with pytest.raises(MessageSizeTooLargeError):
            await (await producer.send_batch(batch, topic, partition=0))
        await producer.send_and_wait(topic, b"end")
    assert [each.value for each in await log_of(broker, topic)] == [b"begin", b"end"]
