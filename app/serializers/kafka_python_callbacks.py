"""What kafka-python calls on a separate thread: providers of tokens, and listeners of rebalances."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

from kafka import TopicPartition
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener, ConsumerRebalanceListener
from kafka.net.sasl.oauth import AbstractTokenProvider

from app.kafka.tokens import TokenProvider


class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Gives the tokens of a provider, when kafka-python logs in."""

    def __init__(self, provider: TokenProvider) -> None:
        super().__init__()
        self._provider = provider

    def token(self) -> str:
        """The token of now.

        Raises:
            TokenError: there is none.
        """
        return self._provider.now()


class Listener(AsyncConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """Commits what goes, and forgets it, before the application's own listener is called.

    An eager assignor names all partitions, and gives most back. kafka-python keeps the position of one that comes back,
    so nothing of it is forgotten. Not each assignor says what is left: what counts is the assignment.

    Args:
        forget: forgets those that are not assigned, and those that it is given.
        leave: commits what is safe of partitions that may go; raises no error.
        own: the application's listener.
    """

    def __init__(
        self,
        forget: Callable[[Iterable[TopicPartition]], None],
        leave: Callable[[Collection[TopicPartition]], Awaitable[None]],
        own: ConsumerRebalanceListener | AsyncConsumerRebalanceListener | None,
    ) -> None:
        self._forget, self._leave, self._own = forget, leave, own

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        await self._leave(revoked)
        self._forget(())
        await self._call("on_partitions_revoked", revoked)

    async def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self._forget(lost)
        await self._call("on_partitions_lost", lost)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._forget(())
        await self._call("on_partitions_assigned", assigned)

    async def _call(self, name: str, partitions: Collection[TopicPartition]) -> None:
        if self._own is not None:
            result: Any = getattr(self._own, name)(partitions)
            if inspect.isawaitable(result):
                await result
