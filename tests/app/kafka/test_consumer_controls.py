"""The controls of an aiokafka consumer, on a consumer that has no cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.commit import OffsetFetchRequest, OffsetFetchResponse_v1, OffsetFetchResponse_v3
from aiokafka.protocol.fetch import FetchRequest

from app.kafka.consumer_controls import ConsumerControls

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


async def test_consumer_that_has_not_started_is_not_interrupted(consumer: AIOKafkaConsumer) -> None:
    """Nothing waits that could be: aiokafka would fail."""
    ConsumerControls(consumer).interrupt(KafkaConnectionError("enough"))


@pytest.mark.parametrize(
    ("request_", "response", "rows"),
    [
        (
            OffsetFetchRequest("g", [("t", [0, 1])]),
            OffsetFetchResponse_v3(0, [], 16),
            [(0, -1, "", 16), (1, -1, "", 16)],
        ),
        (
            OffsetFetchRequest("g", [("t", [0])]),
            OffsetFetchResponse_v3(0, [("t", [(0, 7, "", 0)])], 0),
            [(0, 7, "", 0)],
        ),
        (OffsetFetchRequest("g", [("t", [0])]), OffsetFetchResponse_v1([("t", [(0, 7, "", 0)])]), [(0, 7, "", 0)]),
    ],
)
async def test_error_of_a_response_is_one_of_its_partitions(
    consumer: AIOKafkaConsumer, request_: Any, response: Any, rows: list[Any]
) -> None:
    """aiokafka looks at these alone: a response with an error and without partitions would mean "nothing committed"."""

    async def answer(_: int, request: Any) -> Any:
        return response if request is request_ else None

    consumer._client.send = answer
    controls = ConsumerControls(consumer)
    assert (await controls.client.send(1, request_)).topics == [("t", rows)]
    assert await controls.client.send(1, FetchRequest(0, 0, 0, 0, [])) is None
