"""Changes of topics while a pipeline runs: deleted, created anew, partitions added, limits raised.

Kafka's clients look at their topics every few minutes, and by name alone: a topic that was deleted and created anew is
to them the same, with offsets that mean other records. Since Kafka 2.8 a topic has an id (KIP-516) that tells; brokers
without it are asked for the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.types import Boolean, CompactArray, Int16, Int32, Int64, Schema

from app.kafka.clients import ClusterError
from app.kafka.queries import TAGS, TEXT, Query, version

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from app.cluster.preflight import Plan, Topic
    from app.pipeline.termination import Ending

__all__ = ["Changes", "Identity", "LimitRaisedError", "PartitionsChangedError", "identities"]

# Seen twice, for a broker may be a little behind the others.
_LOOK_S = 2.5
_NO_ID = (0, 0)
_LIMIT = "max.message.bytes"


class PartitionsChangedError(ClusterError):
    """A topic has more partitions than the plan says; what was written may be committed before another try."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retriable=True)


class LimitRaisedError(ClusterError):
    """A topic takes more than when the flow began; what was written may be committed before another try."""

    def __init__(self, topic: str, limit: int, former: int) -> None:
        super().__init__(f"{_LIMIT} of topic {topic} is {limit:,}, and was {former:,}", retriable=True)


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells one topic from a later one of the same name.

    Attributes:
        id: given by the cluster; None where it gives none.
        partitions: how many there are.
    """

    id: str | None
    partitions: int


class _TopicIds(Query):
    """Topics with their ids; from Kafka 3.1 on."""

    VERSIONS = (
        version(
            3,
            12,
            Schema(
                ("topics", CompactArray(("id_high", Int64), ("id_low", Int64), ("name", TEXT), TAGS)),
                ("allow_auto_topic_creation", Boolean),
                ("include_topic_authorized_operations", Boolean),
                TAGS,
            ),
            Schema(
                ("throttle_time_ms", Int32),
                ("brokers", CompactArray(("node_id", Int32), ("host", TEXT), ("port", Int32), ("rack", TEXT), TAGS)),
                ("cluster_id", TEXT),
                ("controller_id", Int32),
                (
                    "topics",
                    CompactArray(
                        ("error_code", Int16),
                        ("name", TEXT),
                        ("id_high", Int64),
                        ("id_low", Int64),
                        ("is_internal", Boolean),
                        (
                            "partitions",
                            CompactArray(
                                ("error_code", Int16),
                                ("partition", Int32),
                                ("leader", Int32),
                                ("leader_epoch", Int32),
                                ("replicas", CompactArray(Int32)),
                                ("isr", CompactArray(Int32)),
                                ("offline_replicas", CompactArray(Int32)),
                                TAGS,
                            ),
                        ),
                        ("authorized_operations", Int32),
                        TAGS,
                    ),
                ),
                TAGS,
            ),
        ),
    )

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(
            topics=[(*_NO_ID, name, {}) for name in names],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )


async def identities(send: Callable[[Any], Awaitable[Any]], names: Iterable[str]) -> Mapping[str, Identity | None]:
    """The topics by name, None for each that does not exist; without those of which the user may not know.

    Args:
        send: sends a request to a broker, and returns the answer.
        names: of the topics.

    Raises:
        KafkaError: there was no answer.
    """
    names = list(dict.fromkeys(names))
    try:
        answer = await send(_TopicIds(names))
    except IncompatibleBrokerVersion:
        answer = await send(MetadataRequest(names, allow_auto_topic_creation=False))
    found: dict[str, Identity | None] = {}
    for topic in answer.to_object()["topics"]:
        name = topic.get("name") or topic.get("topic")
        error = for_code(topic["error_code"])
        if error is UnknownTopicOrPartitionError:
            found[name] = None
        elif error.errno == 0:
            number = topic.get("id_high", 0), topic.get("id_low", 0)
            identity = None if number == _NO_ID else f"{number[0] % 2**64:016x}{number[1] % 2**64:016x}"
            found[name] = Identity(identity, len(topic["partitions"]))
    return found


async def _limits(send: Callable[[Any], Awaitable[Any]], names: Iterable[str]) -> Mapping[str, int]:
    """The `max.message.bytes` of the topics, without those of which the user may not know."""
    answer = await send(DescribeConfigsRequest([(ConfigResourceType.TOPIC, name, [_LIMIT]) for name in names]))
    return {
        topic["resource_name"]: int(entry["config_value"])
        for topic in answer.to_object()["resources"]
        for entry in topic["config_entries"]
        if topic["error_code"] == 0 and entry["config_names"] == _LIMIT
    }


class Changes:
    """Looks whether the topics of a flow still are those of its plan. Belongs to its event loop.

    Args:
        plan: what the preflight found.
        ending: of the flow, where they are not.
        send: sends a request to a broker, and returns the answer.
    """

    def __init__(self, plan: Plan, ending: Ending, send: Callable[[Any], Awaitable[Any]]) -> None:
        self._sources = {topic.name: topic for topic in plan.sources}
        self._targets = {topic.name: topic for topic in (plan.sink, plan.dead_letters) if topic is not None}
        self._topics = {**self._sources, **self._targets}
        # As they were first seen: what the plan has may be lower, where a refusal has told more
        # (`app.pipeline.learned_limits`).
        self._limits: dict[str, int] = {}
        self._ending = ending
        self._send = send

    async def watch(self) -> None:
        """Looks again and again; ends the flow with the first change, and returns."""
        seen: str | None = None
        while True:
            # Where there is no answer nothing is known; the clients see for themselves that brokers are away.
            with contextlib.suppress(KafkaError, OSError):
                change = self._change(await identities(self._send, self._topics))
                change = change or self._raised(await _limits(self._send, self._targets))
                if change is not None and str(change) == seen:
                    self._ending.fail(change)
                    return
                seen = None if change is None else str(change)
            await asyncio.sleep(_LOOK_S)

    def _change(self, found: Mapping[str, Identity | None]) -> ClusterError | None:
        # What must not be committed comes first.
        changed = {name: self._topics[name] for name in found}
        for name, topic in sorted(changed.items(), key=lambda each: each[0] not in self._sources):
            identity = found[name]
            if identity is None:
                return ClusterError(f"topic {name} does not exist any more", retriable=True)
            if topic.id is not None and identity.id is not None and identity.id != topic.id:
                return ClusterError(f"topic {name} was deleted and created anew", retriable=True)
        for name, topic in changed.items():
            if (error := _grown(topic, found[name])) is not None:
                return error
        return None

    def _raised(self, limits: Mapping[str, int]) -> LimitRaisedError | None:
        """A limit that is lowered shows when the topic refuses something; of one that is raised nothing else tells."""
        for name, limit in limits.items():
            former = self._limits.setdefault(name, limit)
            if limit > former:
                return LimitRaisedError(name, limit, former)
        return None


def _grown(topic: Topic, identity: Identity | None) -> PartitionsChangedError | None:
    if identity is None or identity.partitions == topic.partitions:
        return None
    return PartitionsChangedError(
        f"topic {topic.name} has {identity.partitions} partitions, and had {topic.partitions}"
    )
