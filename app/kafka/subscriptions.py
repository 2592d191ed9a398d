"""aiokafka's assignments and positions, for a consumer that commits what it has delivered, not what it has fetched."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

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

    @contextlib.contextmanager
    def fetch_context(self) -> Iterator[None]:
        """Lets aiokafka see the end of a poll that raises, or is cancelled, too.

        Else it takes that poll to last for ever, and `max.poll.interval.ms` never counts again.
        """
        poll = super().fetch_context()
        poll.__enter__()
        try:
            yield
        finally:
            poll.__exit__(None, None, None)  # aiokafka does not count an end with an error

    def abort_waiters(self, exc: BaseException) -> None:
        """Lets the event loop not log the error: aiokafka gives it to waits that nobody reads, too."""
        for waiter in (*self._assignment_waiters, *self._fetch_waiters):
            waiter.add_done_callback(heard)
        super().abort_waiters(exc)


class Undelivered(Protocol):
    """The records that a consumer has fetched and not delivered yet."""

    def safe(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit if all records below `offsets` have been fetched."""

    def moved(
        self, partition: TopicPartition, metadata: str | None, *, by_client: bool = False, offset: int | None = None
    ) -> None:
        """Notes that the position of a partition is set, to that of a commit with `metadata`, or to another one.

        What was read is forgotten. Where the client itself has set it (`by_client`), as the offset is out of range,
        only incomplete messages are: what waits for its delivery is not read again. Where the application has set it
        to an `offset`, incomplete messages that begin before that are not forgotten.
        """

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets all records: the consumer has a new assignment."""


class _State(TopicPartitionState):  # type: ignore[misc]  # aiokafka has no types
    """Tells `undelivered` when the position of a partition is set."""

    partition: TopicPartition
    of: _Assignment
    committed: OffsetAndMetadata | None = None

    def update_committed(self, offset_meta: OffsetAndMetadata) -> None:
        self.committed = offset_meta
        super().update_committed(offset_meta)

    def await_reset(self, strategy: int) -> None:
        super().await_reset(strategy)
        self._moved(None, by_client=True)

    def reset_to(self, position: int) -> None:
        super().reset_to(position)
        committed = self.committed
        metadata = committed.metadata if committed is not None and committed.offset == position else None
        self._moved(metadata, by_client=True)

    def seek(self, position: int) -> None:
        super().seek(position)
        self._moved(None, offset=position)

    def _moved(self, metadata: str | None, *, by_client: bool = False, offset: int | None = None) -> None:
        if self.of.active:  # the position of an earlier assignment says nothing about this one
            self.of.undelivered.moved(self.partition, metadata, by_client=by_client, offset=offset)


class _Assignment(Assignment):  # type: ignore[misc]  # aiokafka has no types
    """Gives the safe offsets to `commit` and to auto-commit."""

    undelivered: Undelivered

    def all_consumed_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return self.undelivered.safe(super().all_consumed_offsets())


class Subscriptions(PolledSubscriptions):
    """Reports each assignment, and each position that is set, to the records that were fetched and not delivered."""

    undelivered: Undelivered

    @classmethod
    def adopt_for(cls, subscription: Any, undelivered: Undelivered) -> None:
        """Makes aiokafka's own one of these, before it has partitions."""
        subscription.__class__, subscription.undelivered = cls, undelivered

    def assign_from_subscribed(self, assignment: set[TopicPartition]) -> None:
        super().assign_from_subscribed(assignment)
        self._adopt()

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        super().assign_from_user(partitions)
        self._adopt()

    def _adopt(self) -> None:
        # Tasks that wait for the assignment run later, so none of them has seen it before.
        assignment: Any = self.subscription.assignment
        assignment.__class__, assignment.undelivered = _Assignment, self.undelivered
        for partition in assignment.tps:
            state = assignment.state_value(partition)
            state.__class__, state.partition, state.of = _State, partition, assignment
        self.undelivered.assigned(tuple(assignment.tps))
