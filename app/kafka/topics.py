"""Topics as the cluster describes them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from aiokafka.errors import (
    IncompatibleBrokerVersion,
    InvalidTopicError,
    KafkaError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.metadata import MetadataRequest

from app.config.client import embedded_client_settings
from app.kafka.admin import AdminClient, Send, configs
from app.kafka.clients import ClusterError, admin, describe
from app.kafka.queries import Query, metadata_answer, version
from transforms.errors import ConfigurationError
from transforms.retention import FOREVER
from transforms.text import did_you_mean

MAX_MESSAGE_BYTES = "max.message.bytes"
CLEANUP_POLICY = "cleanup.policy"
MIN_IN_SYNC = "min.insync.replicas"
_COMPRESSION, _OF_PRODUCER = "compression.type", "producer"
_TIMESTAMP_TYPE = "message.timestamp.type"
_EITHER_WAY = "message.timestamp.difference.max.ms"  # up to Kafka 3.9, for each of the two that is not set
_UNBOUNDED = 2**63 - 1

OLDEST, NEWEST = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
"""How far the timestamp of a record may be behind the broker's clock, and ahead of it; from Kafka 3.6 on."""

TIMESTAMPS = (_TIMESTAMP_TYPE, OLDEST, NEWEST, _EITHER_WAY)
"""The properties of a topic that limit the timestamps of its records."""

InSync = Mapping[int, tuple[int, int]]
"""By partition number: how many of its replicas are in sync, and how many there are."""

_NO_ID = (0, 0)
_NOT_SAID = -(2**31)  # in the place of operations
_NO_TIMESTAMP = -1
_UNSEEN = (UnknownTopicOrPartitionError, TopicAuthorizationFailedError, InvalidTopicError)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the cluster describes it.

    Attributes:
        name: of the topic.
        partitions: how many it has.
        max_message_bytes: the maximum size of a batch.
        cleanup_policy: `delete`, `compact`, or both.
        retention_ms: how long records stay if the policy has `delete`; -1 for no limit.
        segment_ms: how much longer they may stay, since whole segments are deleted; 0 if that is not reported.
        id: of the topic; a later topic with this name has another one. None if the cluster reports none.
        oldest_ms: how old the timestamp of a record may be; None for no limit.
        newest_ms: how far ahead the timestamp of a record may be; None for no limit.
        recompressed: whether brokers compress its batches again: its `compression.type` is not `producer`.
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
        """Refuses, by a ConfigurationError, the number of a partition that the topic does not have."""
        if number is not None and number >= self.partitions:
            raise ConfigurationError(
                "--partition", f"found {number}, topic {self.name} has partitions 0 to {self.partitions - 1}"
            )

    def takes_timestamp(self, timestamp_ms: int, now_s: float, margin_ms: int = 0) -> bool:
        """Whether brokers accept a record with this timestamp at the time `now_s`, if their clocks agree with ours.

        The margin is subtracted from the topic's limits; a negative margin extends them.
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


async def topics(connection: AdminClient, names: Iterable[str]) -> dict[str, Topic]:
    """The existing topics that the user may see, by name.

    Raises:
        ConfigurationError: the user may not read the configuration of one of them.
        ClusterError: the cluster did not answer.
    """
    wanted = (MAX_MESSAGE_BYTES, CLEANUP_POLICY, "retention.ms", "segment.ms", _COMPRESSION, MIN_IN_SYNC, *TIMESTAMPS)
    try:
        described = await _described(connection.send, names)
        present = [name for name, (error, _) in described.items() if error not in _UNSEEN]
        found_configs = await configs(connection.send, present, wanted) if present else {}
    except KafkaError as exc:
        raise ClusterError(f"topics cannot be described: {describe(exc)}", retriable=exc.retriable) from exc
    found = {}
    for name, config in found_configs.items():
        if isinstance(config, UnknownTopicOrPartitionError):
            continue  # deleted since the cluster described it
        error, identity = described[name]
        if error.errno != 0:
            raise ConfigurationError("topics", f"topic {name} cannot be described: {describe(error())}")
        if isinstance(config, KafkaError):
            raise ConfigurationError(
                "topics",
                f"the configuration of topic {name} cannot be read: {describe(type(config)())}; "
                "grant DescribeConfigs on it",
            )
        found[name] = Topic(
            name=name,
            partitions=identity.partitions,
            max_message_bytes=int(config[MAX_MESSAGE_BYTES]),
            cleanup_policy=config[CLEANUP_POLICY],
            retention_ms=int(config["retention.ms"]),
            segment_ms=int(config.get("segment.ms") or 0),
            id=identity.id,
            oldest_ms=timestamp_bound_ms(config, OLDEST),
            newest_ms=timestamp_bound_ms(config, NEWEST),
            recompressed=config.get(_COMPRESSION, _OF_PRODUCER) != _OF_PRODUCER,
            shortage=shortage(name, identity.in_sync, int(config.get(MIN_IN_SYNC) or 1)),
        )
    return found


def shortage(topic: str, in_sync: InSync, least: int) -> str | None:
    """Which partitions of a topic accept no records with `acks=all`, as too few replicas are in sync, or None.

    `least` is `min.insync.replicas`. Brokers do not require more replicas than a partition has.
    """
    short = {number: found for number, (found, replicas) in in_sync.items() if found < min(least, replicas)}
    if not short:
        return None
    number, found = min(short.items())
    others = f" (and {len(short) - 1} more)" if short.keys() - {number} else ""
    return (
        f"topic {topic}, partition {number}{others} accepts no records: {found} replica{'' if found == 1 else 's'} in "
        f"sync, and {MIN_IN_SYNC} is {least}; start the missing brokers, or lower {MIN_IN_SYNC} of the topic"
    )


async def missing_topic(connection: AdminClient, name: str, hint: str, *, existed: bool = False) -> str:
    """The message for a topic that does not exist, with a topic of a similar name, if there is one.

    A topic that has `existed` is spelled correctly.
    """
    known: list[str] = []
    if not existed:
        with contextlib.suppress(KafkaError):  # it is only a hint
            known = [entry["topic"] for entry in await connection.describe_topics() if not entry.get("is_internal")]
    # On a thread: with many topics the comparison takes a while.
    return f"topic {name} does not exist{hint}{await asyncio.to_thread(did_you_mean, name, known)}"


def timestamp_bound_ms(config: Mapping[str, str], name: str) -> int | None:
    """How far from now a timestamp may be; None if brokers set timestamps themselves, or do not report a bound.

    Without a bound this is 2**63 - 1, as brokers report it: timestamps can be further from now. `config` has the values
    of `TIMESTAMPS`; `name` is `OLDEST` or `NEWEST`.
    """
    if config.get(_TIMESTAMP_TYPE) == "LogAppendTime":
        return None
    bounds = [int(value) for each in (name, _EITHER_WAY) if (value := config.get(each))]
    return next((each for each in bounds if each != _UNBOUNDED), _UNBOUNDED if bounds else None)


# --- identities, which are checked regularly --------------------------------------------------------------------------


class Operation(IntEnum):
    """An operation on a topic that an ACL may allow; the numbers are Kafka's (`AclOperation`)."""

    READ = 3
    WRITE = 4


@dataclass(frozen=True, slots=True)
class Identity:
    """Distinguishes a topic from a later one with its name.

    Attributes:
        id: of the topic; None if the cluster reports none.
        partitions: how many it has.
        in_sync: of each partition.
        operations: the operations that the user may perform; None if they were not requested, or not reported.
        internal: whether it is an internal topic of Kafka.
    """

    id: str | None
    partitions: int
    in_sync: InSync = field(default_factory=dict)
    operations: frozenset[Operation] | None = None
    internal: bool = False


class _TopicIds(Query):
    """Topics with their ids; from Kafka 2.8 on."""

    VERSION = version(
        "3.11 topics:[id_high:int64 id_low:int64 name:text] allow_auto_topic_creation:boolean "
        "include_topic_authorized_operations:boolean",
        metadata_answer(
            "error_code:int16 name:text id_high:int64 id_low:int64 is_internal:boolean", "authorized_operations:int32"
        ),
    )


async def identities(send: Send, names: Iterable[str], *, operations: bool = False) -> Mapping[str, Identity | None]:
    """The topics by name, None for a topic that does not exist; without topics that the user may not describe.

    With `operations`, also the operations that the user may perform; brokers before Kafka 2.8 are not asked.
    """
    return {
        name: identity if error.errno == 0 else None
        for name, (error, identity) in (await _described(send, names, operations=operations)).items()
        if error is UnknownTopicOrPartitionError or error.errno == 0
    }


async def _described(
    send: Send, names: Iterable[str], *, operations: bool = False
) -> Mapping[str, tuple[type[KafkaError], Identity]]:
    """By name: the error that brokers return for a topic, and the topic. No topic is created."""
    names = list(dict.fromkeys(names))
    try:
        response = await send(
            _TopicIds(
                topics=[(*_NO_ID, name, {}) for name in names],
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=operations,
            )
        )
    except IncompatibleBrokerVersion:
        response = await send(MetadataRequest(names, allow_auto_topic_creation=False))
    found = {}
    for topic in response.to_object()["topics"]:
        number = topic.get("id_high", 0), topic.get("id_low", 0)
        bits, partitions = topic.get("authorized_operations", _NOT_SAID), topic["partitions"]
        found[topic.get("name") or topic.get("topic")] = (
            for_code(topic["error_code"]),
            Identity(
                None if number == _NO_ID else f"{number[0] % 2**64:016x}{number[1] % 2**64:016x}",
                len(partitions),
                {each["partition"]: (len(each["isr"]), len(each["replicas"])) for each in partitions},
                None if bits == _NOT_SAID else frozenset(each for each in Operation if bits >> each & 1),
                bool(topic.get("is_internal")),
            ),
        )
    return found
