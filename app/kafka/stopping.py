"""The end of an aiokafka consumer, which comes in any case, and in time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import ConsumerStoppedError, KafkaError

from app.kafka.membership import leave, leave_in_any_case
from app.kafka.shielded import heard
from app.kafka.subscriptions import hear_waiters

__all__ = ["stop_in_time"]

_STOP_S = 3.0
_LEAVE_S = 2.0
_BACKOFF_S = 0.1
_TRIES, _END_S = 10, 0.05  # to end a task, and how long one may take


async def stop_in_time(
    consumer: AIOKafkaConsumer, stop: Callable[[], Awaitable[None]] | None = None, within_s: float = _STOP_S
) -> None:
    """Stops a consumer within `within_s` and two seconds; a member that is not static leaves the group.

    `stop` of aiokafka waits for a group that rebalances, which takes as long as the slowest member. It never ends if
    the coordinator is lost while it commits. And if a task that it awaits has failed, or ends with the CancelledError
    that it gives it, it raises that, and stops nothing else. Calls that wait
    for records raise ConsumerStoppedError.

    Args:
        consumer: started, or not.
        stop: that of aiokafka, if the consumer has another one.
        within_s: for a last commit, and the answer of the group.

    Raises:
        CancelledError: it was cancelled from outside; the consumer has stopped.
    """
    coordinator, fetcher = consumer._coordinator, consumer._fetcher
    member = isinstance(coordinator, GroupCoordinator)
    task = asyncio.current_task()
    assert task is not None
    cancelled = task.cancelling()
    if member:
        leave_in_any_case(coordinator, consumer._client, _BACKOFF_S)

    async def stop_whole() -> None:
        await _end_fetcher(fetcher)
        await (stop or consumer.stop)()

    with contextlib.suppress(TimeoutError, asyncio.CancelledError, KafkaError):
        await asyncio.wait_for(stop_whole(), within_s)
        return
    try:
        await _end_fetcher(fetcher)
        if fetcher is not None:  # calls in other tasks would wait for records for ever
            hear_waiters(consumer._subscription)
            consumer._subscription.abort_waiters(ConsumerStoppedError())
        if member:
            await _end([coordinator._coordination_task, coordinator._heartbeat_task, coordinator._commit_refresh_task])
            with contextlib.suppress(KafkaError, TimeoutError):
                await asyncio.wait_for(leave(coordinator, consumer._client, _BACKOFF_S), _LEAVE_S)
    finally:
        await consumer._client.close()
    if task.cancelling() > cancelled:
        raise asyncio.CancelledError


async def _end_fetcher(fetcher: Any) -> None:
    """Ends the task of a fetcher first, as it begins the others; None is no fetcher."""
    if fetcher is not None:
        await _end([fetcher.error_future])
        await _end(fetcher._pending_tasks)


async def _end(tasks: Iterable[asyncio.Task[None] | None]) -> None:
    """Cancels tasks, and waits until they have ended.

    A task that waits for another one hands its cancellation on to that, and goes on if the other one just ends: so does
    aiokafka's fetcher in a rebalance. Whatever has not ended is cancelled again.
    """
    left = [task for task in tasks if task is not None]
    for task in left:
        task.add_done_callback(heard)  # the event loop would log an error that nobody has asked for
    for _ in range(_TRIES):
        left = [task for task in left if not task.done()]
        if not left:
            return
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=_END_S)
