"""aiokafka's assignments and positions, for a consumer that commits delivered records, not fetched ones."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol, Self

from aiokafka import TopicPartition
from aiokafka.consumer.subscription_state import Assignment, SubscriptionState, TopicPartitionState
from aiokafka.structs import OffsetAndMetadata

from app.kafka.shielded import retrieve_exception


class PolledSubscriptions(SubscriptionState):  # type: ignore[misc]  # aiokafka has no types
    """Assignments of a consumer whose polls always end, and whose errors are reported only to calls that wait."""

    @classmethod
    def adopt(cls, subscription: Any) -> None:
        """Converts aiokafka's own object to this class; an object of ours stays as it is."""
        if type(subscription) is SubscriptionState:
            subscription.__class__ = cls

    def fetch_context(self) -> Self:
        """Lets aiokafka notice the end of a poll that raises or is cancelled, too.

        aiokafka would assume that this poll lasts forever, and `max.poll.interval.ms` would never apply again. Unlike
        aiokafka's own context, this is not a generator, which costs a third of a `getone`.
        """
        return self

    def __enter__(self) -> None:
        self._fetch_count += 1

    def __exit__(self, *_: object) -> None:
        self._fetch_count -= 1
        if self._fetch_count == 0:
            self._last_fetch_ended = time.monotonic()

    def abort_waiters(self, exc: BaseException) -> None:
        """Keeps asyncio from logging the error, which aiokafka also sets in futures that nobody reads."""
        for waiter in (*self._assignment_waiters, *self._fetch_waiters):
            waiter.add_done_callback(retrieve_exception)
        super().abort_waiters(exc)


class Undelivered(Protocol):
    """The records that a consumer has fetched and not delivered yet."""

    def safe(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit if all records below `offsets` have been fetched."""

    def begin(self, place: TopicPartition, offset: int, metadata: str | None = None) -> None:
        """The client reads the partition from this offset on, that of a commit with `metadata`, or another one.

        If the client had left the range of the log, the records that wait for their delivery are not read again.
        """

    def seek(self, place: TopicPartition, offset: int) -> None:
        """The application has set the position; incomplete messages that start before it are kept."""

    def assigned(self, places: Collection[TopicPartition]) -> None:
        """Forgets all records: the consumer has a new assignment."""


class Woken(Exception):  # noqa: N818  # not an error
    """A call that waits for records must check for records that other calls have left."""


class _State(TopicPartitionState):  # type: ignore[misc]  # aiokafka has no types
    """Reports each new position to `undelivered`.

    Attributes:
        commit: the commit at which reading started, while nothing was read.
    """

    partition: TopicPartition
    of: _Assignment
    commit: OffsetAndMetadata | None = None

    def update_committed(self, offset_meta: OffsetAndMetadata) -> None:
        self.commit = offset_meta
        super().update_committed(offset_meta)

    def await_reset(self, strategy: int) -> None:
        if self.commit is not None and self.has_valid_position and self.position != self.commit.offset:
            self.commit = None  # it does not apply to a log that is behind its end, or was recreated
        super().await_reset(strategy)

    def reset_to(self, position: int) -> None:
        super().reset_to(position)
        if self.of.active:  # the position of an earlier assignment does not apply to this one
            # The log may have lost the records at the commit. Records above it that were delivered stay delivered.
            commit = self.commit
            note = commit.metadata if commit is not None and 0 <= commit.offset <= position else None
            self.of.undelivered.begin(self.partition, position, note)

    def seek(self, position: int) -> None:
        super().seek(position)
        if self.of.active:
            self.of.undelivered.seek(self.partition, position)


class _Assignment(Assignment):  # type: ignore[misc]  # aiokafka has no types
    """Makes `commit` and auto-commit use the safe offsets."""

    undelivered: Undelivered

    def all_consumed_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return self.undelivered.safe(super().all_consumed_offsets())


class Subscriptions(PolledSubscriptions):
    """Reports each assignment, and each new position, to the records that were fetched and not delivered."""

    undelivered: Undelivered

    @classmethod
    def adopt_for(cls, subscription: Any, undelivered: Undelivered) -> Subscriptions:
        """Converts aiokafka's own object to this class, before it has partitions."""
        subscription.__class__, subscription.undelivered = cls, undelivered
        adopted: Subscriptions = subscription
        return adopted

    def assign_from_subscribed(self, assignment: set[TopicPartition]) -> None:
        super().assign_from_subscribed(assignment)
        self._adopt()

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        super().assign_from_user(partitions)
        self._adopt()

    def forget_commit(self, partition: TopicPartition) -> None:
        """The application reads the partition again, including what the commit notes as delivered."""
        self.subscription.assignment.state_value(partition).commit = None

    def wake(self) -> None:
        """Ends the waits of all calls for records, with `Woken`."""
        for waiter in self._fetch_waiters:
            if not waiter.done():
                waiter.add_done_callback(retrieve_exception)
                waiter.set_exception(Woken())

    def _adopt(self) -> None:
        # Tasks that wait for the assignment run later, so none of them has seen it before.
        assignment: Any = self.subscription.assignment
        assignment.__class__, assignment.undelivered = _Assignment, self.undelivered
        for partition in assignment.tps:
            state = assignment.state_value(partition)
            state.__class__, state.partition, state.of = _State, partition, assignment
        self.undelivered.assigned(assignment.tps)
