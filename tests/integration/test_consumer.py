"""What a consumer commits if its group has moved on, and what it tells of the group; on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import pytest
from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    KafkaError,
    NoOffsetForPartitionError,
)
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchResponse_v3
from aiokafka.protocol.group import JoinGroupRequest
from aiokafka.structs import OffsetAndMetadata

from app.kafka.broker_health import BrokerHealth
from app.kafka.consumer import GroupConsumer
from app.kafka.consumer_controls import idle_s
from app.kafka.errors import GroupMovedOnError
from app.kafka.gate import Call, Gate, Place, Send
from app.kafka.offset_fetches import FetchOffsets
from app.kafka.queries import DescribeGroups
from app.kafka.troubles import GROUP, Troubles
from app.pipeline.budget import Budget, Share
from tests.app.configurations import settings_of
from tests.integration.topics import committed
from tests.integration.way import MakeTopic


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Holds up a rebalance while it is told to."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.let.set()

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        await self.let.wait()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        pass


def member_of(broker: str, topic: str, *, request_ms: int = 40_000) -> GroupConsumer:
    """One that has not joined its group, which is named as the topic."""
    settings = settings_of(
        f"""
        bootstrap.servers = "{broker}"
        [pipeline.orders]
        topics = ["{topic}"]
        output.topic = "orders"
        group.id = "{topic}"
        transforms = ["offload"]
        large.message.payload.store.class = "memory"
        consumer.heartbeat.interval.ms = 100
        consumer.request.timeout.ms = {request_ms}
        """
    )
    (pipeline,) = settings.pipelines
    return GroupConsumer(settings.client, pipeline, BrokerHealth([topic], 0.5, Troubles("p")), Share(Budget(2**28)))


@asynccontextmanager
async def joined(broker: str, topic: str, listener: Listener | None = None) -> AsyncIterator[GroupConsumer]:
    """A member of the group that is named as the topic."""
    member = member_of(broker, topic)
    await member.start(listener or Listener())
    try:
        yield member
    finally:
        if listener is not None:
            listener.let.set()
        await member.stop()


async def members(member: GroupConsumer) -> Sequence[Any]:
    """The members of the group, as its coordinator knows them."""
    coordinator: Any = member.consumer._coordinator
    answer = await member.client.send(coordinator.coordinator_id, DescribeGroups([coordinator.group_id]))
    (group,) = answer.groups
    return cast(Sequence[Any], group[5])


async def polling_for_ever(member: GroupConsumer, *partitions: TopicPartition) -> None:
    """Until a poll raises something."""
    while True:
        await member.poll(partitions, 100)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever takes time is told at once."""
    monkeypatch.setattr("app.kafka.consumer.UNANSWERED_S", 0.0)


@pytest.mark.usefixtures("impatient")
async def test_commit_that_is_tried_again_past_a_rebalance(broker: str, make_topic: MakeTopic) -> None:
    """It is told, and fails, as it would go over what the new owner of a partition has committed."""
    topic = make_topic(2)
    async with joined(broker, topic) as first:
        coordinator: Any = first.consumer._coordinator
        send: Callable[[Any], Awaitable[Any]] = coordinator._send_req
        sent, let = asyncio.Event(), asyncio.Event()

        async def unavailable(request: Any) -> Any:
            if not isinstance(request, OffsetCommitRequest) or let.is_set():
                return await send(request)
            sent.set()
            await let.wait()
            raise GroupCoordinatorNotAvailableError

        coordinator._send_req = unavailable
        everything = {TopicPartition(topic, number): (1, "") for number in range(2)}
        committing = asyncio.create_task(first.commit(everything))
        await sent.wait()
        assert f"group {topic} accepts no offsets since 20" in str(first._troubles.text(GROUP))
        async with joined(broker, topic) as second:
            (mine,) = [each for each in everything if second.seek(each, 0)]
            await second.commit({mine: (9, "")})
            let.set()
            with pytest.raises(GroupMovedOnError):
                await committing
            assert first._troubles.text(GROUP) is None
            found = await asyncio.to_thread(committed, broker, topic, topic)
            assert found[mine.partition] == 9


@pytest.mark.usefixtures("impatient")
async def test_rebalance_that_takes_long(broker: str, make_topic: MakeTopic) -> None:
    """It is told while a poll waits for it, and such a poll can be ended."""
    topic, listener, second = make_topic(2), Listener(), AsyncExitStack()
    async with second, joined(broker, topic, listener) as first:
        listener.let.clear()
        joining = asyncio.create_task(second.enter_async_context(joined(broker, topic)))
        while first._troubles.text(GROUP) is None:
            polling = asyncio.create_task(first.poll((), 100))
            await asyncio.wait([polling], timeout=1)
        assert f"group {topic} rebalances since 20" in str(first._troubles.text(GROUP))
        first.interrupt()
        assert not await polling
        assert not await first.poll((), 100)
        assert first._troubles.text(GROUP) is None
        listener.let.set()
        await joining


async def test_a_member_that_joins_and_leaves_in_a_long_rebalance(broker: str, make_topic: MakeTopic) -> None:
    """It waits longer for the others than for other answers, and leaves though its coordinator counts as dead."""
    topic, listener, joins = make_topic(2), Listener(), list[Any]()
    second = member_of(broker, topic, request_ms=700)

    async def counted(call: Call, send: Send) -> Any:
        joins.append(call.request)
        return await send()

    Gate.of(second.client).set(Place.REFUSALS, {JoinGroupRequest: counted})
    async with joined(broker, topic, listener) as first:
        listener.let.clear()
        joining = asyncio.create_task(second.start(Listener()))
        polling = asyncio.create_task(polling_for_ever(first))
        try:
            await asyncio.wait([joining], timeout=2.5)
            coordinator: Any = second.consumer._coordinator
            assert coordinator.coordinator_id is not None, "JoinGroup is still awaited"
            assert len(joins) <= 2, "the first one is for the member's id"
            assert len(await members(first)) == 2
            coordinator.coordinator_dead()
            joining.cancel()
            await second.stop()
            assert len(await members(first)) == 1
        finally:
            polling.cancel()
            await second.stop()


async def test_membership_is_kept_without_a_poll(broker: str, make_topic: MakeTopic) -> None:
    """It counts as a poll for aiokafka, which keeps what was read ahead; an error of the group is raised."""
    topic = make_topic(1)
    async with joined(broker, topic) as consumer:
        inner: Any = consumer.consumer
        consumer.seek(TopicPartition(topic, 0), 0)
        assert not await consumer.poll((), 10)
        await asyncio.sleep(0.1)
        assert idle_s(inner) >= 0.1
        await consumer.keep_membership()
        assert idle_s(inner) < 0.1
        inner._coordinator._pending_exception = GroupAuthorizationFailedError(topic)
        with pytest.raises(GroupAuthorizationFailedError):
            await consumer.keep_membership()


async def test_fetcher_that_has_died_is_noticed(broker: str, make_topic: MakeTopic) -> None:
    """aiokafka's task that reads may die by a defect in one of its own tasks: a poll tells."""
    topic = make_topic(1)

    async def fails() -> None:
        raise ValueError("a defect")

    async with joined(broker, topic) as member:
        consumer: Any = member.consumer
        with pytest.raises(NoOffsetForPartitionError):
            await polling_for_ever(member)
        failed = asyncio.create_task(fails())
        consumer._fetcher._pending_tasks.add(failed)
        await asyncio.wait([failed])
        consumer._fetcher._notify(consumer._fetcher._wait_consume_future)
        with pytest.raises(KafkaError, match="Unexpected error during data retrieval"):
            await polling_for_ever(member, TopicPartition(topic, 1))
    assert not any(each.connected() for each in consumer._client._conns.values())


@pytest.mark.parametrize("code", [14, 16], ids=["loads the group", "has moved"])
async def test_committed_offsets_of_a_coordinator_that_is_not_ready(
    broker: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """It is asked again: its error is one of the whole response, which aiokafka takes for one without offsets."""
    topic = make_topic(1)
    place, send, refusals = TopicPartition(topic, 0), AIOKafkaConnection.send, 0

    def refused(self: AIOKafkaConnection, request: Any, **options: Any) -> Any:
        nonlocal refusals
        if not isinstance(getattr(request, "request", None), FetchOffsets) or refusals == 0:
            return send(self, request, **options)
        refusals -= 1
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(OffsetFetchResponse_v3(0, [], code))
        return answer

    async with joined(broker, topic) as consumer:
        monkeypatch.setattr(AIOKafkaConnection, "send", refused)
        await consumer.commit({place: (7, "note")})
        refusals = 2
        assert await consumer.commits([place]) == {place: OffsetAndMetadata(7, "note")}
        refusals = 1
        assert await consumer.known(topic)
        refusals = 1
        assert await consumer.consumer.committed(place) == 7
        assert refusals == 0
