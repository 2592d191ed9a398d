"""The controls of an aiokafka consumer, on a consumer that has no cluster."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import NoOffsetForPartitionError

from app.kafka.consumer_controls import ConsumerControls
from app.kafka.delivering import idle_s

PLACE = TopicPartition("t", 0)


@pytest.fixture
async def consumer() -> AsyncIterator[AIOKafkaConsumer]:
    """Has not been started."""
    consumer = AIOKafkaConsumer()
    yield consumer
    await consumer.stop()


async def test_position(consumer: AIOKafkaConsumer) -> None:
    """It is known once there is one; nothing waits for it."""
    controls = ConsumerControls(consumer)
    assert (controls.assignment, controls.position(PLACE)) == (None, None)
    consumer.assign([PLACE])
    assert controls.position(PLACE) is None
    controls.assignment.state_value(PLACE).seek(5)
    assert controls.position(PLACE) == 5
    assert controls.position(TopicPartition("t", 1)) is None


async def test_idle_time_counts_after_a_poll_that_raised(consumer: AIOKafkaConsumer) -> None:
    """Else a flow that hangs later would keep its partitions for ever: `max.poll.interval.ms` would not count."""
    ConsumerControls(consumer)
    with contextlib.suppress(NoOffsetForPartitionError), consumer._subscription.fetch_context():
        assert idle_s(consumer) == 0
        raise NoOffsetForPartitionError(PLACE)
    assert idle_s(consumer) > 0
