"""The options of the data source `wideload`: those of Spark's Kafka source by their names, and the store's keys."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from jobs.inflate import OnError
from jobs.log import Client
from jobs.ranges import Offsets
from jobs.restorer import DEFAULT_HELD_BYTES, DEFAULT_THREADS, RestorerSettings
from stores.keys import REQUIRED, Key, Kind, Value, read, unknown
from stores.registry import STORE_CLASS, store_keys
from stores.store import COMMON_KEYS
from transforms.chunked_message import Limits
from transforms.errors import ConfigurationError
from transforms.formats import FORMATS, FormatName
from transforms.inflate import DEFAULT_MAX_BYTES
from transforms.wrapper import UNMAPPED_PREFIX, HeaderTable, Unwrap

__all__ = ["KAFKA_KEYS", "KEYS", "Offsets", "SourceSettings", "settings_of"]

_PLAIN_VALUE = "unwrap.on.plain.value"
_LIMITS = Limits()

KEYS: Sequence[Key] = (
    Key("subscribe", "string", "The topics, with a comma between them.", default=REQUIRED),
    Key("startingOffsets", "string", '`earliest`, `latest`, or JSON as `{"orders": {"0": 23, "1": -2}}`. A stream '
        "begins there once; afterwards its checkpoint counts. Where it is not set: a batch at `earliest`, a stream at "
        "`latest`."),
    Key("endingOffsets", "string", "For a batch: `latest`, or JSON.", default="latest"),
    Key("includeHeaders", "boolean", "Whether there is a column `headers`.", default=False),
    Key("failOnDataLoss", "boolean", "Whether records that Kafka has deleted before they were read are a failure.",
        default=True),
    Key("maxOffsetsPerTrigger", "int", "The most offsets of one micro-batch, over all partitions.", minimum=1),
    Key("maxRecordsPerPartition", "int", "The most offsets of one task; more are split.", minimum=1),
    Key("minPartitions", "int", "Splits Kafka's partitions until there are so many tasks.", minimum=1),
    Key("onError", "string", "What becomes of a record that cannot be restored; see `jobs.inflate.OnError`.",
        default="fail", allowed=("fail", "null", "keep")),
    Key("reference.format", "string", "How records refer to payloads, as in the worker.", default="wideload",
        allowed=tuple(FORMATS)),
    Key("maxBytesInFlight", "int", "The most bytes of payloads that a task holds, or one record where that is larger.",
        default=DEFAULT_HELD_BYTES, minimum=1),
    Key("threads", "int", "How many payloads a task downloads at a time.", default=DEFAULT_THREADS, minimum=1),
    Key("chunkLookback", "int", "How many offsets before its range a task looks for a chunked message's beginning.",
        default=10_000, minimum=0),
    Key("unwrap", "boolean", "Whether values come out of their wrappers, before references are looked for.",
        default=False),
    Key(_PLAIN_VALUE, "string", "With `unwrap`: what becomes of a value that is no wrapper, as in the worker. `fail`: "
        "it goes by `onError`.", allowed=("fail", "pass")),
    Key("max.pending.chunked.message", "int", "How many chunked messages may be incomplete at a time.",
        default=_LIMITS.messages, minimum=1),
    Key("max.pending.chunked.bytes", "int", "How many bytes their chunks may hold in a task.",
        default=_LIMITS.pending_bytes, minimum=1),
)  # fmt: skip
"""The source's own options. Spark does not tell small letters from capitals in them."""

KAFKA_KEYS: Sequence[Key] = (
    Key("kafka.bootstrap.servers", "string", "Kafka's `host:port`, comma-separated.", default=REQUIRED),
    Key("kafka.isolation.level", "string", "Whether records of open and aborted transactions are left out.",
        default="read_committed", allowed=("read_committed", "read_uncommitted")),
    Key("kafka.client.id", "string", "How the brokers' logs call the reader.", default="wideload-spark"),
    Key("kafka.client.rack", "string", "The rack of the nearest replica."),
    Key("kafka.check.crcs", "boolean", "Whether the checksums of batches are compared.", default=True),
    Key("kafka.fetch.max.bytes", "int", "The most bytes of one answer.", default=52_428_800, minimum=1),
    Key("kafka.max.partition.fetch.bytes", "int", "The most bytes of one partition in it, or one batch.",
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

_JAAS = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """All that the source needs to know; goes to executors."""

    client: Client
    topics: tuple[str, ...]
    starting: Offsets | None
    ending: Offsets
    include_headers: bool
    fail_on_loss: bool
    trigger_offsets: int | None
    task_offsets: int | None
    least_tasks: int | None
    on_error: OnError
    restorer: RestorerSettings
    lookback: int
    limits: Limits = field(default_factory=Limits)


def settings_of(options: Mapping[str, str]) -> SourceSettings:
    """What the options say. Makes no request.

    Raises:
        ConfigurationError: one is missing, unknown or wrong.
    """
    given = {name.lower(): text for name, text in options.items() if name.lower() != "path"}
    own = _taken(KEYS, given)
    kafka = _taken(KAFKA_KEYS, given)
    for name in given:
        if name.startswith("kafka."):
            raise unknown(name, [key.name for key in KAFKA_KEYS])
    table = {name: given.pop(name) for name in list(given) if name.startswith(UNMAPPED_PREFIX)}
    unwrap = _unwrap(own, table)
    store = _store(given)
    restorer = RestorerSettings(
        store,
        cast("FormatName", own["reference.format"]),
        cast("int", own["maxBytesInFlight"]),
        cast("int", own["threads"]),
        unwrap,
    )
    restorer.check()
    pending = cast("int", own["max.pending.chunked.bytes"])
    largest = cast("int", store.get("large.message.max.bytes", DEFAULT_MAX_BYTES))
    starting = cast("str | None", own["startingOffsets"])
    ending = _offsets("endingOffsets", cast("str", own["endingOffsets"]))
    if ending == "earliest":
        raise ConfigurationError("endingOffsets", "found 'earliest', allowed are latest and JSON")
    topics = tuple(dict.fromkeys(name.strip() for name in cast("str", own["subscribe"]).split(",") if name.strip()))
    if not topics:
        raise ConfigurationError("subscribe", "names no topic")
    return SourceSettings(
        client=_client(kafka),
        topics=topics,
        starting=None if starting is None else _offsets("startingOffsets", starting),
        ending=ending,
        include_headers=cast("bool", own["includeHeaders"]),
        fail_on_loss=cast("bool", own["failOnDataLoss"]),
        trigger_offsets=cast("int | None", own["maxOffsetsPerTrigger"]),
        task_offsets=cast("int | None", own["maxRecordsPerPartition"]),
        least_tasks=cast("int | None", own["minPartitions"]),
        on_error=cast("OnError", own["onError"]),
        restorer=restorer,
        lookback=cast("int", own["chunkLookback"]),
        limits=Limits(cast("int", own["max.pending.chunked.message"]), pending, min(largest, pending), expire_ms=0),
    )


def _taken(keys: Sequence[Key], given: dict[str, str]) -> dict[str, Value | None]:
    """The values of the keys, which are taken out of `given`."""
    found = {key.name: _typed(given.pop(key.name.lower()), key.kind) for key in keys if key.name.lower() in given}
    return read(keys, found)


def _typed(text: str, kind: Kind) -> object:
    """`text` as the kind that its key has; where it cannot be that, the key says what is allowed."""
    if kind == "boolean" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind == "list":
        return [item.strip() for item in text.split(",")]
    try:
        return {"int": int, "float": float}[kind](text) if kind in ("int", "float") else text
    except ValueError:
        return text


def _unwrap(own: Mapping[str, Any], table: Mapping[str, str]) -> Unwrap | None:
    """How wrappers come off; None where they do not."""
    if own["unwrap"]:
        return Unwrap(HeaderTable.configured(table), own[_PLAIN_VALUE] or "fail")
    for name in (*table, *((_PLAIN_VALUE,) if own[_PLAIN_VALUE] is not None else ())):
        raise ConfigurationError(name, "is given, and wrappers stay where they are; it goes with unwrap=true")
    return None


def _store(given: Mapping[str, str]) -> dict[str, object]:
    """What the store is opened with: every option that is left."""
    name = given.get(STORE_CLASS)
    if name is None:
        own = [key.name for key in KEYS]
        near = next((each for each in given if not each.startswith(("large.message.", "s3.", "filesystem."))), None)
        if near is not None:
            raise unknown(near, own)
        raise ConfigurationError(STORE_CLASS, "is missing; give the keys of the worker's pipeline as options")
    keys = {key.name: key for key in (*COMMON_KEYS, *(store_keys(name) or ()))}
    return {key: _typed(text, keys[key].kind if key in keys else "string") for key, text in given.items()}


def _client(kafka: Mapping[str, Any]) -> Client:
    protocol = kafka["kafka.security.protocol"]
    arguments: dict[str, Any] = {
        "client_id": kafka["kafka.client.id"],
        "request_timeout_ms": kafka["kafka.request.timeout.ms"],
        "security_protocol": protocol,
    }
    if protocol.startswith("SASL"):
        user, password = kafka["kafka.sasl.username"], kafka["kafka.sasl.password"]
        if kafka["kafka.sasl.jaas.config"] is not None:
            found = dict(_JAAS.findall(kafka["kafka.sasl.jaas.config"]))
            user, password = (re.sub(r"\\(.)", r"\1", found.get(name, "")) for name in ("username", "password"))
        if not user or not password:
            raise ConfigurationError(
                "kafka.sasl.jaas.config", 'names no user and password; allowed is … username="…" password="…";'
            )
        arguments |= {
            "sasl_mechanism": kafka["kafka.sasl.mechanism"],
            "sasl_plain_username": user,
            "sasl_plain_password": password,
        }
    consumer = {
        "isolation_level": kafka["kafka.isolation.level"],
        "client_rack": kafka["kafka.client.rack"],
        "check_crcs": kafka["kafka.check.crcs"],
        "fetch_max_bytes": kafka["kafka.fetch.max.bytes"],
        "max_partition_fetch_bytes": kafka["kafka.max.partition.fetch.bytes"],
    }
    tls = {
        "ca": kafka["kafka.ssl.ca.location"],
        "certificate": kafka["kafka.ssl.certificate.location"],
        "key": kafka["kafka.ssl.key.location"],
        "password": kafka["kafka.ssl.key.password"],
        "check_hostname": kafka["kafka.ssl.endpoint.identification.algorithm"] == "https",
    }
    return Client(kafka["kafka.bootstrap.servers"], arguments, consumer, tls if protocol.endswith("SSL") else None)


def _offsets(name: str, text: str) -> Offsets:
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    try:
        found = json.loads(text)
        return {topic: {str(int(number)): int(at) for number, at in places.items()} for topic, places in found.items()}
    except (ValueError, TypeError, AttributeError):
        raise ConfigurationError(
            name, f'found {text[:100]!r}, allowed are earliest, latest and JSON as {{"orders": {{"0": 23}}}}'
        ) from None
