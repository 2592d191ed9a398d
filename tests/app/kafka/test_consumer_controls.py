"""The controls of an aiokafka consumer, on a consumer that has no cluster."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import KafkaConnectionError, NoOffsetForPartitionError, OffsetOutOfRangeError

from app.kafka.consumer_controls import ConsumerControls, idle_s
from app.kafka.fetched import FetchedBatches

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


async def test_error_of_a_call_that_was_cancelled_is_not_logged(consumer: AIOKafkaConsumer) -> None:
    """What ends a consumer is raised by its calls; the event loop would log it for each call that has ended."""
    ConsumerControls(consumer)
    troubles: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: troubles.append(context))
    subscription = consumer._subscription
    subscription.register_fetch_waiters({loop.create_future()})
    subscription.abort_waiters(KafkaConnectionError("ended"))
    await asyncio.sleep(0)
    subscription.register_fetch_waiters(set())
    gc.collect()
    assert not troubles


@pytest.mark.parametrize("active", [True, False])
async def test_a_commit_that_fails_when_nobody_waits_for_it_is_not_logged(
    consumer: AIOKafkaConsumer, monkeypatch: pytest.MonkeyPatch, *, active: bool
) -> None:
    """aiokafka shields it from a caller that is cancelled: the event loop would log a traceback."""
    let, troubles = asyncio.Event(), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))

    async def commit(*_: object) -> None:
        await let.wait()
        raise KafkaConnectionError("it broke")

    monkeypatch.setattr(GroupCoordinator, "_do_commit_offsets", commit)
    made: Any = GroupCoordinator.__new__(GroupCoordinator)
    made.generation, made.group_id = 1, "g"
    monkeypatch.setattr(consumer, "_coordinator", made)
    coordinator = ConsumerControls(consumer).coordinator()
    assert coordinator is made
    coordinator.strict = True
    committing = asyncio.shield(coordinator._do_commit_offsets(SimpleNamespace(active=active), {}))
    await asyncio.sleep(0)
    committing.cancel()
    await asyncio.wait([committing])
    let.set()
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert troubles == []
    monkeypatch.setattr(consumer, "_coordinator", None)


async def test_the_first_error_of_a_partition_stands(
    consumer: AIOKafkaConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two leaders may be asked for a position, one after the other; aiokafka's fetcher would end by the second."""
    fetcher = Fetcher.__new__(Fetcher)
    fetcher._records, fetcher._prefetch_backoff = {}, 0.1
    monkeypatch.setattr(consumer, "_fetcher", fetcher)
    FetchedBatches(ConsumerControls(consumer))
    first = NoOffsetForPartitionError(PLACE)
    for error in (first, OffsetOutOfRangeError({PLACE: 1})):
        fetcher._set_error(PLACE, error)
    assert fetcher._records[PLACE]._error is first
    monkeypatch.setattr(consumer, "_fetcher", None)


async def test_what_ends_a_consumer_is_not_logged(consumer: AIOKafkaConsumer) -> None:
    """aiokafka gives it to polls that are over, too: the event loop would log a traceback for each."""
    troubles = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
    ConsumerControls(consumer)
    subscription = consumer._subscription
    subscription.wait_for_assignment()
    subscription._fetch_waiters = {asyncio.get_running_loop().create_future()}
    subscription.abort_waiters(KafkaConnectionError("it broke"))
    subscription._assignment_waiters, subscription._fetch_waiters = [], set()
    await asyncio.sleep(0)
    gc.collect()
    assert troubles == []
