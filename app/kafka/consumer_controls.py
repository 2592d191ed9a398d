"""The controls of an aiokafka consumer: its group, its position and its end beyond its public methods."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    IllegalGenerationError,
    IncompatibleBrokerVersion,
    KafkaError,
    NotCoordinatorError,
)
from aiokafka.structs import OffsetAndMetadata

from app.kafka.offset_fetches import OffsetFetches
from app.kafka.queries import DescribeConsumerGroups, DescribeGroups, DescribeStreamsGroups, Query
from app.kafka.shielded import heard
from app.kafka.stable_offsets import FetchStableOffsets
from app.kafka.stopping import stop_in_time
from app.kafka.subscriptions import end_each_poll, hear_waiters
from app.kafka.troubles import Troubles

__all__ = ["ConsumerControls"]

_Found = TypeVar("_Found")


class ConsumerControls:
    """Controls one aiokafka consumer, on its event loop. Its methods raise aiokafka's errors.

    Args:
        consumer: the consumer.
        backoff_s: how long to wait before the next try of a request.
        troubles: get what its requests for committed offsets wait for.

    Attributes:
        consumer: the consumer.
    """

    def __init__(self, consumer: AIOKafkaConsumer, backoff_s: float = 0.1, troubles: Troubles | None = None) -> None:
        self.consumer = consumer
        self._backoff_s = backoff_s
        OffsetFetches(self.client, backoff_s, troubles)
        end_each_poll(consumer._subscription)
        hear_waiters(consumer._subscription)

    @property
    def client(self) -> AIOKafkaClient:
        """The client that sends the consumer's requests."""
        return self.consumer._client

    @property
    def assignment(self) -> Any:
        """aiokafka's state of the assigned partitions; None before the first assignment."""
        subscription = self.consumer._subscription.subscription
        return None if subscription is None else subscription.assignment

    @property
    def rebalancing(self) -> bool:
        """Whether the group gives its partitions anew: from their revocation to the next assignment."""
        return bool(self.consumer._subscription.reassignment_in_progress)

    @property
    def _fetcher(self) -> Any:
        return self.consumer._fetcher

    @property
    def _coordinator(self) -> Any:
        return self.consumer._coordinator

    def position(self, partition: TopicPartition) -> int | None:
        """The offset from which the next poll reads; None if it is not known, or the partition is not assigned."""
        assignment = self.assignment
        state = assignment.state_value(partition) if assignment is not None and assignment.active else None
        position: int | None = state.position if state is not None and state.has_valid_position else None
        return position

    def keep_fetched_in(self, store: OrderedDict[Any, Any]) -> None:
        """Lets aiokafka keep what it fetches in `store`, by partition, until that is polled."""
        fetcher = self._fetcher
        for partition, result in fetcher._records.items():
            store[partition] = result
        fetcher._records = store
        set_error = fetcher._set_error

        def set_first_error(partition: TopicPartition, error: BaseException) -> None:
            if partition not in store:  # for which aiokafka ends the fetcher: a former leader has answered, too
                set_error(partition, error)

        fetcher._set_error = set_first_error

    def check_fetcher(self) -> None:
        """Raises what has ended aiokafka's task that fetches: a poll does not, and would wait for ever."""
        fetching = self._fetcher.error_future
        if fetching.done() and not fetching.cancelled() and (error := fetching.exception()) is not None:
            raise error

    async def send(self, request: Any) -> Any:
        """Sends a request to any broker, and returns the response."""
        return await self.client.send(self.client.get_random_node(), request)

    # --- the group ---------------------------------------------------------------------------------------------------

    def commit_as_member(self) -> None:
        """Lets a commit go out only from the assignment that it was made in, and only by a member of the group.

        aiokafka tries a commit again after a rebalance. If the group does not know the consumer any more, aiokafka
        commits without a member id, and an empty group takes that: over what another member, or an operator, has
        committed meanwhile. Only of a consumer that has started.
        """
        coordinator = self._coordinator
        commit = coordinator._do_commit_offsets

        async def committed(assignment: Any, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
            if not assignment.active or coordinator.generation < 0:
                raise IllegalGenerationError(coordinator.group_id)
            await commit(assignment, offsets)

        def commit_as_member(*args: Any) -> asyncio.Task[None]:
            task = asyncio.get_running_loop().create_task(committed(*args))
            task.add_done_callback(heard)  # aiokafka shields it: if its caller is cancelled, nobody looks at its error
            return task

        coordinator._do_commit_offsets = commit_as_member

    async def commits(
        self, partitions: Collection[TopicPartition], *, stable: bool = False
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """The committed offsets with their metadata, of the partitions that have one; `committed` has no metadata.

        Args:
            partitions: whose offsets.
            stable: whether to wait for open transactions that have sent offsets (KIP-447); from Kafka 2.5 on.
        """
        if stable and partitions:
            with contextlib.suppress(IncompatibleBrokerVersion):
                return await self._stable_commits(partitions)
        found: Mapping[TopicPartition, OffsetAndMetadata]
        found = await self._coordinator.fetch_committed_offsets(partitions)
        return found

    async def _stable_commits(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        request = FetchStableOffsets(self._coordinator.group_id, partitions)
        return await self._answer(request, request.commits)

    async def has_members(self) -> bool:
        """Whether the group has members, of whatever protocol; False if brokers before Kafka 2.3 do not say."""
        group = self._coordinator.group_id
        for query in (DescribeGroups([group]), DescribeConsumerGroups([group]), DescribeStreamsGroups([group])):
            with contextlib.suppress(IncompatibleBrokerVersion):
                if await self._answer(query, query.members):
                    return True
        return False

    async def _answer(self, request: Query, read: Callable[[Any], _Found | None]) -> _Found:
        """What a response of the coordinator says; asked again while it says nothing."""
        coordinator = self._coordinator
        while True:
            await coordinator.ensure_coordinator_known()
            try:
                found = read(await coordinator._send_req(request))
            except (NotCoordinatorError, GroupCoordinatorNotAvailableError):
                coordinator.coordinator_dead()
            except KafkaError as exc:
                if not exc.retriable:
                    raise
            else:
                if found is not None:
                    return found
            await asyncio.sleep(self._backoff_s)

    # --- the end -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stops the consumer, as `stop_in_time` does."""
        await stop_in_time(self.consumer)
