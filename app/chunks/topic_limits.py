"""What topics take, for a producer without an event loop: asked once, and again when a topic refuses a record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from app.kafka.topics import Topic, topic_of
from transforms.errors import ChunkError, ConfigurationError

__all__ = ["Ask", "TopicLimits", "check_splits", "described"]

Ask = Callable[[Mapping[str, object], str], Topic]

_LOOKUP_S = 30.0


class TopicLimits:
    """Topics as the cluster describes them. Several threads may use one object, and ask for one topic at a time each.

    Args:
        config: of a client, with `bootstrap.servers`, `security.protocol`, `sasl.*` and `ssl.*`.
        ask: takes this configuration and a topic; `described` by default.
    """

    def __init__(self, config: Mapping[str, object], ask: Ask | None = None) -> None:
        self._config = config
        self._ask = ask or described
        self._known: dict[str, Topic] = {}

    def known(self, topic: str) -> Topic | None:
        """The topic, if it was asked before."""
        return self._known.get(topic)

    def of(self, topic: str) -> Topic:
        """The topic; waits for the answer where it was not asked before.

        Raises:
            ConfigurationError: the topic does not exist, or the cluster does not describe it.
        """
        found = self._known.get(topic)
        if found is None:
            found = self._known[topic] = self._asked(topic)
        return found

    def forget(self, topic: str) -> None:
        """Has the topic asked again."""
        self._known.pop(topic, None)

    def _asked(self, topic: str) -> Topic:
        try:
            # A thread of its own, since this one may have an event loop that runs.
            with ThreadPoolExecutor(1, "topic-limits") as pool:
                return pool.submit(self._ask, self._config, topic).result()
        except Exception as exc:  # a client that cannot be made of these keys may raise any
            reason = f"topic {topic} does not exist" if isinstance(exc, KeyError) else str(exc) or type(exc).__name__
            raise ConfigurationError(
                "chunk.max.bytes", f"is not set, and topic {topic} does not say what it takes: {reason}"
            ) from exc


def described(config: Mapping[str, object], topic: str) -> Topic:
    """The topic as the cluster describes it; waits for the answer: for a thread without an event loop.

    Raises:
        ClusterError: the cluster did not answer.
        ConfigurationError: the cluster cannot be reached, or the user may not describe the topic.
        KeyError: it does not exist.
        TimeoutError: the answer took too long.
    """
    return asyncio.run(asyncio.wait_for(topic_of(config, topic), _LOOKUP_S))


def check_splits(name: str, topic: Topic | None, size: int, limit: int, most: int) -> None:
    """Refuses what a producer must not write as chunks.

    Args:
        name: of the topic.
        topic: as the cluster describes it; None if it does not.
        size: of the value, in bytes.
        limit: the most bytes of one chunk.
        most: `chunk.max.message.bytes`.

    Raises:
        ChunkError: the value is longer than `most`, or the topic is compacted.
    """
    if size > most:
        raise ChunkError(size, limit, f"chunk.max.message.bytes is {most:,}")
    if topic is not None and "compact" in topic.cleanup_policy:
        what = f"topic {name} has cleanup.policy={topic.cleanup_policy}"
        raise ChunkError(size, limit, f"{what}, and a chunk would be compacted away by the next one of its key")
