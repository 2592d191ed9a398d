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
    """Passes the tokens of a provider to kafka-python's logins."""

    def __init__(self, provider: TokenProvider) -> None:
        super().__init__()
        self._provider = provider

    def token(self) -> str:
        """The current token.

        Raises:
            TokenError: there is none.
        """
        return self._provider.now()


class Listener(AsyncConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """Commits and forgets revoked partitions before the application's own listener is called.

    An eager assignor revokes all partitions, and assigns most of them again. kafka-python keeps the position of those,
    so nothing of them is forgotten. Not every assignor reports the remaining ones, so the assignment counts.

    Args:
        forget: forgets those that are not assigned, and those that it is given.
        leave: commits the safe offsets of partitions that may be revoked; raises no error.
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
