"""aiokafka's assignments and positions, for a consumer that commits what it has delivered, not what it has fetched."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol, Self

from aiokafka import TopicPartition
from aiokafka.consumer.subscription_state import Assignment, SubscriptionState, TopicPartitionState
from aiokafka.structs import OffsetAndMetadata

from app.kafka.shielded import heard


class PolledSubscriptions(SubscriptionState):  # type: ignore[misc]  # aiokafka has no types
    """Assignments of a consumer whose polls end, and whose errors are given to those who wait alone."""

    @classmethod
    def adopt(cls, subscription: Any) -> None:
        """Makes aiokafka's own one of these; another one of ours stays as it is."""
        if type(subscription) is SubscriptionState:
            subscription.__class__ = cls

    def fetch_context(self) -> Self:
        """Lets aiokafka see the end of a poll that raises, or is cancelled, too.

        Else it takes that poll to last for ever, and `max.poll.interval.ms` never counts again. It is no generator as
        aiokafka's own, which costs a third of a `getone`.
        """
        return self

    def __enter__(self) -> None:
        self._fetch_count += 1

    def __exit__(self, *_: object) -> None:
        self._fetch_count -= 1
        if self._fetch_count == 0:
            self._last_fetch_ended = time.monotonic()

    def abort_waiters(self, exc: BaseException) -> None:
        """Lets the event loop not log the error: aiokafka gives it to waits that nobody reads, too."""
        for waiter in (*self._assignment_waiters, *self._fetch_waiters):
            waiter.add_done_callback(heard)
        super().abort_waiters(exc)


class Undelivered(Protocol):
    """The records that a consumer has fetched and not delivered yet."""

    def safe(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit if all records below `offsets` have been fetched."""

    def begin(self, place: TopicPartition, offset: int, metadata: str | None = None) -> None:
        """The client reads the partition from this offset on, which is that of a commit with `metadata`, or another.

        What waits for its delivery, as the client has left the range of the log, is not read again.
        """

    def seek(self, place: TopicPartition, offset: int) -> None:
        """The application has set the position; incomplete messages that begin before it are not forgotten."""

    def assigned(self, places: Collection[TopicPartition]) -> None:
        """Forgets all records: the consumer has a new assignment."""


class Woken(Exception):  # noqa: N818  # no error
    """A call that waits for records is to look for what other calls have left."""


class _State(TopicPartitionState):  # type: ignore[misc]  # aiokafka has no types
    """Reports each position that is set to `undelivered`.

    Attributes:
        commit: the one at which reading began, while nothing was read.
    """

    partition: TopicPartition
    of: _Assignment
    commit: OffsetAndMetadata | None = None

    def update_committed(self, offset_meta: OffsetAndMetadata) -> None:
        self.commit = offset_meta
        super().update_committed(offset_meta)

    def await_reset(self, strategy: int) -> None:
        if self.commit is not None and self.has_valid_position and self.position != self.commit.offset:
            self.commit = None  # it says nothing of a log that is behind its end, or was made again
        super().await_reset(strategy)

    def reset_to(self, position: int) -> None:
        super().reset_to(position)
        if self.of.active:  # the position of an earlier assignment says nothing about this one
            # The log may have lost the records at the commit. What was delivered above it stays delivered.
            commit = self.commit
            note = commit.metadata if commit is not None and 0 <= commit.offset <= position else None
            self.of.undelivered.begin(self.partition, position, note)

    def seek(self, position: int) -> None:
        super().seek(position)
        if self.of.active:
            self.of.undelivered.seek(self.partition, position)


class _Assignment(Assignment):  # type: ignore[misc]  # aiokafka has no types
    """Gives the safe offsets to `commit` and to auto-commit."""

    undelivered: Undelivered

    def all_consumed_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return self.undelivered.safe(super().all_consumed_offsets())


class Subscriptions(PolledSubscriptions):
    """Reports each assignment, and each position that is set, to the records that were fetched and not delivered."""

    undelivered: Undelivered

    @classmethod
    def adopt_for(cls, subscription: Any, undelivered: Undelivered) -> Subscriptions:
        """Makes aiokafka's own one of these, before it has partitions."""
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
        """The application reads the partition again, also what the commit notes as delivered."""
        self.subscription.assignment.state_value(partition).commit = None

    def wake(self) -> None:
        """Ends the waits of all calls for records, with `Woken`."""
        for waiter in self._fetch_waiters:
            if not waiter.done():
                waiter.add_done_callback(heard)
                waiter.set_exception(Woken())

    def _adopt(self) -> None:
        # Tasks that wait for the assignment run later, so none of them has seen it before.
        assignment: Any = self.subscription.assignment
        assignment.__class__, assignment.undelivered = _Assignment, self.undelivered
        for partition in assignment.tps:
            state = assignment.state_value(partition)
            state.__class__, state.partition, state.of = _State, partition, assignment
        self.undelivered.assigned(assignment.tps)
