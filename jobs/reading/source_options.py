"""The options of the data source `wideload`: named as those of Spark's Kafka source, and the keys of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from app.config.arguments import coerced
from jobs.driver.identifier_limits import LIMIT_OPTION, check_names
from jobs.reading.client import KAFKA_KEYS, Client
from jobs.reading.ranges import Offsets, parse_offsets
from jobs.records.inflater import DEFAULT_HELD_BYTES, DEFAULT_THREADS, InflaterSettings
from jobs.records.problems import OnError
from stores.keys import REQUIRED, Key, Value, nearest, read, unknown
from stores.registry import STORE_CLASS, STORE_NAMES
from transforms.chunked_message import Limits
from transforms.errors import ConfigurationError
from transforms.formats import FORMATS, FormatName
from transforms.inflate import DEFAULT_MAX_BYTES
from transforms.wrapper import UNMAPPED_PREFIX, HeaderTable, Unwrap

__all__ = ["KEYS", "SourceSettings", "settings_of"]

_PLAIN_VALUE = "unwrap.on.plain.value"
_LIMITS = Limits()
_OF_STORES = ("large.message.", *(f"{name}." for name in STORE_NAMES))

KEYS: Sequence[Key] = (
    Key("subscribe", "string", "The topics, with a comma between them.", default=REQUIRED),
    Key("startingOffsets", "string", '`earliest`, `latest`, or JSON as `{"orders": {"0": 23, "1": -2}}`. A stream '
        "begins there once; afterwards its checkpoint counts. Default: `earliest` for a batch, `latest` for a stream."),
    Key("endingOffsets", "string", "For a batch: `latest`, or JSON.", default="latest"),
    Key("includeHeaders", "boolean", "Whether there is a column `headers`.", default=False),
    Key("failOnDataLoss", "boolean", "Whether it is a failure if Kafka has deleted records before they were read.",
        default=True),
    Key("maxOffsetsPerTrigger", "int", "The most offsets of one micro-batch, over all partitions.", minimum=1),
    Key("maxRecordsPerPartition", "int", "The most offsets of one task; more are split.", minimum=1),
    Key("minPartitions", "int", "Splits Kafka's partitions until there are so many tasks.", minimum=1),
    Key("onError", "string", "What happens to a record that cannot be restored; see `jobs.records.problems.OnError`.",
        default="fail", allowed=("fail", "null", "keep")),
    Key("onBadTimestamp", "string", "What happens to a record whose timestamp Spark cannot hold, as it is not in "
        "milliseconds. `null`: it is kept with a null timestamp.", default="fail", allowed=("fail", "null")),
    Key("reference.format", "string", "How records refer to payloads, as in the worker.", default="wideload",
        allowed=tuple(FORMATS)),
    Key("maxBytesInFlight", "bytes", "The most bytes of payloads that a task holds, or one record if that is larger.",
        default=DEFAULT_HELD_BYTES, minimum=1),
    Key("threads", "int", "How many payloads a task downloads at a time.", default=DEFAULT_THREADS, minimum=1),
    Key("chunkLookback", "int", "How many offsets before its range a task looks for the first chunk of a message.",
        default=10_000, minimum=0),
    Key("unwrap", "boolean", "Whether values are taken out of their wrappers, before references are looked for.",
        default=False),
    Key(_PLAIN_VALUE, "string", "With `unwrap`: what happens to a value without a wrapper, as in the worker. `fail`: "
        "as `onError` says.", allowed=("fail", "pass")),
    Key("max.pending.chunked.message", "int", "How many chunked messages may be incomplete at a time.",
        default=_LIMITS.messages, minimum=1),
    Key("max.pending.chunked.bytes", "bytes", "How many bytes their chunks may hold in a task.",
        default=_LIMITS.pending_bytes, minimum=1),
)  # fmt: skip
"""The source's own options. Spark ignores the case of their names."""

_OWN = {key.name.lower(): key.name for key in (*KEYS, *KAFKA_KEYS)}


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The settings of the source; goes to executors."""

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
    inflater: InflaterSettings
    lookback: int
    limits: Limits = field(default_factory=Limits)
    keep_bad_timestamps: bool = False


def settings_of(options: Mapping[str, str]) -> SourceSettings:
    """The settings in the options. Makes no request.

    Raises:
        ConfigurationError: an option is missing, unknown or wrong.
    """
    given = {name.lower(): text for name, text in options.items() if name.lower() != "path"}
    own = _taken(KEYS, given)
    kafka = {name: text for name, text in given.items() if name.startswith("kafka.")}
    given.pop(LIMIT_OPTION, None)  # it is not for Kafka's client
    client = Client(_taken(KAFKA_KEYS, given))
    for name in given:
        if name.startswith("kafka."):
            raise unknown(name, [key.name for key in KAFKA_KEYS])
    table = {name: given.pop(name) for name in list(given) if name.startswith(UNMAPPED_PREFIX)}
    unwrap = _unwrap(own, table)
    store = _store(given)
    inflater = InflaterSettings(
        store,
        cast("FormatName", own["reference.format"]),
        cast("int", own["maxBytesInFlight"]),
        cast("int", own["threads"]),
        unwrap,
    )
    inflater.check()
    pending = cast("int", own["max.pending.chunked.bytes"])
    largest = cast("int", store.get("large.message.max.bytes", DEFAULT_MAX_BYTES))
    starting = cast("str | None", own["startingOffsets"])
    ending = parse_offsets("endingOffsets", cast("str", own["endingOffsets"]))
    if ending == "earliest":
        raise ConfigurationError("endingOffsets", "found 'earliest', allowed are latest and JSON")
    topics = tuple(dict.fromkeys(name.strip() for name in cast("str", own["subscribe"]).split(",") if name.strip()))
    if not topics:
        raise ConfigurationError("subscribe", "names no topic")
    check_names(topics, kafka, "subscribe")
    return SourceSettings(
        client=client,
        topics=topics,
        starting=None if starting is None else parse_offsets("startingOffsets", starting),
        ending=ending,
        include_headers=cast("bool", own["includeHeaders"]),
        fail_on_loss=cast("bool", own["failOnDataLoss"]),
        trigger_offsets=cast("int | None", own["maxOffsetsPerTrigger"]),
        task_offsets=cast("int | None", own["maxRecordsPerPartition"]),
        least_tasks=cast("int | None", own["minPartitions"]),
        on_error=cast("OnError", own["onError"]),
        inflater=inflater,
        lookback=cast("int", own["chunkLookback"]),
        keep_bad_timestamps=own["onBadTimestamp"] == "null",
        limits=Limits(cast("int", own["max.pending.chunked.message"]), pending, min(largest, pending), expire_ms=0),
    )


def _taken(keys: Sequence[Key], given: dict[str, str]) -> dict[str, Value | None]:
    """The values of the keys; removes them from `given`."""
    found = {key.name: key.coerce(given.pop(key.name.lower())) for key in keys if key.name.lower() in given}
    return read(keys, found)


def _unwrap(own: Mapping[str, Any], table: Mapping[str, str]) -> Unwrap | None:
    """How values are taken out of their wrappers; None if they are not."""
    if own["unwrap"]:
        return Unwrap(HeaderTable.configured(table), own[_PLAIN_VALUE] or "fail")
    for name in (*table, *((_PLAIN_VALUE,) if own[_PLAIN_VALUE] is not None else ())):
        raise ConfigurationError(name, "is given, and wrappers stay where they are; it goes with unwrap=true")
    return None


def _store(given: Mapping[str, str]) -> dict[str, object]:
    """The configuration of the store: all other options."""
    builtin = given.get(STORE_CLASS) in STORE_NAMES
    for each in given:
        # A store of another class may have keys of any name.
        if not each.startswith(_OF_STORES) and "." not in each and (builtin or nearest(each, _OWN) is not None):
            raise _unknown(each)
    name = given.get(STORE_CLASS)
    if name is None:
        near = next((each for each in given if not each.startswith(_OF_STORES)), None)
        if near is not None:
            raise _unknown(near)
        raise ConfigurationError(STORE_CLASS, "is missing; give the keys of the worker's pipeline as options")
    return coerced(name, given)


def _unknown(name: str) -> ConfigurationError:
    """The error for an option that is nobody's; Spark hands over all names in small letters."""
    near = nearest(name, _OWN)
    return (
        unknown(name, [])
        if near is None
        else ConfigurationError(name, f"is not a key that is known here; did you mean {_OWN[near]}?")
    )
