"""The controls of an aiokafka consumer, on one that has no cluster; and its end, whatever its own `stop` does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import (
    ConsumerStoppedError,
    KafkaConnectionError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)

from app.kafka.consumer_controls import ConsumerControls, idle_s
from app.kafka.fetched import FetchedBatches
from app.kafka.membership import Coordinator

PLACE = TopicPartition("t", 0)


@pytest.fixture
async def consumer() -> AsyncIterator[Any]:
    """Has not been started."""
    consumer = AIOKafkaConsumer()
    yield consumer
    consumer._fetcher = consumer._coordinator = None
    await consumer.stop()


async def test_position(consumer: Any) -> None:
    """It is known once there is one; nothing waits for it."""
    controls = ConsumerControls(consumer)
    assert (controls.assignment, controls.position(PLACE)) == (None, None)
    consumer.assign([PLACE])
    assert controls.position(PLACE) is None
    controls.assignment.state_value(PLACE).seek(5)
    assert [controls.position(each) for each in (PLACE, TopicPartition("t", 1))] == [5, None]


async def test_idle_time_counts_after_a_poll_that_raised(consumer: Any) -> None:
    """Else a flow that hangs later would keep its partitions for ever: `max.poll.interval.ms` would not count."""
    ConsumerControls(consumer)
    with contextlib.suppress(NoOffsetForPartitionError), consumer._subscription.fetch_context():
        assert idle_s(consumer) == 0
        raise NoOffsetForPartitionError(PLACE)
    assert idle_s(consumer) > 0


@pytest.mark.usefixtures("unlogged")
async def test_what_ends_a_consumer_is_not_logged(consumer: Any) -> None:
    """aiokafka gives it to polls that are over, too: the event loop would log a traceback for each."""
    ConsumerControls(consumer)
    subscription = consumer._subscription
    subscription.wait_for_assignment()
    subscription.register_fetch_waiters({asyncio.get_running_loop().create_future()})
    subscription.abort_waiters(KafkaConnectionError("ended"))
    subscription._assignment_waiters, subscription._fetch_waiters = [], set()


@pytest.mark.usefixtures("unlogged")
@pytest.mark.parametrize("active", [True, False])
async def test_a_commit_that_fails_when_nobody_waits_for_it_is_not_logged(
    consumer: Any, monkeypatch: pytest.MonkeyPatch, *, active: bool
) -> None:
    """aiokafka shields it from a caller that is cancelled: the event loop would log a traceback."""
    let = asyncio.Event()

    async def commit(*_: object) -> None:
        await let.wait()
        raise KafkaConnectionError("it broke")

    monkeypatch.setattr(GroupCoordinator, "_do_commit_offsets", commit)
    consumer._coordinator = made = GroupCoordinator.__new__(GroupCoordinator)
    made.generation, made.group_id = 1, "g"
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


async def test_the_first_error_of_a_partition_stands(consumer: Any) -> None:
    """Two leaders may be asked for a position, one after the other; aiokafka's fetcher would end by the second."""
    consumer._fetcher = fetcher = Fetcher.__new__(Fetcher)
    fetcher._records, fetcher._prefetch_backoff = {}, 0.1
    FetchedBatches(ConsumerControls(consumer))
    first = NoOffsetForPartitionError(PLACE)
    for error in (first, OffsetOutOfRangeError({PLACE: 1})):
        fetcher._set_error(PLACE, error)
    assert fetcher._records[PLACE]._error is first


# --- the end ---------------------------------------------------------------------------------------------------------


async def hang(*_: object) -> None:
    """As a commit to a coordinator that is gone."""
    await asyncio.Event().wait()


async def leak() -> None:
    """As aiokafka, which awaits a task that it has cancelled before its first step."""
    task = asyncio.create_task(hang())
    task.cancel()
    await task


async def fetch() -> None:
    """As aiokafka's fetcher in a rebalance: what it waits for takes the cancellation, and it goes on."""

    async def swallow() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await hang()

    await asyncio.create_task(swallow())
    await hang()


class Client:
    """Notes that it was closed."""

    closed = False
    _get_conn = bootstrap = _md_update_fut = None

    async def close(self) -> None:
        """Takes a turn, as that of a connection does."""
        await asyncio.sleep(0)
        self.closed = True


class Consuming:
    """A consumer as if it had started, a member of a group or not."""

    def __init__(self, fetches: Callable[[], Coroutine[Any, Any, None]] = hang, *, member: bool = False) -> None:
        self.consumer: Any = AIOKafkaConsumer()
        self.consumer._closed = True
        self.consumer._subscription.register_fetch_waiters(set())
        self.client = self.consumer._client = Client()
        self.tasks = [asyncio.create_task(each()) for each in (fetches, *[hang] * (4 if member else 1))]
        self.consumer._fetcher = SimpleNamespace(error_future=self.tasks[0], _pending_tasks={self.tasks[1]})
        if member:
            self.consumer._coordinator = made = object.__new__(GroupCoordinator)
            made._coordination_task, made._heartbeat_task, made._commit_refresh_task = self.tasks[2:]
        self.controls = ConsumerControls(self.consumer)

    @property
    def ended(self) -> bool:
        """Whether nothing is left of it."""
        return self.client.closed and all(each.cancelled() for each in self.tasks)


@pytest.mark.parametrize("member", [False, True])
@pytest.mark.parametrize(("stop", "fetches"), [(hang, hang), (leak, hang), (None, fetch)])
async def test_it_stops_in_any_case(
    stop: Callable[[], Coroutine[Any, Any, None]] | None,
    fetches: Callable[[], Coroutine[Any, Any, None]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    member: bool,
) -> None:
    """Whether its own stop hangs, ends with another task's CancelledError, or its fetcher loses its cancellation."""
    left = []

    async def leave(member: Any) -> None:
        left.append(member)

    monkeypatch.setattr(Coordinator, "_maybe_leave_group", leave)
    consuming = Consuming(fetches, member=member and stop is not None)
    for _ in range(2):
        await asyncio.sleep(0)
    await consuming.controls.stop(stop or consuming.client.close, 0.01 if stop else 3.0)
    assert consuming.ended
    assert left == ([consuming.consumer._coordinator] if member and stop else [])


@pytest.mark.parametrize("twice", [False, True])
async def test_it_stops_though_it_is_cancelled(monkeypatch: pytest.MonkeyPatch, *, twice: bool) -> None:
    """Who cancels the stop gets the cancellation, and a consumer that has stopped; a second one ends the leave."""
    leaves = asyncio.Event()

    async def leave(_: Any) -> None:
        leaves.set()
        if twice:
            await hang()

    monkeypatch.setattr(Coordinator, "_maybe_leave_group", leave)
    consuming = Consuming(member=True)
    task = asyncio.create_task(consuming.controls.stop(hang))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait_for(leaves.wait(), 20)
    if twice:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert consuming.ended


@pytest.mark.parametrize("assigned", [False, True])
async def test_a_call_that_waits_for_records_ends_with_the_consumer(consumer: Any, *, assigned: bool) -> None:
    """It waits in a task of its own, also for an assignment, and nothing else would ever wake it."""
    if assigned:
        consumer._subscription.assign_from_user({PLACE})
    consumer._fetcher = fetcher = Fetcher(consumer._client, consumer._subscription)
    fetcher.error_future.cancel()  # it would ask the brokers
    waiting = asyncio.create_task(fetcher.next_record(()))
    await asyncio.sleep(0)
    await ConsumerControls(consumer).stop(hang, 0.01)
    with pytest.raises(ConsumerStoppedError):
        await asyncio.wait_for(waiting, 20)
