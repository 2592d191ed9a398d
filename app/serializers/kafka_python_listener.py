"""What kafka-python calls when partitions come and go."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

from kafka import TopicPartition
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener, ConsumerRebalanceListener


class Listener(AsyncConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """Notes what goes, and commits before the application's own listener is called, on a thread of kafka-python's own.

    An eager assignor names all partitions, and gives most back. kafka-python keeps the position of one that comes back,
    so nothing of it is forgotten. Not each assignor says what is left: what counts is the assignment.

    Args:
        note: notes those that are not assigned, or have been lost.
        leave: commits what is safe of partitions that may go; raises no error.
        own: the application's listener.
    """

    def __init__(
        self,
        note: Callable[[Iterable[TopicPartition]], None],
        leave: Callable[[Collection[TopicPartition]], Awaitable[None]],
        own: ConsumerRebalanceListener | AsyncConsumerRebalanceListener | None,
    ) -> None:
        self._note, self._leave, self._own = note, leave, own

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._note(())
        await self._leave(revoked)
        await self._call("on_partitions_revoked", revoked)

    async def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self._note(lost)
        await self._call("on_partitions_lost", lost)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._note(())
        await self._call("on_partitions_assigned", assigned)

    async def _call(self, name: str, partitions: Collection[TopicPartition]) -> None:
        if self._own is not None:
            result: Any = getattr(self._own, name)(partitions)
            if inspect.isawaitable(result):
                await result
