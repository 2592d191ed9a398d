"""Settings: the configuration file, read once, checked, frozen."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from app.definitions import CONSUMER_KEYS, PIPELINE_KEYS, PRODUCER_KEYS, SECURITY_KEYS, WORKER_KEYS
from app.secret import fill_in
from stores.keys import Key, Value, read, unknown
from stores.registry import store_keys
from stores.store import COMMON_KEYS
from transforms.compression import Codec
from transforms.errors import ConfigurationError

__all__ = ["TRANSFORMS", "ClientSettings", "PipelineSettings", "Settings", "load", "parse"]

TRANSFORMS = ("offload", "inflate")
_STORE_CLASS = "large.message.payload.store.class"
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")
_TOPIC = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How every client of the worker reaches the cluster.

    Attributes:
        bootstrap_servers: `host:port`, separated by commas.
        client_id: the name that brokers see.
        security: the values of `SECURITY_KEYS`, by name.
    """

    bootstrap_servers: str
    client_id: str = "wideload"
    security: Mapping[str, Value | None] = field(default_factory=lambda: read(SECURITY_KEYS, {}))


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """One `[pipeline.NAME]` of the file; the fields are the keys of `PIPELINE_KEYS`.

    Attributes:
        codec: `large.message.compression.type`; None for `none`.
        store: what the store is opened with, its class included.
        max_bytes: `large.message.max.bytes`.
        store_timeout_ms: `large.message.store.timeout.ms`.
        consumer: the values of `CONSUMER_KEYS`, by name.
        producer: the values of `PRODUCER_KEYS`, by name.
    """

    name: str
    topics: tuple[str, ...]
    output_topic: str
    transforms: tuple[str, ...]
    group_id: str
    threshold_bytes: int
    codec: Codec | None
    store: Mapping[str, object]
    max_bytes: int
    store_timeout_ms: int
    errors_tolerance: Literal["none", "all"]
    dead_letter_topic: str | None
    dead_letter_context: bool
    retry_delay_max_ms: int
    flush_interval_ms: int
    topic_creation: bool
    replication_factor: int
    consumer: Mapping[str, Value | None]
    producer: Mapping[str, Value | None]


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole file; the fields are the keys of `WORKER_KEYS`."""

    client: ClientSettings
    in_flight_bytes: int
    store_threads: int
    web_bind: str
    web_port: int
    graceful_timeout_ms: int
    pipelines: tuple[PipelineSettings, ...]


def load(path: str | os.PathLike[str]) -> Settings:
    """The settings of a TOML file. Makes no request.

    Raises:
        ConfigurationError: the file cannot be read, is not TOML, or says what cannot work.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as exc:
        raise ConfigurationError(str(path), f"cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigurationError(str(path), "is not UTF-8, which TOML must be") from exc
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigurationError(str(path), f"is not TOML: {exc}") from exc
    return parse(document)


def parse(document: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of a document as `tomllib` gives it.

    Raises:
        ConfigurationError: with the key, the pipeline, what was found and what is allowed.
    """
    tables = document.get("pipeline", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigurationError("pipeline", "found a value, allowed are tables: [pipeline.NAME]")
    flat = _flatten({name: value for name, value in document.items() if name != "pipeline"}, environ)
    shared = {name: value for name, value in flat.items() if name.startswith(("consumer.", "producer."))}
    own = {name: value for name, value in flat.items() if name not in shared}
    _refuse_unknown(own, WORKER_KEYS)
    _refuse_unknown(shared, (*CONSUMER_KEYS, *PRODUCER_KEYS))
    worker = cast("dict[str, Any]", read(WORKER_KEYS, own))
    client = ClientSettings(
        worker["bootstrap.servers"], worker["client.id"], {key.name: worker[key.name] for key in SECURITY_KEYS}
    )
    _check_security(client.security)
    if not tables:
        raise ConfigurationError("pipeline", "there is none; a worker needs at least one table [pipeline.NAME]")
    pipelines = tuple(_pipeline(name, shared, _flatten_in(name, table, environ)) for name, table in tables.items())
    _check_apart(pipelines)
    return Settings(
        client=client,
        in_flight_bytes=worker["in.flight.bytes"],
        store_threads=worker["store.threads"],
        web_bind=worker["web.bind"],
        web_port=worker["web.port"],
        graceful_timeout_ms=worker["task.shutdown.graceful.timeout.ms"],
        pipelines=pipelines,
    )


def _flatten(table: Mapping[str, Any], environ: Mapping[str, str], prefix: str = "") -> dict[str, object]:
    """Dotted names from the nested tables that TOML makes of them."""
    flat: dict[str, object] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            flat |= _flatten(value, environ, f"{prefix}{name}.")
        else:
            flat[prefix + name] = fill_in(prefix + name, value, environ)
    return flat


def _flatten_in(pipeline: str, table: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, object]:
    try:
        return _flatten(table, environ)
    except ConfigurationError as exc:
        raise exc.within(pipeline) from exc


def _refuse_unknown(config: Iterable[str], keys: Iterable[Key]) -> None:
    known = [key.name for key in keys]
    for name in config:
        if name not in known:
            raise unknown(name, known)


def _check_security(security: Mapping[str, Value | None]) -> None:
    protocol = str(security["security.protocol"])
    if protocol.startswith("SASL") and security["sasl.mechanism"] != "GSSAPI":
        for name in ("sasl.username", "sasl.password"):
            if security[name] is None:
                raise ConfigurationError(name, f"is missing; security.protocol {protocol} needs it")
    if (security["ssl.certificate.location"] is None) != (security["ssl.key.location"] is None):
        raise ConfigurationError("ssl.key.location", "goes with ssl.certificate.location: give both or neither")
    for name in ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"):
        value = security[name]
        if value is not None and not Path(str(value)).is_file():
            raise ConfigurationError(name, f"there is no file {value}")


def _pipeline(name: str, shared: Mapping[str, object], table: Mapping[str, object]) -> PipelineSettings:
    try:
        if not _NAME.fullmatch(name):
            raise ConfigurationError("pipeline", f"found the name {name!r}, allowed are 1 to 200 of [a-zA-Z0-9._-]")
        return _checked_pipeline(name, {**shared, **table})
    except ConfigurationError as exc:
        raise exc.within(name) from exc


def _checked_pipeline(name: str, config: Mapping[str, object]) -> PipelineSettings:
    own = (*PIPELINE_KEYS, *CONSUMER_KEYS, *PRODUCER_KEYS)
    own_names = {key.name for key in own}
    values = cast("dict[str, Any]", read(own, config))
    common = cast("dict[str, Any]", read(COMMON_KEYS, config))
    handed = {key: value for key, value in config.items() if key not in own_names}
    _check_topics(values)
    transforms = _check_transforms(values["transforms"])
    _check_client_keys(handed)
    store = _store_config(values, handed, own_names)
    if values["errors.tolerance"] == "all" and values["errors.deadletterqueue.topic.name"] is None:
        raise ConfigurationError(
            "errors.deadletterqueue.topic.name", "is missing; errors.tolerance = \"all\" needs a dead-letter topic"
        )
    poll_interval, store_timeout = values["consumer.max.poll.interval.ms"], common["large.message.store.timeout.ms"]
    if store_timeout >= poll_interval:
        raise ConfigurationError(
            "large.message.store.timeout.ms",
            f"found {store_timeout:,}, allowed is less than consumer.max.poll.interval.ms, which is {poll_interval:,}",
        )
    if values["consumer.heartbeat.interval.ms"] >= values["consumer.session.timeout.ms"]:
        raise ConfigurationError(
            "consumer.heartbeat.interval.ms",
            f"found {values['consumer.heartbeat.interval.ms']:,}, allowed is less than consumer.session.timeout.ms, "
            f"which is {values['consumer.session.timeout.ms']:,}",
        )
    codec = values["large.message.compression.type"]
    return PipelineSettings(
        name=name,
        topics=tuple(values["topics"]),
        output_topic=values["output.topic"],
        transforms=transforms,
        group_id=values["group.id"] or f"wideload-{name}",
        threshold_bytes=values["large.message.threshold.bytes"],
        codec=None if codec == "none" else codec,
        store=store,
        max_bytes=common["large.message.max.bytes"],
        store_timeout_ms=store_timeout,
        errors_tolerance=values["errors.tolerance"],
        dead_letter_topic=values["errors.deadletterqueue.topic.name"],
        dead_letter_context=values["errors.deadletterqueue.context.headers.enable"],
        retry_delay_max_ms=values["errors.retry.delay.max.ms"],
        flush_interval_ms=values["offset.flush.interval.ms"],
        topic_creation=values["topic.creation.enable"],
        replication_factor=values["topic.creation.default.replication.factor"],
        consumer={key.name: values[key.name] for key in CONSUMER_KEYS},
        producer={key.name: values[key.name] for key in PRODUCER_KEYS},
    )


def _check_topics(values: Mapping[str, Any]) -> None:
    if not values["topics"]:
        raise ConfigurationError("topics", "found an empty list, allowed is one topic or more")
    named = [
        *(("topics", topic) for topic in values["topics"]),
        ("output.topic", values["output.topic"]),
        ("errors.deadletterqueue.topic.name", values["errors.deadletterqueue.topic.name"]),
    ]
    for key, topic in named:
        if topic is not None and not _TOPIC.fullmatch(topic):
            raise ConfigurationError(key, f"found {topic!r}, allowed are 1 to 249 characters of [a-zA-Z0-9._-]")
    if len(set(values["topics"])) != len(values["topics"]):
        raise ConfigurationError("topics", f"found {values['topics']}, in which a topic stands twice")
    for key, topic in named[len(values["topics"]) :]:
        if topic in values["topics"]:
            raise ConfigurationError(key, f"found {topic!r}, which is also in topics: the pipeline would feed itself")


def _check_transforms(names: Sequence[str]) -> tuple[str, ...]:
    if not names:
        raise ConfigurationError("transforms", f"found an empty list, allowed are: {', '.join(TRANSFORMS)}")
    for name in names:
        if name not in TRANSFORMS:
            raise ConfigurationError("transforms", f"found {name!r}, allowed are: {', '.join(TRANSFORMS)}")
    if len(set(names)) != len(names):
        raise ConfigurationError("transforms", f"found {list(names)}, in which a transform stands twice")
    return tuple(names)


def _check_client_keys(handed: Iterable[str]) -> None:
    """Keys of a client that are not ours to hand on must not slip through to a store that takes any key."""
    for name in handed:
        if name.startswith("consumer."):
            raise unknown(name, [key.name for key in CONSUMER_KEYS])
        if name.startswith("producer."):
            raise unknown(name, [key.name for key in PRODUCER_KEYS])


def _store_config(
    values: Mapping[str, Any], handed: Mapping[str, object], known: Iterable[str]
) -> Mapping[str, object]:
    store_class = values[_STORE_CLASS]
    if store_class is None:
        raise ConfigurationError(_STORE_CLASS, f"is missing; transforms {values['transforms']} need a store")
    keys = store_keys(store_class)
    if keys is not None:
        allowed = [key.name for key in (*COMMON_KEYS, *keys)]
        for name in handed:
            if name not in allowed:
                raise unknown(name, [*known, *allowed])
    return {_STORE_CLASS: store_class, **handed}


def _check_apart(pipelines: Sequence[PipelineSettings]) -> None:
    """Two pipelines of one group would share partitions, and each would lose what the other one got."""
    groups: dict[str, str] = {}
    for pipeline in pipelines:
        if pipeline.group_id in groups:
            raise ConfigurationError(
                "group.id",
                f"found {pipeline.group_id!r}, which pipeline {groups[pipeline.group_id]} has too; groups are one each",
                pipeline=pipeline.name,
            )
        groups[pipeline.group_id] = pipeline.name
