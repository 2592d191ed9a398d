"""Topics with the offsets of their partitions, for callers that read a topic from its beginning to its current end.

The functions block. They also work in a thread that has an event loop, as in a notebook.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from app.config.naming import check_name
from app.config.settings import ClientSettings
from app.kafka.admin import EARLIEST, LATEST, AdminClient
from app.kafka.clients import admin, translated
from app.kafka.topics import Identity, Topic, identities, topics
from transforms.errors import ConfigurationError
from transforms.retention import Retention
from transforms.text import did_you_mean

_AGAIN_S = 0.2
_TRIES = 50

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets of a partition.

    Attributes:
        start: the offset of the first record.
        stable: the last stable offset: every transaction before it has ended.
        end: the offset of the next record.
    """

    start: int
    stable: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicSpans:
    """A topic, and the offsets of its partitions by number."""

    topic: Topic
    spans: Mapping[int, Span]

    @property
    def compacted(self) -> bool:
        """Whether Kafka keeps only the newest record of a key."""
        return "compact" in self.topic.cleanup_policy

    @property
    def retention(self) -> Retention:
        """How long its records stay."""
        return Retention(self.topic.name, self.topic.retention_ms, self.topic.cleanup_policy, self.topic.segment_ms)

    def difference(self, after: TopicSpans) -> str | None:
        """Why the records that were read since then may be incomplete, in a sentence, or None; `after` was later."""
        name = self.topic.name
        if self.topic.id != after.topic.id:
            return f"topic {name} was deleted and created again while it was read"
        if self.spans.keys() != after.spans.keys():
            return f"topic {name} had {len(self.spans)} partitions and has {len(after.spans)} now"
        if self.compacted != after.compacted:
            return f"cleanup.policy of topic {name} was changed while it was read"
        for number, span in self.spans.items():
            now = after.spans[number]
            if now.start > span.start:
                return (
                    f"topic {name} partition {number} began at offset {span.start:,} and begins at {now.start:,} now: "
                    "records were deleted while they were read"
                )
            if now.end < span.end:
                return (
                    f"topic {name} partition {number} ended at offset {span.end:,} and ends at {now.end:,} now: its "
                    "log was cut, as by a leader that lacked records"
                )
        return None


def described(client: ClientSettings, wanted: Mapping[str, Iterable[str]]) -> dict[str, TopicSpans]:
    """The current state of topics, in their order.

    Args:
        client: how to reach the cluster.
        wanted: the names of topics, by the option in which the user named them.

    Raises:
        ConfigurationError: a topic does not exist, or may not be described; a name is over its limit; or the cluster
            cannot be reached.
        ClusterError: the cluster did not answer.
    """
    for option, names in wanted.items():
        for name in names:
            check_name("topic", name, option, enabled=client.limit_names)

    async def look(connection: AdminClient) -> dict[str, TopicSpans]:
        found = await topics(connection, [name for names in wanted.values() for name in names])
        await _require(connection, client, wanted, found)
        spans = await _spans(connection, found)
        return {name: TopicSpans(topic, spans[name]) for name, topic in found.items()}

    found = asked(client, look, "topics cannot be described")
    return {name: found[name] for names in wanted.values() for name in names}


def required(client: ClientSettings, wanted: Mapping[str, Iterable[str]]) -> dict[str, Identity]:
    """Like `described`, but without offsets and configurations; needs no permission but Describe."""

    async def look(connection: AdminClient) -> dict[str, Identity]:
        found = await identities(connection.send, [name for names in wanted.values() for name in names])
        there = {name: each for name, each in found.items() if each is not None}
        await _require(connection, client, wanted, there)
        return there

    return asked(client, look, "topics cannot be described")


def spans(client: ClientSettings, topics: Mapping[str, Identity]) -> dict[str, dict[int, Span]]:
    """The offsets of each partition of the topics.

    Raises:
        ConfigurationError: the cluster cannot be reached.
        ClusterError: the cluster did not answer, or a topic is gone.
    """
    return asked(client, lambda connection: _spans(connection, topics), "offsets cannot be looked up")


def since(client: ClientSettings, topics: Iterable[TopicSpans], when_ms: int) -> dict[TopicPartition, int]:
    """By partition, the offset of the first record with this timestamp or a later one, if there is such a record.

    Raises:
        ConfigurationError: the cluster cannot be reached.
        ClusterError: the cluster did not answer.
    """
    places = _places({each.topic.name: each.topic for each in topics})
    found = asked(client, lambda connection: connection.offsets(places, when_ms), "offsets cannot be looked up")
    return {place: offset for place, offset in found.items() if offset >= 0}


def listed(client: ClientSettings) -> dict[str, Identity]:
    """Every topic that these credentials may describe, with the operations that they allow; includes internal topics.

    Raises:
        ConfigurationError: the cluster cannot be reached.
        ClusterError: the cluster did not answer.
    """

    async def look(connection: AdminClient) -> dict[str, Identity]:
        found = await identities(connection.send, sorted(await connection.list_topics()), operations=True)
        return {name: each for name, each in found.items() if each is not None}

    return asked(client, look, "topics cannot be listed")


def identified(client: ClientSettings, names: Iterable[str]) -> Mapping[str, Identity | None]:
    """Topics by name, None for one that does not exist; without those that these credentials may not describe.

    Raises:
        ConfigurationError: the cluster cannot be reached.
        ClusterError: the cluster did not answer.
    """
    return asked(client, lambda connection: identities(connection.send, names), "topics cannot be described")


def blocking(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine, which runs in a separate thread, as this one may have an event loop."""
    with ThreadPoolExecutor(1, thread_name_prefix="wideload-kafka") as pool:
        return pool.submit(asyncio.run, work).result()


async def _require(
    connection: AdminClient,
    client: ClientSettings,
    wanted: Mapping[str, Iterable[str]],
    found: Mapping[str, Topic | Identity],
) -> None:
    for option, names in wanted.items():
        for name in names:
            if name not in found:
                near = did_you_mean(name, sorted(await connection.list_topics()))
                raise ConfigurationError(
                    option,
                    f"{name} is not on the broker at {client.bootstrap_servers}; create it, or check its name{near}",
                )


async def _spans(connection: AdminClient, topics: Mapping[str, Topic | Identity]) -> dict[str, dict[int, Span]]:
    places = _places(topics)
    start = await connection.offsets(places, EARLIEST)
    stable = await connection.offsets(places, LATEST, committed=True)
    end = await connection.offsets(places, LATEST)  # last, so that it is never before the others
    found: dict[str, dict[int, Span]] = {name: {} for name in topics}
    for at in places:
        found[at.topic][at.partition] = Span(start[at], max(stable[at], start[at]), max(end[at], start[at]))
    return found


def _places(topics: Mapping[str, Topic | Identity]) -> list[TopicPartition]:
    return [TopicPartition(name, number) for name, topic in topics.items() for number in range(topic.partitions)]


def asked(client: ClientSettings, ask: Callable[[AdminClient], Awaitable[Result]], doing: str) -> Result:
    """The answer of the cluster, which is asked again for up to ten seconds while partitions have no leader.

    Raises:
        ConfigurationError: the cluster cannot be reached.
        ClusterError: it did not answer; `doing` is what was tried.
    """

    async def answer() -> Result:
        async with admin(client) as connection:
            for left in reversed(range(_TRIES)):
                try:
                    return await ask(connection)
                except KafkaError as exc:
                    if not (exc.retriable and left):
                        raise translated(exc, doing) from exc
                    await asyncio.sleep(_AGAIN_S)
        raise AssertionError

    return blocking(answer())
