"""aiokafka's own record of assignments and positions, with what may be committed in place of what was fetched."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiokafka import TopicPartition
from aiokafka.consumer.subscription_state import Assignment, SubscriptionState, TopicPartitionState
from aiokafka.structs import OffsetAndMetadata

from app.chunks.pending import Pending
from transforms.commit_metadata import Noted, noted

__all__ = ["Subscriptions"]


class _State(TopicPartitionState):  # type: ignore[misc]  # aiokafka has no types
    """Tells when a partition is read from elsewhere, and what was noted at the commit where that is."""

    def __init__(self, assignment: Assignment, partition: TopicPartition, pending: Pending) -> None:
        super().__init__(assignment)
        self._partition = partition
        self._pending = pending
        self._committed: OffsetAndMetadata | None = None

    def update_committed(self, offset_meta: OffsetAndMetadata) -> None:
        self._committed = offset_meta
        super().update_committed(offset_meta)

    def reset_to(self, position: int) -> None:
        super().reset_to(position)
        committed = self._committed
        at_commit = committed is not None and committed.offset == position
        self._moved(noted(committed.metadata) if committed and at_commit else None)

    def seek(self, position: int) -> None:
        super().seek(position)
        self._moved(None)

    def _moved(self, found: Noted | None) -> None:
        if self._assignment.active:  # what is under way for another one says nothing of this
            self._pending.moved(self._partition, found)


class _Assignment(Assignment):  # type: ignore[misc]  # aiokafka has no types
    """Commits, by the application or by themselves, take what is safe."""

    def __init__(self, partitions: Iterable[TopicPartition], pending: Pending) -> None:
        super().__init__(tuple(partitions))
        self._pending = pending
        self._tp_state = {partition: _State(self, partition, pending) for partition in self.tps}

    def all_consumed_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return self._pending.safe(super().all_consumed_offsets())


class Subscriptions(SubscriptionState):  # type: ignore[misc]  # aiokafka has no types
    """Gives each assignment to `pending`; what is in it counts from a new beginning on.

    Args:
        pending: what has been read and not delivered.
        loop: the client's.
    """

    def __init__(self, pending: Pending, loop: Any) -> None:
        super().__init__(loop=loop)
        self._pending = pending

    def assign_from_subscribed(self, assignment: set[TopicPartition]) -> None:
        super().assign_from_subscribed(assignment)
        self._own()

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        super().assign_from_user(partitions)
        self._own()

    def _own(self) -> None:
        # Whoever waits for the assignment runs later, so nobody has seen the one that goes.
        partitions = tuple(self._subscription.assignment.tps)
        self._subscription._assignment = _Assignment(partitions, self._pending)  # noqa: SLF001  # there is no other way
        self._pending.assigned(partitions)
