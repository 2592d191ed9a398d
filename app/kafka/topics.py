"""Topics as the cluster describes them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.metadata import MetadataRequest

from app.config.client import embedded_client_settings
from app.kafka.admin import AdminClient
from app.kafka.clients import ClusterError, admin, describe
from app.kafka.queries import METADATA_PARTITIONS, Query, metadata_answer, version
from transforms.errors import ConfigurationError
from transforms.retention import FOREVER
from transforms.text import did_you_mean

__all__ = [
    "CLEANUP_POLICY",
    "MAX_MESSAGE_BYTES",
    "NEWEST",
    "OLDEST",
    "TIMESTAMPS",
    "Identity",
    "InSync",
    "Operation",
    "Topic",
    "TopicSettings",
    "identities",
    "missing_topic",
    "shortage",
    "timestamp_bound_ms",
    "topic_of",
    "topic_settings",
    "topics",
]

MAX_MESSAGE_BYTES = "max.message.bytes"
CLEANUP_POLICY = "cleanup.policy"
_MIN_IN_SYNC = "min.insync.replicas"

InSync = Mapping[int, tuple[int, int]]
"""By the number of a partition, how many of its replicas are in sync, and how many there are."""

_NO_ID = (0, 0)
_NOT_SAID = -(2**31)  # in the place of operations
_NO_TIMESTAMP = -1
_COMPRESSION, _OF_PRODUCER = "compression.type", "producer"
_TIMESTAMP_TYPE = "message.timestamp.type"
_EITHER_WAY = "message.timestamp.difference.max.ms"  # up to Kafka 3.9, for each of the two that is not set
_UNBOUNDED = 2**63 - 1

OLDEST, NEWEST = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
"""How far the timestamp of a record may be behind the broker's clock, and ahead of it; from Kafka 3.6 on."""

TIMESTAMPS = (_TIMESTAMP_TYPE, OLDEST, NEWEST, _EITHER_WAY)
"""The properties of a topic that say which timestamps it takes."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the cluster describes it.

    Attributes:
        name: of the topic.
        partitions: how many it has.
        max_message_bytes: the most bytes of one batch.
        cleanup_policy: `delete`, `compact`, or both.
        retention_ms: how long records stay if the policy has `delete`; -1 for ever.
        segment_ms: how much longer they may stay, since whole segments are deleted; 0 if the cluster does not say.
        id: of the topic; a later topic of the same name has another. None if the cluster gives none.
        oldest_ms: how old the timestamp of a record may be; None for no limit.
        newest_ms: how far ahead the timestamp of a record may be; None for no limit.
        recompressed: whether brokers compress its batches anew: its `compression.type` is not `producer`.
        shortage: see `shortage`.
    """

    name: str
    partitions: int
    max_message_bytes: int
    cleanup_policy: str
    retention_ms: int = FOREVER
    segment_ms: int = 0
    id: str | None = None
    oldest_ms: int | None = None
    newest_ms: int | None = None
    recompressed: bool = False
    shortage: str | None = None

    def check_partition(self, number: int | None) -> None:
        """Refuses the number of a partition that the topic does not have; None is taken.

        Raises:
            ConfigurationError: there is no such partition.
        """
        if number is not None and number >= self.partitions:
            raise ConfigurationError(
                "--partition", f"found {number}, topic {self.name} has partitions 0 to {self.partitions - 1}"
            )

    def takes_timestamp(self, timestamp_ms: int, now_s: float, margin_ms: int = 0) -> bool:
        """Whether brokers take a record with this timestamp now, if their clocks agree with ours.

        Args:
            timestamp_ms: of the record.
            now_s: the time here, in seconds since 1970.
            margin_ms: subtracted from the topic's limits; below 0 it extends them.
        """
        if timestamp_ms == _NO_TIMESTAMP:
            return True
        ahead_ms = timestamp_ms - int(now_s * 1000)
        return (self.newest_ms is None or ahead_ms + margin_ms <= self.newest_ms) and (
            self.oldest_ms is None or margin_ms - ahead_ms <= self.oldest_ms
        )


async def topic_of(config: Mapping[str, object], name: str) -> Topic:
    """A topic as the cluster describes it, for a client of this configuration.

    Raises:
        ConfigurationError: the cluster cannot be reached, or the user may not describe the topic.
        ClusterError: the cluster did not answer.
        KeyError: it does not exist.
    """
    async with admin(embedded_client_settings(config)) as connection:
        return (await topics(connection, [name]))[name]


async def topics(connection: AdminClient, names: Sequence[str]) -> dict[str, Topic]:
    """The topics that exist, by name.

    Raises:
        ConfigurationError: the user may not describe one of them.
        ClusterError: the cluster did not answer.
    """
    try:
        # All topics are requested: a request for one by name would create it if auto.create.topics.enable is set.
        described = {entry["topic"]: entry for entry in await connection.describe_topics()}
        configs = await _configs(connection, [name for name in dict.fromkeys(names) if name in described])
        present = list(configs)
        found_ids = await identities(connection.send, present)
    except KafkaError as exc:
        raise ClusterError(f"topics cannot be described: {describe(exc)}", retriable=exc.retriable) from exc
    found = {}
    for name in present:
        error = for_code(described[name]["error_code"])
        if error.errno != 0:
            raise ConfigurationError("topics", f"topic {name} cannot be described: {describe(error())}")
        config = configs[name]
        identity = found_ids.get(name)
        found[name] = Topic(
            name=name,
            partitions=len(described[name]["partitions"]),
            max_message_bytes=int(config[MAX_MESSAGE_BYTES]),
            cleanup_policy=config[CLEANUP_POLICY],
            retention_ms=int(config["retention.ms"]),
            segment_ms=int(config.get("segment.ms") or 0),
            id=identity.id if identity is not None else None,
            oldest_ms=timestamp_bound_ms(config, OLDEST),
            newest_ms=timestamp_bound_ms(config, NEWEST),
            recompressed=config.get(_COMPRESSION, _OF_PRODUCER) != _OF_PRODUCER,
            shortage=shortage(name, _in_sync(described[name]["partitions"]), int(config.get(_MIN_IN_SYNC) or 1)),
        )
    return found


def _in_sync(partitions: Iterable[Mapping[str, Any]]) -> InSync:
    return {each["partition"]: (len(each["isr"]), len(each["replicas"])) for each in partitions}


def shortage(topic: str, in_sync: InSync, least: int) -> str | None:
    """Which partitions of a topic accept no record with `acks=all`, as too few replicas are in sync; None if all do.

    Args:
        topic: its name.
        in_sync: of its partitions.
        least: `min.insync.replicas`. Brokers require no more replicas than a partition has.
    """
    short = {number: found for number, (found, replicas) in in_sync.items() if found < min(least, replicas)}
    if not short:
        return None
    number, found = min(short.items())
    others = f" (and {len(short) - 1} more)" if short.keys() - {number} else ""
    return (
        f"topic {topic}, partition {number}{others} accepts no records: {found} replica{'' if found == 1 else 's'} in "
        f"sync, and {_MIN_IN_SYNC} is {least}; start the missing brokers, or lower {_MIN_IN_SYNC} of the topic"
    )


async def missing_topic(connection: AdminClient, name: str, hint: str, *, existed: bool = False) -> str:
    """What is said of a topic that does not exist: with a topic of nearly this name, if the user may see one.

    Args:
        connection: to the cluster.
        name: of the topic.
        hint: what to do about it.
        existed: whether it has existed, so that its name is right.
    """
    known: list[str] = []
    if not existed:
        with contextlib.suppress(KafkaError):  # it is only a hint
            known = [entry["topic"] for entry in await connection.describe_topics() if not entry.get("is_internal")]
    # On a thread: with many topics the comparison takes a while.
    return f"topic {name} does not exist{hint}{await asyncio.to_thread(did_you_mean, name, known)}"


async def _configs(connection: AdminClient, names: Sequence[str]) -> dict[str, Mapping[str, str]]:
    if not names:
        return {}
    others = "retention.ms", "segment.ms", _COMPRESSION, _MIN_IN_SYNC, *TIMESTAMPS
    wanted = dict.fromkeys([MAX_MESSAGE_BYTES, CLEANUP_POLICY, *others])
    resources = [ConfigResource(ConfigResourceType.TOPIC, name, wanted) for name in names]
    configs: dict[str, Mapping[str, str]] = {}
    for response in await connection.describe_configs(resources):
        for resource in response.to_object()["resources"]:
            error = for_code(resource["error_code"])
            if error is UnknownTopicOrPartitionError:
                continue  # deleted since the cluster named it
            if error.errno != 0:
                raise ConfigurationError(
                    "topics",
                    f"the configuration of topic {resource['resource_name']} cannot be read: {describe(error())}; "
                    "grant DescribeConfigs on it",
                )
            configs[resource["resource_name"]] = {
                entry["config_names"]: entry["config_value"] for entry in resource["config_entries"]
            }
    return configs


def timestamp_bound_ms(config: Mapping[str, str], name: str) -> int | None:
    """How far from now a timestamp may be; None if brokers set timestamps themselves, or do not say.

    Without a bound it is 2**63 - 1, as brokers say it: there are timestamps that are further from now.

    Args:
        config: the values of `TIMESTAMPS` that the topic has.
        name: `OLDEST` or `NEWEST`.
    """
    if config.get(_TIMESTAMP_TYPE) == "LogAppendTime":
        return None
    bounds = [int(value) for each in (name, _EITHER_WAY) if (value := config.get(each))]
    return next((each for each in bounds if each != _UNBOUNDED), _UNBOUNDED if bounds else None)


class Operation(IntEnum):
    """What an ACL may allow with a topic; the numbers are Kafka's (`AclOperation`)."""

    READ = 3
    WRITE = 4


@dataclass(frozen=True, slots=True)
class Identity:
    """Tells a topic from a later one of the same name.

    Attributes:
        id: of the topic; None if the cluster gives none.
        partitions: how many it has.
        in_sync: of each partition.
        operations: what the user may do with it; None if the cluster does not say, or was not asked.
    """

    id: str | None
    partitions: int
    in_sync: InSync = field(default_factory=dict)
    operations: frozenset[Operation] | None = None


class _TopicIds(Query):
    """Topics with their ids; from Kafka 2.8 on."""

    VERSIONS = (
        version(
            3,
            11,
            "topics:[id_high:int64 id_low:int64 name:text] allow_auto_topic_creation:boolean "
            "include_topic_authorized_operations:boolean",
            metadata_answer(
                f"error_code:int16 name:text id_high:int64 id_low:int64 is_internal:boolean "
                f"partitions:{METADATA_PARTITIONS} authorized_operations:int32"
            ),
        ),
    )

    def __init__(self, names: Iterable[str], *, operations: bool) -> None:
        super().__init__(
            topics=[(*_NO_ID, name, {}) for name in names],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=operations,
        )


async def identities(
    send: Callable[[Any], Awaitable[Any]], names: Iterable[str], *, operations: bool = False
) -> Mapping[str, Identity | None]:
    """The topics by name, None for a topic that does not exist; without topics that the user may not describe.

    Args:
        send: sends a request to a broker, and returns the response.
        names: of the topics.
        operations: whether to ask for what the user may do with them; brokers before Kafka 2.8 are not asked.

    Raises:
        KafkaError: there was no response.
    """
    names = list(dict.fromkeys(names))
    try:
        response = await send(_TopicIds(names, operations=operations))
    except IncompatibleBrokerVersion:
        response = await send(MetadataRequest(names, allow_auto_topic_creation=False))
    found: dict[str, Identity | None] = {}
    for topic in response.to_object()["topics"]:
        name = topic.get("name") or topic.get("topic")
        error = for_code(topic["error_code"])
        if error is UnknownTopicOrPartitionError:
            found[name] = None
        elif error.errno == 0:
            number = topic.get("id_high", 0), topic.get("id_low", 0)
            identity = None if number == _NO_ID else f"{number[0] % 2**64:016x}{number[1] % 2**64:016x}"
            allowed = _operations(topic.get("authorized_operations", _NOT_SAID))
            partitions = topic["partitions"]
            found[name] = Identity(identity, len(partitions), _in_sync(partitions), allowed)
    return found


def _operations(bits: int) -> frozenset[Operation] | None:
    return None if bits == _NOT_SAID else frozenset(each for each in Operation if bits >> each & 1)


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What is looked at again and again of a topic's configuration.

    Attributes:
        max_message_bytes: the most bytes of one batch.
        cleanup_policy: `delete`, `compact`, or both.
        min_in_sync: how many replicas must be in sync, or the topic accepts no record with `acks=all`.
    """

    max_message_bytes: int
    cleanup_policy: str
    min_in_sync: int = 1

    @property
    def compacted(self) -> bool:
        """Whether records go for later ones with their key."""
        return "compact" in self.cleanup_policy


async def topic_settings(send: Callable[[Any], Awaitable[Any]], names: Iterable[str]) -> Mapping[str, TopicSettings]:
    """The settings of the topics by name, without topics that the user may not describe.

    Args:
        send: sends a request to a broker, and returns the response.
        names: of the topics.

    Raises:
        KafkaError: there was no response.
    """
    wanted = [MAX_MESSAGE_BYTES, CLEANUP_POLICY]
    asked = [*wanted, _MIN_IN_SYNC]
    response = await send(DescribeConfigsRequest([(ConfigResourceType.TOPIC, name, asked) for name in names]))
    found = {}
    for topic in response.to_object()["resources"]:
        entries = {entry["config_names"]: entry["config_value"] for entry in topic["config_entries"]}
        if topic["error_code"] == 0 and entries.keys() >= {*wanted}:
            found[topic["resource_name"]] = TopicSettings(
                int(entries[MAX_MESSAGE_BYTES]), entries[CLEANUP_POLICY], int(entries.get(_MIN_IN_SYNC) or 1)
            )
    return found
