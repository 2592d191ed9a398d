"""The end of an aiokafka consumer, which comes in any case, and in time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from aiokafka import AIOKafkaConsumer
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import KafkaError

from app.kafka.membership import leave, leave_in_any_case
from app.kafka.shielded import heard

__all__ = ["stop_in_time"]

_STOP_S = 3.0
_LEAVE_S = 2.0
_BACKOFF_S = 0.1


async def stop_in_time(
    consumer: AIOKafkaConsumer, stop: Callable[[], Awaitable[None]] | None = None, within_s: float = _STOP_S
) -> None:
    """Stops a consumer within `within_s` and two seconds; a member that is not static leaves the group.

    `stop` of aiokafka waits for a group that rebalances, which takes as long as the slowest member. It never ends if
    the coordinator is lost while it commits. And if a task that it awaits has failed, or ends with the CancelledError
    that it gives it, it raises that, and stops nothing else.

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
    with contextlib.suppress(TimeoutError, asyncio.CancelledError, KafkaError):
        await asyncio.wait_for((stop or consumer.stop)(), within_s)
        return
    tasks: list[asyncio.Task[None] | None] = []
    if fetcher is not None:
        tasks += [fetcher.error_future, *fetcher._pending_tasks]
    if member:
        tasks += [coordinator._coordination_task, coordinator._heartbeat_task, coordinator._commit_refresh_task]
    left = [each for each in tasks if each is not None]
    for each in left:
        each.cancel()
    if member:
        with contextlib.suppress(KafkaError, TimeoutError):
            await asyncio.wait_for(leave(coordinator, consumer._client, _BACKOFF_S), _LEAVE_S)
    await consumer._client.close()
    for each in left:
        each.add_done_callback(heard)  # the event loop would log an error that nobody has asked for
    if task.cancelling() > cancelled:
        raise asyncio.CancelledError
