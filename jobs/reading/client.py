"""How jobs reach the brokers with aiokafka: the options, and what every client is made from."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiokafka.errors as kafka_errors
from aiokafka import AIOKafkaConsumer, TopicPartition

from app.config.client import embedded_client_settings
from app.kafka.clients import security_arguments
from app.kafka.consumer_controls import ConsumerControls
from app.kafka.gate import create_no_topics
from app.kafka.topics import identities
from jobs.driver.failures import JobFailedError
from jobs.reading.ranges import Bounds, Place
from stores.keys import REQUIRED, Key, Value, read
from transforms.errors import ConfigurationError

__all__ = ["KAFKA_KEYS", "UNDESCRIBED", "Client", "Look", "answered", "client_of_java", "look"]

KAFKA_KEYS: Sequence[Key] = (
    Key("kafka.bootstrap.servers", "string", "Kafka's `host:port`, comma-separated.", default=REQUIRED),
    Key("kafka.isolation.level", "string", "Whether records of open and aborted transactions are left out.",
        default="read_committed", allowed=("read_committed", "read_uncommitted")),
    Key("kafka.client.id", "string", "The reader's name in the brokers' logs.", default="wideload-spark"),
    Key("kafka.client.rack", "string", "The rack of the nearest replica."),
    Key("kafka.check.crcs", "boolean", "Whether the checksums of batches are compared.", default=True),
    Key("kafka.fetch.max.bytes", "int", "The most bytes of one answer.", default=52_428_800, minimum=1),
    Key("kafka.max.partition.fetch.bytes", "int", "The most bytes of one partition in an answer, or one batch.",
        default=4_194_304, minimum=1),
    Key("kafka.request.timeout.ms", "int", "The longest wait for an answer.", default=40_000, minimum=1),
    Key("kafka.security.protocol", "string", "How the brokers are reached.", default="PLAINTEXT",
        allowed=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
    Key("kafka.sasl.mechanism", "string", "How the user is proved.", default="PLAIN",
        allowed=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")),
    Key("kafka.sasl.jaas.config", "string", "User and password, as Kafka's own clients take them.", secret=True),
    Key("kafka.sasl.username", "string", "The user, instead of `kafka.sasl.jaas.config`."),
    Key("kafka.sasl.password", "string", "The password.", secret=True),
    Key("kafka.ssl.ca.location", "string", "PEM file with the authorities to trust; else the system's own."),
    Key("kafka.ssl.certificate.location", "string", "PEM file with the client's certificate and its chain."),
    Key("kafka.ssl.key.location", "string", "PEM file with the client's private key."),
    Key("kafka.ssl.key.password", "string", "The private key's password.", secret=True),
    Key("kafka.ssl.endpoint.identification.algorithm", "string", "`none`: the host's name is not compared.",
        default="https", allowed=("https", "none", "")),
)  # fmt: skip
"""Options of the Kafka client. Files must be there on driver and executors."""

# Which option an argument of aiokafka's clients comes from.
_CONNECTION = {"client_id": "kafka.client.id", "request_timeout_ms": "kafka.request.timeout.ms"}
_CONSUMER = {
    "isolation_level": "kafka.isolation.level",
    "client_rack": "kafka.client.rack",
    "check_crcs": "kafka.check.crcs",
    "fetch_max_bytes": "kafka.fetch.max.bytes",
    "max_partition_fetch_bytes": "kafka.max.partition.fetch.bytes",
}
# aiokafka has other ways for these.
_OF_JAVA = ("kafka.ssl.truststore.", "kafka.ssl.keystore.", "kafka.sasl.oauthbearer.", "kafka.sasl.client.callback.")
UNDESCRIBED = "brokers do not describe it; the user needs Describe, and the name must be one that Kafka allows"
"""Why a topic is not among `app.kafka.topics.identities`."""

_CHECK = "ssl.endpoint.identification.algorithm"
_JAAS = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Client:
    """How the brokers are reached; goes to executors.

    Attributes:
        options: the value of each of `KAFKA_KEYS`; may hold passwords.

    Raises:
        ConfigurationError: the protocol needs a user and a password, and the options do not have them.
    """

    options: Mapping[str, Value | None] = field(repr=False)

    def __post_init__(self) -> None:
        _ = self._login

    @property
    def servers(self) -> str:
        """The bootstrap servers."""
        return str(self.options["kafka.bootstrap.servers"])

    def connection(self) -> dict[str, Any]:
        """The arguments that every client of aiokafka takes.

        Raises:
            ConfigurationError: a certificate or a key cannot be used.
        """
        given: dict[str, object] = {
            name.removeprefix("kafka."): value for name, value in self.options.items() if value is not None
        }
        given |= {"sasl.username": self._login[0], "sasl.password": self._login[1], _CHECK: given[_CHECK] or "none"}
        try:
            arguments = security_arguments(embedded_client_settings(given))
        except ConfigurationError as exc:
            raise ConfigurationError(f"kafka.{exc.key}", exc.reason) from exc.__cause__
        return arguments | {name: self.options[key] for name, key in _CONNECTION.items()}

    def open(self, **more: object) -> AIOKafkaConsumer:
        """A consumer without a group, not started; it creates no topic. More arguments win over the options."""
        options = {name: self.options[key] for name, key in _CONSUMER.items()} | more
        return create_no_topics(
            AIOKafkaConsumer(
                **self.connection(), **options, group_id=None, enable_auto_commit=False, auto_offset_reset="none"
            )
        )

    @property
    def _login(self) -> tuple[Value | None, Value | None]:
        user, password = (self.options[f"kafka.sasl.{name}"] for name in ("username", "password"))
        if self.options["kafka.sasl.jaas.config"] is not None:
            found = dict(_JAAS.findall(str(self.options["kafka.sasl.jaas.config"])))
            user, password = (re.sub(r"\\(.)", r"\1", found.get(name, "")) for name in ("username", "password"))
        if not (user and password) and str(self.options["kafka.security.protocol"]).startswith("SASL"):
            raise ConfigurationError(
                "kafka.sasl.jaas.config", 'names no user and password; allowed is … username="…" password="…";'
            )
        return user, password


def client_of_java(options: Mapping[str, str]) -> Client:
    """A client with the options of Spark's Kafka source, which are for Kafka's Java client; others are left out.

    Raises:
        ConfigurationError: only Kafka's Java client can use one of them.
    """
    for name in options:
        if name.startswith(_OF_JAVA):
            raise ConfigurationError(
                name, "is for Kafka's Java client alone; Python's reads PEM files (kafka.ssl.ca.location, …)"
            )
    keys = {key.name: key for key in KAFKA_KEYS}
    return Client(read(KAFKA_KEYS, {name: keys[name].coerce(text) for name, text in options.items() if name in keys}))


@dataclass(frozen=True, slots=True)
class Look:
    """Topics at a moment.

    Attributes:
        bounds: each partition; with `read_committed`, it ends at the first open transaction.
        ids: by topic, its id; see `app.kafka.topics.Identity`. Topics of old brokers are left out.
    """

    bounds: Mapping[Place, Bounds]
    ids: Mapping[str, str]


def look(client: Client, topics: Sequence[str]) -> Look:
    """The topics as they are now. Creates none.

    Raises:
        ConfigurationError: a topic is not there, or no broker answers.
    """
    return asyncio.run(answered(client, _look(client, topics)))


async def _look(client: Client, topics: Sequence[str]) -> Look:
    async with AsyncExitStack() as stack:
        consumer = client.open()
        stack.push_async_callback(consumer.stop)
        await consumer.start()
        found = await identities(ConsumerControls(consumer).send, topics)
        places = []
        for name in topics:
            if name not in found:
                raise ConfigurationError("subscribe", f"topic {name} cannot be read: {UNDESCRIBED}")
            topic = found[name]
            if topic is None:
                raise ConfigurationError(
                    "subscribe", f"{name} is not on the broker at {client.servers}; create it, or check its name"
                )
            places += [TopicPartition(name, number) for number in range(topic.partitions)]
        consumer.assign(places)
        first = await consumer.beginning_offsets(places)
        end = await consumer.end_offsets(places)
        return Look(
            {(each.topic, each.partition): Bounds(first[each], max(first[each], end[each])) for each in places},
            {name: topic.id for name, topic in found.items() if topic is not None and topic.id is not None},
        )


async def answered(client: Client, work: Awaitable[Answer]) -> Answer:
    """The answer of the brokers.

    Raises:
        ConfigurationError: no broker answers.
        aiokafka.errors.OffsetOutOfRangeError: as it comes.
        JobFailedError: any other error of Kafka.
    """
    try:
        return await work
    except kafka_errors.OffsetOutOfRangeError:
        raise
    except (kafka_errors.KafkaConnectionError, OSError, TimeoutError) as exc:
        raise ConfigurationError("kafka.bootstrap.servers", f"no broker answers at {client.servers}: {exc}") from exc
    except kafka_errors.KafkaError as exc:
        raise JobFailedError(f"Kafka at {client.servers} fails: {type(exc).__name__}: {exc}") from exc
