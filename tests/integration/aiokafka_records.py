"""Records written and read by aiokafka's clients, within bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord

from app.serializers.aiokafka import SerializingProducer
from tests.integration.chunk_records import write
from tests.integration.client_config import ON_GATE, Config, producing
from transforms.record import Record

_LONG_S = 30.0


async def produce(broker: str, store: Config, topic: str, values: list[bytes | None], partition: int = 0) -> None:
    """Writes values in order."""
    async with SerializingProducer(producing(broker, store)) as producer:
        for value in values:
            await producer.send_and_wait(topic, value, b"k", partition)


class Source:
    """A topic that is read, and what fills it."""

    def __init__(self, broker: str, topic: str) -> None:
        self.broker = broker
        self.topic = topic

    async def write(self, records: Sequence[Record], partition: int = 0) -> None:
        await write(self.broker, self.topic, records, partition)

    async def produce(self, values: list[bytes | None], partition: int = 0) -> None:
        await produce(self.broker, ON_GATE, self.topic, values, partition)


MakeSource = Callable[..., Source]


async def one(consumer: AIOKafkaConsumer) -> ConsumerRecord:
    """The next record."""
    return await asyncio.wait_for(consumer.getone(), _LONG_S)


async def becomes(condition: Callable[[], bool], what: str) -> None:
    """Waits for a condition, on the loop."""
    try:
        async with asyncio.timeout(_LONG_S):
            while not condition():  # noqa: ASYNC110  # a condition of several tasks or threads
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"waited in vain until {what}")


async def loop_turns() -> None:
    """Lets the other tasks go as far as they can without an answer of somebody else."""
    for _ in range(20):
        await asyncio.sleep(0)
