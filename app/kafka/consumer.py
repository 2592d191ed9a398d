"""The consumer of a flow, as a member of its group."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import cast

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
)

from app.config.settings import ClientSettings, PipelineSettings
from app.kafka import clients
from app.kafka.broker_health import BrokerHealth
from app.kafka.consumer_controls import ConsumerControls, count_as_poll
from app.kafka.errors import GroupMovedOnError
from app.kafka.fetch_errors import FetchErrors
from app.kafka.fetched import FetchedBatches, ReadAhead
from app.kafka.leader_epochs import LeaderEpochs
from app.kafka.membership import Membership
from app.kafka.receiver import receive_at_once
from app.kafka.source_batch import SourceBatch
from app.kafka.structs import Member
from app.kafka.troubles import GROUP, UNANSWERED_S, UNREADABLE
from transforms.epoch_history import Cut


class GroupConsumer(ConsumerControls, ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Reads the topics of a pipeline as a member of its group. Belongs to one event loop.

    Its methods raise aiokafka's errors, unless they say otherwise. Rebalances happen while they are awaited.

    Args:
        client: how to reach the cluster.
        settings: of the pipeline.
        brokers: watches the consumer.
        read_ahead: counts and limits what is fetched.

    Attributes:
        member: the member of the group that it was when the current partitions were assigned.

    Raises:
        ConfigurationError: a certificate or key cannot be used, or a package is missing.
    """

    def __init__(
        self, client: ClientSettings, settings: PipelineSettings, brokers: BrokerHealth, read_ahead: ReadAhead
    ) -> None:
        self._topics = list(settings.topics)
        interval_ms = cast("int", settings.consumer["consumer.max.poll.interval.ms"])
        backoff_ms = cast("int", settings.consumer["consumer.retry.backoff.ms"])
        self._troubles = brokers.troubles
        super().__init__(clients.consumer(client, settings), max(0.01, backoff_ms / 1000), brokers.troubles)
        brokers.watch(self.client)
        receive_at_once(self.client)
        instance_id = cast("str | None", settings.consumer["consumer.group.instance.id"])
        self._membership = Membership(self.client, settings.group_id, interval_ms / 1000, instance_id)
        self.member = Member(-1, "", instance_id)
        FetchErrors(self.client, self._backoff_s, brokers.troubles)
        self._epochs = LeaderEpochs(self.client, lambda: self.assignment, self._backoff_s)
        self._read_ahead = read_ahead
        # If a partition has moved to another worker, that one reports what cannot be read.
        self._troubles.only[UNREADABLE] = lambda place: place in self.consumer.assignment()
        self._polling: asyncio.Timeout | None = None
        self._interrupted = False

    async def start(self, listener: ConsumerRebalanceListener) -> None:
        """Joins the group. `listener` is called for each rebalance, including the first one, which waits for it."""
        self._listener = listener
        self.consumer.subscribe(self._topics, listener=self)
        await self.consumer.start()
        coordinator = self.coordinator()
        assert coordinator is not None
        coordinator.strict = True
        FetchedBatches(self, self._read_ahead, self._epochs.read)

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """For aiokafka."""
        await self._listener.on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """For aiokafka."""
        coordinator = self.coordinator()
        assert coordinator is not None
        self.member = self.member._replace(generation=coordinator.generation, id=coordinator.member_id)
        await self._listener.on_partitions_assigned(assigned)

    async def replaced(self) -> None:
        """Waits until another consumer has joined with `consumer.group.instance.id`: forever, if there is none."""
        await self._membership.replaced.wait()

    def give_up_place(self) -> None:
        """Lets `stop` leave the group even if the member is static.

        A static member that returns gets its former partitions, and the group does not check whether its topics have
        new ones (KIP-345): nobody would read these.
        """
        if (coordinator := self.coordinator()) is not None:
            coordinator.become_dynamic()

    async def is_replaced(self) -> bool:
        """Asks the coordinator whether another consumer has joined with `consumer.group.instance.id`."""
        return await self._membership.is_replaced(self.coordinator())

    async def poll(
        self, partitions: Iterable[TopicPartition], timeout_ms: int
    ) -> Mapping[TopicPartition, Sequence[SourceBatch]]:
        """The next batches, as soon as there are any; none if none came in time.

        Args:
            partitions: where to read; empty for all assigned partitions.
            timeout_ms: how long to wait.

        Raises:
            NoOffsetForPartitionError, OffsetOutOfRangeError: a partition has no position to read from, or its log was
                `cut`. The pipeline's `OffsetReset` finds a position.
            KafkaError: no more records will come, because aiokafka's fetcher has failed.
        """
        self.check_fetcher()
        if self._interrupted:
            return {}
        with self._lasting("rebalances"):  # nothing else takes longer than the time-out
            polling = self._polling = asyncio.timeout(None)
            polled: Mapping[TopicPartition, Sequence[SourceBatch]] = {}
            try:
                async with polling:
                    polled = await self.consumer.getmany(*partitions, timeout_ms=timeout_ms)
            except TimeoutError:
                if not polling.expired():
                    raise
            finally:
                self._polling = None
        return polled

    def interrupt(self) -> None:
        """Ends the poll that waits for records, or for the end of a rebalance. From now on, polls return nothing."""
        if self._polling is not None and not self._interrupted:
            self._polling.reschedule(0)
        self._interrupted = True

    async def keep_membership(self) -> None:
        """Stays in the group without a poll, which aiokafka would leave after `max.poll.interval.ms`.

        Raises:
            KafkaError: the group refuses.
        """
        coordinator = self.coordinator()
        assert coordinator is not None
        coordinator.check_errors()
        count_as_poll(self.consumer)

    def _lasting(self, what: str) -> AbstractContextManager[None]:
        return self._troubles.lasting(GROUP, self.group, what, patience_s=UNANSWERED_S)

    def ends(self) -> dict[TopicPartition, int | None]:
        """For each assigned partition, the offset up to which it can be read; None before its leader has answered."""
        return {partition: self._end(partition) for partition in self.consumer.assignment()}

    def _end(self, partition: TopicPartition) -> int | None:
        # Below the end of the log if a transaction is open; -1 if transactions do not count.
        stable: int | None = self.consumer.last_stable_offset(partition)
        return self.consumer.highwater(partition) if stable is None or stable < 0 else stable

    def caught_up(self, partition: TopicPartition) -> bool:
        """True if the next poll reads from the end of the partition, as its leader last reported it."""
        position = self.position(partition)
        end = None if position is None else self._end(partition)
        return position is not None and end is not None and position >= end

    def seek(self, partition: TopicPartition, offset: int) -> bool:
        """Makes the next poll read from `offset`; False if the partition is not assigned any more."""
        if partition not in self.consumer.assignment():
            return False
        self.consumer.seek(partition, offset)
        return True

    def cut(self, partition: TopicPartition) -> Cut | None:
        """Where the cluster has lost the end of the log that was read, as last known; None if it has not."""
        return self._epochs.cut(partition)

    async def compare(self, offsets: Mapping[TopicPartition, int], within_s: float) -> None:
        """Waits until `cut` reflects the current leaders of partitions that were read up to these offsets.

        Args:
            offsets: by partition.
            within_s: the maximum time to wait.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                # Fetches ask the leaders, but only those of the last metadata.
                while not (  # noqa: ASYNC110  # there is no event for the answer of a leader
                    await self.client.force_metadata_update()
                    and all(self._epochs.compared(*each) for each in offsets.items())
                ):
                    await asyncio.sleep(self._backoff_s)

    def begin(self, partition: TopicPartition, offset: int) -> bool:
        """Like `seek`, in a log that may differ from the one that was read; at `cut` at the latest."""
        cut = self._epochs.cut(partition)
        self._epochs.begin(partition, cut if cut is not None and cut.offset == offset else None)
        return self.seek(partition, offset)

    def carry_epochs(self, client: AIOKafkaClient) -> None:
        """Adds the epochs of the records that were read to the offsets that the client of a producer commits."""
        self._epochs.carry(client)

    def pause(self, partition: TopicPartition, offset: int | None) -> None:
        """Stops reading a partition until `resume`, and drops what was read ahead.

        Args:
            partition: the partition; nothing is done if it is not assigned any more.
            offset: from where to read after that; None for the current position.
        """
        if partition in self.consumer.assignment():
            again = self.position(partition) if offset is None else offset
            if again is not None:
                self.seek(partition, again)
            self.consumer.pause(partition)

    def resume(self, partition: TopicPartition) -> None:
        """Resumes a paused partition, if it is still assigned."""
        if partition in self.consumer.assignment():
            self.consumer.resume(partition)

    async def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        """The offset of the first record of a partition, and the one after the last record that can be read."""
        first = await self.consumer.beginning_offsets([partition])
        end = await self.consumer.end_offsets([partition])
        return first[partition], end[partition]

    async def known(self, topic: str) -> bool:
        """True if the group has committed an offset of any partition of a topic."""
        numbers = self.consumer.partitions_for_topic(topic) or ()
        return bool(await self.commits([TopicPartition(topic, number) for number in numbers]))

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commits offsets, each with its metadata.

        Raises:
            GroupMovedOnError: the group does not accept offsets of this member any more.
            KafkaError: the cluster refused them.
        """
        with self._lasting("accepts no offsets"):
            try:
                await self.consumer.commit(offsets)
            except (CommitFailedError, IllegalStateError) as exc:
                raise GroupMovedOnError(clients.describe(exc)) from exc

    def unread(self, polled: Mapping[TopicPartition, Sequence[SourceBatch]]) -> None:
        """Reverts a poll: its records are read again."""
        for partition, batches in polled.items():
            if batches:
                self.seek(partition, batches[0].offset)
