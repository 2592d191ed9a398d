"""The end of a consumer whose own `stop` does not come to its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import ConsumerStoppedError

from app.kafka.consumer_controls import ConsumerControls
from app.kafka.membership import Coordinator


class Fetching:
    """What `stop` looks at of the part of a consumer that fetches."""

    def __init__(self) -> None:
        self.error_future: asyncio.Task[Any] = asyncio.create_task(asyncio.Event().wait())
        self._pending_tasks = {asyncio.create_task(asyncio.Event().wait())}

    @property
    def ended(self) -> bool:
        return all(each.cancelled() for each in (self.error_future, *self._pending_tasks))


class Client:
    """Notes that it was closed."""

    closed = False
    _get_conn = bootstrap = _md_update_fut = None

    async def close(self) -> None:
        """Takes a turn, as that of a connection does."""
        await asyncio.sleep(0)
        self.closed = True


def consuming() -> tuple[Any, Client, Fetching]:
    """A consumer without a group, as if it had started."""
    consumer: Any = AIOKafkaConsumer()
    consumer._client, consumer._fetcher = client, fetching = Client(), Fetching()
    consumer._closed = True
    consumer._subscription.register_fetch_waiters(set())
    return consumer, client, fetching


async def hang() -> None:
    """As a commit to a coordinator that is gone."""
    await asyncio.Event().wait()


async def leak() -> None:
    """As aiokafka, which awaits a task that it has cancelled before its first step."""
    task = asyncio.create_task(hang())
    task.cancel()
    await task


@pytest.mark.parametrize("stop", [hang, leak])
async def test_it_stops_in_any_case(stop: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Neither a stop that hangs, nor one that ends with the CancelledError of another task, leaves anything."""
    consumer, client, fetching = consuming()
    await ConsumerControls(consumer).stop(stop, 0.01)
    assert (client.closed, fetching.ended) == (True, True)


async def test_it_stops_though_it_is_cancelled() -> None:
    """Whoever cancels the stop gets a consumer that has stopped, and the cancellation."""
    consumer, client, fetching = consuming()
    task = asyncio.create_task(ConsumerControls(consumer).stop(hang))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (client.closed, fetching.ended) == (True, True)


async def swallow() -> None:
    """As aiokafka's requests of a fetcher: they end when they are cancelled, and do not say so."""
    with contextlib.suppress(asyncio.CancelledError):
        await hang()


async def fetch() -> None:
    """As aiokafka's fetcher in a rebalance: what it waits for takes the cancellation, and it goes on."""
    await asyncio.create_task(swallow())
    await hang()


async def test_a_fetcher_that_loses_its_cancellation_ends() -> None:
    """It would go on for as long as the process lives, and fetch, or wait for an assignment."""
    consumer, client, fetching = consuming()
    fetching.error_future.cancel()
    fetching.error_future = asyncio.create_task(fetch())
    for _ in range(2):
        await asyncio.sleep(0)
    await ConsumerControls(consumer).stop(client.close)
    assert (client.closed, fetching.ended) == (True, True)


@pytest.mark.parametrize("assigned", [False, True])
async def test_a_call_that_waits_for_records_ends_with_the_consumer(assigned: bool) -> None:  # noqa: FBT001
    """It waits in a task of its own, also for an assignment, and nothing else would ever wake it."""
    consumer: Any = AIOKafkaConsumer()
    consumer._closed = True
    if assigned:
        consumer._subscription.assign_from_user({TopicPartition("raw", 0)})
    consumer._fetcher = fetcher = Fetcher(consumer._client, consumer._subscription)
    fetcher.error_future.cancel()  # it would ask the brokers
    waiting = asyncio.create_task(fetcher.next_record(()))
    await asyncio.sleep(0)
    await ConsumerControls(consumer).stop(hang, 0.01)
    with pytest.raises(ConsumerStoppedError):
        await asyncio.wait_for(waiting, 20)


async def test_a_member_leaves_though_its_stop_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all its tasks: the group need not wait for the end of its session."""
    left: list[Any] = []

    async def leave(member: Any) -> None:
        left.append(member)

    monkeypatch.setattr(Coordinator, "_maybe_leave_group", leave)
    consumer, client, _ = consuming()
    consumer._coordinator = member = object.__new__(GroupCoordinator)
    tasks = [asyncio.create_task(hang()) for _ in range(3)]
    member._coordination_task, member._heartbeat_task, member._commit_refresh_task = tasks
    await ConsumerControls(consumer).stop(hang, 0.01)
    assert (client.closed, left, all(each.cancelled() for each in tasks)) == (True, [member], True)


async def test_its_connections_close_though_it_is_cancelled_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """An application that ends may cancel again what has not ended: it then leaves no group, but nothing stays open."""
    leaves = asyncio.Event()

    async def leave(_: Any) -> None:
        leaves.set()
        await hang()

    monkeypatch.setattr(Coordinator, "_maybe_leave_group", leave)
    consumer, client, fetching = consuming()
    consumer._coordinator = member = object.__new__(GroupCoordinator)
    member._coordination_task = member._heartbeat_task = member._commit_refresh_task = None
    task = asyncio.create_task(ConsumerControls(consumer).stop(hang))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait_for(leaves.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (client.closed, fetching.ended) == (True, True)
