"""The controls of an aiokafka consumer: its group, its position and its end beyond its public methods."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import ConsumerStoppedError, IncompatibleBrokerVersion, KafkaError
from aiokafka.structs import OffsetAndMetadata

from app.kafka.gate import Gate
from app.kafka.membership import Coordinator
from app.kafka.offset_fetches import FetchOffsets, OffsetFetches, ask_coordinator
from app.kafka.queries import DescribeGroups, Query
from app.kafka.shielded import end_tasks
from app.kafka.subscriptions import PolledSubscriptions
from app.kafka.troubles import Troubles

_STOP_S = 3.0
_Found = TypeVar("_Found")


class ConsumerControls:
    """Controls one aiokafka consumer, on its event loop. Its methods raise aiokafka's errors.

    Args:
        consumer: the consumer.
        backoff_s: how long to wait before the next try of a request.
        troubles: where to note what its requests for committed offsets wait for.

    Attributes:
        consumer: the consumer.
        client: sends its requests.
    """

    def __init__(self, consumer: AIOKafkaConsumer, backoff_s: float = 0.1, troubles: Troubles | None = None) -> None:
        self.consumer = consumer
        self._gate = Gate.of(consumer)
        self.client = self._gate.client
        self._backoff_s = backoff_s
        OffsetFetches(self.client, backoff_s, troubles)
        PolledSubscriptions.adopt(self.subscription)

    @property
    def subscription(self) -> Any:
        """aiokafka's state of what the consumer reads."""
        return self.consumer._subscription

    @property
    def fetcher(self) -> Any:
        """aiokafka's fetcher; None before the start."""
        return self.consumer._fetcher

    def coordinator(self) -> Coordinator | None:
        """aiokafka's coordinator of the group as a `Coordinator`; None before the start, and without a group."""
        return Coordinator.adopted(self.consumer._coordinator, self._gate)

    @property
    def group(self) -> str:
        """The id of the group; the consumer has one, and has started."""
        coordinator = self.coordinator()
        assert coordinator is not None
        return str(coordinator.group_id)

    @property
    def assignment(self) -> Any:
        """aiokafka's state of the assigned partitions; None before the first assignment."""
        subscription = self.subscription.subscription
        return None if subscription is None else subscription.assignment

    @property
    def rebalancing(self) -> bool:
        """Whether the group is rebalancing: from the revocation of the partitions to the next assignment."""
        return bool(self.subscription.reassignment_in_progress)

    def position(self, partition: TopicPartition) -> int | None:
        """The offset from which the next poll reads; None if it is not known, or the partition is not assigned."""
        assignment = self.assignment
        state = assignment.state_value(partition) if assignment is not None and assignment.active else None
        position: int | None = state.position if state is not None and state.has_valid_position else None
        return position

    def check_fetcher(self) -> None:
        """Raises the error that has ended aiokafka's fetcher: a poll does not, and would wait forever."""
        fetching = self.fetcher.error_future
        if fetching.done() and not fetching.cancelled() and (error := fetching.exception()) is not None:
            raise error

    async def send(self, request: Any) -> Any:
        """Sends a request to any broker, and returns the response."""
        return await self.client.send(self.client.get_random_node(), request)

    async def commits(
        self, partitions: Collection[TopicPartition], *, stable: bool = False
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """The committed offsets, of the partitions that have one, with the metadata that aiokafka's `committed` lacks.

        Args:
            partitions: the partitions.
            stable: whether to wait for open transactions that have sent offsets (KIP-447).
        """
        if not partitions:
            return {}
        request = FetchOffsets(self.group, partitions, stable=stable)
        return await self._answer(request, request.commits)

    async def has_members(self) -> bool:
        """Whether the group has members, of whatever protocol."""
        group = self.group
        for group_type in ("classic", "consumer", "streams"):
            query = DescribeGroups([group], group_type)
            with contextlib.suppress(IncompatibleBrokerVersion):
                if await self._answer(query, query.members):
                    return True
        return False

    async def _answer(self, query: Query, read: Callable[[Any], _Found | None]) -> _Found:
        return await ask_coordinator(self.client, self.group, query, read, self._backoff_s)

    async def stop(self, stop: Callable[[], Awaitable[None]] | None = None, within_s: float = _STOP_S) -> None:
        """Stops the consumer within `within_s` plus two seconds; a member that is not static leaves the group.

        `stop` of aiokafka waits for a rebalance of the group, which lasts as long as the slowest member. It never ends
        if the coordinator is lost during a commit. And if a task that it awaits has failed, or ends with the
        CancelledError of its cancellation, `stop` raises this error and stops nothing else. Calls that wait for records
        raise ConsumerStoppedError.

        Args:
            stop: aiokafka's `stop`, if the consumer has overridden it.
            within_s: the time for a last commit, and the answer of the group.

        Raises:
            CancelledError: it was cancelled from outside; the consumer has stopped.
        """
        task, coordinator = asyncio.current_task(), self.coordinator()
        assert task is not None
        cancelled = task.cancelling()

        async def stop_whole() -> None:
            await self._end_fetcher()
            await (stop or self.consumer.stop)()

        with contextlib.suppress(TimeoutError, asyncio.CancelledError, KafkaError):
            await asyncio.wait_for(stop_whole(), within_s)
            return
        try:
            await self._end_fetcher()
            if self.fetcher is not None:  # otherwise calls in other tasks would wait for records forever
                self.subscription.abort_waiters(ConsumerStoppedError())
            if coordinator is not None:
                await coordinator.end()
        finally:
            await self.client.close()
        if task.cancelling() > cancelled:
            raise asyncio.CancelledError

    async def _end_fetcher(self) -> None:
        if self.fetcher is not None:
            await end_tasks(self.fetcher.error_future)  # the task that starts the others
            await end_tasks(*self.fetcher._pending_tasks)


def idle_s(consumer: AIOKafkaConsumer) -> float:
    """For how many seconds no call has waited for records of the consumer. Any thread may call it."""
    return float(consumer._subscription.fetcher_idle_time)


def count_as_poll(consumer: AIOKafkaConsumer) -> None:
    """Restarts `max.poll.interval.ms` without a poll. Any thread may call it."""
    consumer._subscription._last_fetch_ended = time.monotonic()
