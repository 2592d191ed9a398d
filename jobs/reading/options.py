"""The options of the source `wideload`: named as those of Spark's Kafka source, and the properties of the store."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from app.config.arguments import coerced
from app.config.java_client import from_java
from app.config.naming import check_config, check_topics
from app.config.parsing import checked_client_settings
from app.config.settings import CONNECTION_KEYS, ClientSettings
from jobs.reading.log import Topics
from jobs.reading.ranges import Offsets, Place, parse_offsets
from jobs.records.inflater import DEFAULT_HELD_BYTES, DEFAULT_THREADS, InflaterSettings
from jobs.records.problems import OnError
from stores.keys import Key, Value, nearest, read
from stores.registry import STORE_CLASS, STORE_NAMES
from transforms.chunked_message import Limits
from transforms.errors import ConfigurationError
from transforms.formats import FORMATS
from transforms.inflate import DEFAULT_MAX_BYTES
from transforms.wrapper import UNMAPPED_PREFIX, HeaderTable, Unwrap

_LIMITS = Limits()
_KAFKA = "kafka."
_OF_STORES = ("large.message.", *(f"{name}." for name in STORE_NAMES))

# docs/spark-inflate.md says what each does.
KEYS: Sequence[Key] = (
    Key("subscribe", "list", ""),
    Key("subscribePattern", "string", ""),
    Key("assign", "string", ""),
    Key("startingOffsets", "string", ""),
    Key("startingTimestamp", "int", ""),
    Key("startingOffsetsByTimestamp", "string", ""),
    Key("endingOffsets", "string", ""),
    Key("endingTimestamp", "int", ""),
    Key("endingOffsetsByTimestamp", "string", ""),
    Key("includeHeaders", "boolean", "", default=False),
    Key("failOnDataLoss", "boolean", "", default=True),
    Key("maxOffsetsPerTrigger", "int", "", minimum=1),
    Key("maxRecordsPerPartition", "int", "", minimum=1),
    Key("minPartitions", "int", "", minimum=1),
    Key("onError", "string", "", default="fail", allowed=("fail", "null", "keep")),
    Key("onBadTimestamp", "string", "", default="fail", allowed=("fail", "null")),
    Key("referenceFormat", "string", "", default="wideload", allowed=tuple(FORMATS)),
    Key("maxBytesInFlight", "bytes", "", default=DEFAULT_HELD_BYTES, minimum=1),
    Key("threads", "int", "", default=DEFAULT_THREADS, minimum=1),
    Key("chunkLookback", "int", "", default=10_000, minimum=0),
    Key("unwrap", "boolean", "", default=False),
    Key("unwrapOnPlainValue", "string", "", allowed=("fail", "pass")),
    Key("maxPendingChunkedMessage", "int", "", default=_LIMITS.messages, minimum=1),
    Key("maxPendingChunkedBytes", "bytes", "", default=_LIMITS.pending_bytes, minimum=1),
)
"""The source's own options. Spark ignores the case of their names; dots in them are ignored, too."""

_CONSUMER: Sequence[Key] = (
    Key("isolation.level", "string", "", default="read_committed", allowed=("read_committed", "read_uncommitted")),
    Key("client.rack", "string", ""),
    Key("check.crcs", "boolean", "", default=True),
    Key("fetch.max.bytes", "int", "", default=52_428_800, minimum=1),
    Key("max.partition.fetch.bytes", "int", "", default=4_194_304, minimum=1),
    Key("request.timeout.ms", "int", "", default=40_000, minimum=1),
)

_OWN = {key.name.lower(): key.name for key in KEYS}
_KNOWN = {key.name: key for key in (*CONNECTION_KEYS, *_CONSUMER)}


class Edge(NamedTuple):
    """Where reading begins or ends: at offsets, or at times in milliseconds; `option` says which, and is named."""

    option: str
    at: Offsets | int

    @property
    def by_time(self) -> bool:
        return self.option.endswith("Timestamp")


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The settings of the source; goes to executors.

    Attributes:
        client: how to reach the brokers.
        consumer: arguments of aiokafka's consumer.
        topics: what is read.
        starting: where; None if no option says so.
        ending: where a batch ends.
        inflater: how payloads come in place of references.
        limits: of incomplete messages.
        raw: whether records stay as they are in the log.
    """

    client: ClientSettings
    consumer: Mapping[str, Any]
    topics: Topics
    starting: Edge | None
    ending: Edge | None
    include_headers: bool
    fail_on_loss: bool
    trigger_offsets: int | None
    task_offsets: int | None
    least_tasks: int | None
    on_error: OnError
    inflater: InflaterSettings
    lookback: int
    limits: Limits
    keep_bad_timestamps: bool
    raw: bool

    @property
    def committed(self) -> bool:
        """Whether records of open and aborted transactions are left out."""
        return bool(self.consumer["isolation_level"] == "read_committed")


def settings_of(options: Mapping[str, str], *, raw: bool = False) -> SourceSettings:
    """The settings in the options. Makes no request.

    Args:
        options: of the user.
        raw: whether records stay as they are in the log; then `endingOffsets` names the topics, and unknown options are
            ignored.

    Raises:
        ConfigurationError: an option is missing, unknown or wrong.
    """
    given = {name.lower(): text for name, text in options.items() if name.lower() != "path"}
    for name in list(given):
        if name.replace(".", "") in _OWN:
            given[name.replace(".", "")] = given.pop(name)
    own: Mapping[str, Any] = read(
        KEYS, {key.name: key.coerce(given.pop(key.name.lower())) for key in KEYS if key.name.lower() in given}
    )
    kafka = {name.removeprefix(_KAFKA): given.pop(name) for name in list(given) if name.startswith(_KAFKA)}
    client, consumer = _client(kafka, raw=raw)
    inflater = InflaterSettings({}) if raw else _inflater(own, given)
    largest: Any = inflater.store.get("large.message.max.bytes", DEFAULT_MAX_BYTES)
    pending = own["maxPendingChunkedBytes"]
    return SourceSettings(
        client=client,
        consumer=consumer,
        topics=Topics("endingOffsets", tuple(json.loads(own["endingOffsets"]))) if raw else _topics(own),
        starting=_edge("starting", own),
        ending=_edge("ending", own),
        include_headers=own["includeHeaders"],
        fail_on_loss=own["failOnDataLoss"],
        trigger_offsets=own["maxOffsetsPerTrigger"],
        task_offsets=own["maxRecordsPerPartition"],
        least_tasks=own["minPartitions"],
        on_error=own["onError"],
        inflater=inflater,
        lookback=own["chunkLookback"],
        limits=Limits(own["maxPendingChunkedMessage"], pending, min(largest, pending), expire_ms=0),
        keep_bad_timestamps=raw or own["onBadTimestamp"] == "null",
        raw=raw,
    )


def _client(given: Mapping[str, str], *, raw: bool) -> tuple[ClientSettings, dict[str, Value | None]]:
    """How to reach the brokers, and the arguments of a consumer; errors name the options."""
    try:
        found = {"client.id": "wideload-spark", **from_java(given)}
        for name in found:
            if name not in _KNOWN and not raw:
                raise _unknown(name, {each: f"{_KAFKA}{each}" for each in _KNOWN})
        values = {name: _KNOWN[name].coerce(text) for name, text in found.items() if name in _KNOWN}
        client, consumer = checked_client_settings(values), read(_CONSUMER, values)
        check_config(found, enabled=client.limit_names)
    except ConfigurationError as exc:
        raise ConfigurationError.together(
            [ConfigurationError(f"{_KAFKA}{each.key}", each.reason) for each in exc.each]
        ) from exc
    return client, {name.replace(".", "_"): value for name, value in consumer.items() if value is not None}


def _topics(own: Mapping[str, Any]) -> Topics:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if own[name] is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise ConfigurationError("subscribe", f"found {found}, allowed is one of subscribe, subscribePattern, assign")
    (option,) = given
    if option == "subscribePattern":
        try:
            return Topics(option, pattern=re.compile(own[option]))
        except re.error as exc:
            raise ConfigurationError(option, f"is not a regular expression of Python: {exc}") from exc
    partitions: frozenset[Place] | None = None
    names: Sequence[str] = own[option]
    if option == "assign":
        try:
            numbers = {str(topic): [int(each) for each in found] for topic, found in json.loads(own[option]).items()}
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            allowed = 'JSON as {"orders": [0, 1]}'
            raise ConfigurationError(option, f"found {own[option][:100]!r}, allowed is {allowed}") from None
        names, partitions = [*numbers], frozenset((topic, each) for topic in numbers for each in numbers[topic])
    names = tuple(dict.fromkeys(filter(None, names)))
    if not names or partitions == frozenset():
        raise ConfigurationError(option, "names no topic" if not names else "names no partition")
    check_topics(names, option)
    return Topics(option, names, None, partitions)


def _edge(which: str, own: Mapping[str, Any]) -> Edge | None:
    names = [f"{which}Timestamp", f"{which}OffsetsByTimestamp", f"{which}Offsets"]
    given = [name for name in names if own[name] is not None]
    if len(given) > 1:
        raise ConfigurationError(given[1], f"cannot be combined with {given[0]}; use only one of the two")
    for option in given:
        if option == names[0]:
            return Edge(option, own[option])
        at = parse_offsets(option, own[option])
        if at == "earliest" and which == "ending":
            raise ConfigurationError(option, "found 'earliest', allowed are latest and JSON")
        if isinstance(at, str) and option == names[1]:
            raise ConfigurationError(option, f'found {at!r}, allowed is JSON as {{"orders": {{"0": 1700000000000}}}}')
        return Edge(option, at)
    return None


def _inflater(own: Mapping[str, Any], given: dict[str, str]) -> InflaterSettings:
    """How payloads come in place of references; all options that are left in `given` are of the store."""
    table = {name: given.pop(name) for name in list(given) if name.startswith(UNMAPPED_PREFIX)}
    unwrap = None
    if own["unwrap"]:
        unwrap = Unwrap(HeaderTable.configured(table), own["unwrapOnPlainValue"] or "fail")
    elif table or own["unwrapOnPlainValue"] is not None:
        raise ConfigurationError(next(iter(table), "unwrapOnPlainValue"), "has no effect without unwrap=true")
    name = given.get(STORE_CLASS)
    for each in given:
        # A store of another class may have properties of any name.
        odd = not each.startswith(_OF_STORES)
        if odd and (name is None or ("." not in each and (name in STORE_NAMES or nearest(each, _OWN) is not None))):
            raise _unknown(each, _OWN)
    if name is None:
        raise ConfigurationError(STORE_CLASS, "is missing; set the properties of the worker's pipeline as options")
    found = InflaterSettings(
        coerced(name, given), own["referenceFormat"], own["maxBytesInFlight"], own["threads"], unwrap
    )
    found.check()
    found.check_signatures()
    return found


def _unknown(name: str, known: Mapping[str, str]) -> ConfigurationError:
    """The error for an option that is nobody's; Spark passes all names in lower case, `known` has them as written."""
    near = nearest(name, known)
    hint = "" if near is None else f"; did you mean {known[near]}?"
    return ConfigurationError(name, f"is not a known option{hint}")
