"""Which partitions a rebalance takes from a consumer of kafka-python, as its listeners are told."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

from kafka import TopicPartition
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener, ConsumerRebalanceListener

__all__ = ["Listener", "Rebalances"]


class Rebalances:
    """What has gone, and where the application has set a position.

    kafka-python calls listeners on a thread of its own, at any time. So this only takes notes; the consumer acts on
    them with its next call.

    Args:
        owned: gives the partitions that are assigned now.

    Attributes:
        gone: the partitions that are to be forgotten, in order.
        sought: those whose position the application has set since they came.
    """

    def __init__(self, owned: Callable[[], set[TopicPartition]]) -> None:
        self.gone: deque[TopicPartition] = deque()
        self.sought: set[TopicPartition] = set()
        self._owned = owned
        self._revoked: set[TopicPartition] = set()

    def seek(self, partitions: Iterable[TopicPartition]) -> None:
        """Takes in that the application has set positions."""
        self.sought.update(partitions)
        self.gone.extend(partitions)

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Takes in that partitions may go.

        An eager assignor names all of them, and gives most back. kafka-python keeps the position of one that comes
        back, so the consumer must forget nothing of it.
        """
        left = set(partitions) - self._owned()
        self.lost(left)  # as a cooperative assignor tells it
        self._revoked |= set(partitions) - left

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Takes in what has come, or has stayed."""
        self.lost(self._revoked - set(partitions))
        self._revoked = set()

    def settle(self) -> None:
        """Takes in that revoked partitions are not assigned any more: not each assignor tells what is left."""
        left = self._revoked - self._owned()
        if left:
            self.lost(left)
            self._revoked -= left

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Takes in that partitions have gone."""
        self.sought -= set(partitions)
        self.gone.extend(partitions)


class Listener(AsyncConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """Commits before the application's own listener is called, and takes notes of what comes and goes.

    Args:
        rebalances: takes the notes.
        leave: commits what is safe of partitions that may go; raises no error.
        own: the application's listener.
    """

    def __init__(
        self,
        rebalances: Rebalances,
        leave: Callable[[Collection[TopicPartition]], Awaitable[None]],
        own: ConsumerRebalanceListener | AsyncConsumerRebalanceListener | None,
    ) -> None:
        self._rebalances, self._leave, self._own = rebalances, leave, own

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """As kafka-python calls it."""
        self._rebalances.revoked(revoked)
        await self._leave(revoked)
        await self._call("on_partitions_revoked", revoked)

    async def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        """As kafka-python calls it."""
        self._rebalances.lost(lost)
        await self._call("on_partitions_lost", lost)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """As kafka-python calls it."""
        self._rebalances.assigned(assigned)
        await self._call("on_partitions_assigned", assigned)

    async def _call(self, name: str, partitions: Collection[TopicPartition]) -> None:
        if self._own is not None:
            result: Any = getattr(self._own, name)(partitions)
            if inspect.isawaitable(result):
                await result
