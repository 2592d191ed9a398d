"""The configuration file: read once, checked, and turned into settings."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from app.config.chunking import check_order, chunk_settings
from app.config.document import check_client_names, check_pipeline_names, check_top_names, flatten
from app.config.fields import settings_of
from app.config.guarantee import guarantee_of
from app.config.handover import check_forms
from app.config.keys import CONSUMER_KEYS, PRODUCER_KEYS, SECURITY_KEYS
from app.config.naming import check_client, check_name, check_pipeline
from app.config.reference_format import check_store_paths
from app.config.reference_scope import reference_scope_settings
from app.config.secret import Secret, hidden, known
from app.config.settings import (
    CONNECTION_KEYS,
    PIPELINE_KEYS,
    WORKER_KEYS,
    ClientSettings,
    PipelineSettings,
    Settings,
)
from app.config.topology import check_groups, check_no_circle
from app.config.web_control import check_web_control
from app.config.wrapping import check_order as check_wrapper_order
from app.config.wrapping import is_header_key, wrapper_settings
from stores.keys import Key, Value, read
from stores.registry import store_keys
from stores.store import COMMON_KEYS
from transforms.errors import ConfigurationError, of_pipeline
from transforms.formats import FormatName
from transforms.signing import KEY_NAME, Signing

__all__ = ["TRANSFORMS", "checked_client_settings", "load", "parse"]

TRANSFORMS = ("offload", "inflate", "chunk", "assemble", "unwrap", "wrap")
_DEAD_LETTERS = "errors.deadletterqueue.topic.name"
_DELIVERY = "producer.delivery.timeout.ms"
_SECRET_NAME = re.compile(r"password|secret|token|key|credential", re.IGNORECASE)
_FETCH = "consumer.fetch.max.bytes"
_POLL_INTERVAL = "consumer.max.poll.interval.ms"
_STORE_CLASS = "large.message.payload.store.class"
_STORE_TIMEOUT = "large.message.store.timeout.ms"
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")
_TOPIC = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
_ADDRESS = re.compile(r"(?:[^\s:/\[\]]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})", re.ASCII)
_LAST_PORT = 65_535


def load(path: str | os.PathLike[str]) -> Settings:
    """The settings of a TOML file. Makes no request.

    Raises:
        ConfigurationError: the file cannot be read, is not TOML, or has settings that cannot work.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # some editors put a byte order mark before the text
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
    """The settings of a document that `tomllib` has read.

    Raises:
        ConfigurationError: the settings cannot work.
    """
    tables = document.get("pipeline", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigurationError("pipeline", "found a value, allowed are tables: [pipeline.NAME]")
    flat = flatten({name: value for name, value in document.items() if name != "pipeline"}, environ)
    shared = {name: value for name, value in flat.items() if name.startswith(("consumer.", "producer."))}
    own = {name: value for name, value in flat.items() if name not in shared}
    check_top_names(own)
    check_client_names(shared)
    worker = _read(WORKER_KEYS, own)
    check_web_control(worker)
    client = checked_client_settings(own)
    if not tables:
        raise ConfigurationError("pipeline", "there is none; a worker needs at least one table [pipeline.NAME]")
    pipelines = tuple(
        _pipeline(name, worker["in.flight.bytes"], shared, table, environ) for name, table in tables.items()
    )
    for pipeline in pipelines:
        check_pipeline(client, pipeline)
    check_groups(pipelines)
    check_no_circle(pipelines)
    check_forms(pipelines)
    _check_shutdown(worker["task.shutdown.graceful.timeout.ms"], pipelines)
    return settings_of(Settings, worker, client=client, pipelines=pipelines)


def checked_client_settings(config: Mapping[str, object]) -> ClientSettings:
    """The connection settings of the worker or a command; keys of `config` other than `CONNECTION_KEYS` are ignored.

    Raises:
        ConfigurationError: a value is missing or wrong, or some contradict each other.
    """
    values = _read(CONNECTION_KEYS, config)
    _check_addresses(values["bootstrap.servers"])
    client = settings_of(ClientSettings, values, security={key.name: values[key.name] for key in SECURITY_KEYS})
    check_client(client)
    _check_security(client.security)
    return client


def _read(keys: Sequence[Key], config: Mapping[str, object]) -> dict[str, Any]:
    """As `read`, but the text of a placeholder is converted to its key's type, and secrets are hidden."""
    given = {key.name: config[key.name] for key in keys if key.name in config}
    texts = {key.name: key.coerce(given[key.name]) for key in keys if isinstance(given.get(key.name), Secret)}
    values = read(keys, {**given, **texts})
    return {key.name: known(values[key.name]) if key.secret else values[key.name] for key in keys}


def _check_addresses(addresses: str) -> None:
    for address in addresses.split(","):
        match = _ADDRESS.fullmatch(address.strip())
        if match is None or not 0 < int(match[1]) <= _LAST_PORT:
            raise ConfigurationError(
                "bootstrap.servers", f"found {addresses!r}, allowed is host:port, several separated by commas"
            )


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
            raise ConfigurationError(name, f"there is no file {value!r}")


def _reading_ahead(in_flight_bytes: int) -> Mapping[str, object]:
    """The default of a fetch: what a client reads ahead takes memory too, so a small budget makes it small."""
    return {_FETCH: max(1, min(52_428_800, in_flight_bytes // 4))}


def _pipeline(
    name: str,
    in_flight_bytes: int,
    shared: Mapping[str, object],
    table: Mapping[str, object],
    environ: Mapping[str, str],
) -> PipelineSettings:
    with of_pipeline(name):
        values = {**_reading_ahead(in_flight_bytes), **shared, **flatten(table, environ)}
        _check_name(name)
        return _checked_pipeline(name, values, in_flight_bytes)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigurationError("pipeline", f"found the name {name!r}, allowed are 1 to 200 of [a-zA-Z0-9._-]")


def _checked_pipeline(name: str, config: Mapping[str, object], in_flight_bytes: int) -> PipelineSettings:
    own = (*PIPELINE_KEYS, *CONSUMER_KEYS, *PRODUCER_KEYS)
    own_names = {key.name for key in own}
    handed = {key: value for key, value in config.items() if key not in own_names and not is_header_key(key)}
    # Names first, or a misspelt key would be reported as a missing one.
    check_pipeline_names(name, handed, config.get(_STORE_CLASS), own_names)
    values = _read(own, config)
    common = _read(COMMON_KEYS, config)
    _check_topics(values)
    transforms = _check_transforms(values["transforms"])
    if values["group.id"] == "":
        raise ConfigurationError("group.id", "found '', allowed is a name; or leave the key out")
    chunks = chunk_settings(values, config, transforms, in_flight_bytes)
    wrapper = wrapper_settings(values, config, transforms)
    needed = "inflate" in transforms or ("offload" in transforms and chunks.strategy != "chunk")
    store = _store_config(values, handed, needed=needed)
    check_store_paths(values["reference.format"], transforms, store)
    tolerant = values["errors.tolerance"] == "all"
    if tolerant and values[_DEAD_LETTERS] is None:
        raise ConfigurationError(_DEAD_LETTERS, 'is missing; errors.tolerance = "all" needs a dead-letter topic')
    if store:
        _check_below({**values, **common}, _STORE_TIMEOUT, _POLL_INTERVAL)
    _check_below(values, "consumer.heartbeat.interval.ms", "consumer.session.timeout.ms")
    _check_below(values, "consumer.fetch.max.wait.ms", "consumer.request.timeout.ms")
    if _DELIVERY in config:
        _check_delivery(values)
    return settings_of(
        PipelineSettings,
        values,
        name=name,
        transforms=transforms,
        group_id=values["group.id"] or f"wideload-{name}",
        store=store,
        reference_scope=reference_scope_settings(values, transforms),
        guarantee=guarantee_of(values),
        chunks=chunks,
        wrapper=wrapper,
        dead_letter_topic=values[_DEAD_LETTERS] if tolerant else None,
        max_bytes=common["large.message.max.bytes"],
        store_timeout_ms=common[_STORE_TIMEOUT],
        signing=_signing(common, values["reference.format"]),
        consumer={key.name: values[key.name] for key in CONSUMER_KEYS},
        producer={key.name: values[key.name] for key in PRODUCER_KEYS},
    )


def _check_topics(values: Mapping[str, Any]) -> None:
    if not values["topics"]:
        raise ConfigurationError("topics", "found an empty list, allowed is one topic or more")
    named = [
        *(("topics", topic) for topic in values["topics"]),
        ("output.topic", values["output.topic"]),
        (_DEAD_LETTERS, values[_DEAD_LETTERS]),
    ]
    for key, topic in named:
        if topic is not None:
            check_name("topic", topic, key)
        if topic is not None and not _TOPIC.fullmatch(topic):
            raise ConfigurationError(key, f"found {topic!r}, allowed are 1 to 249 characters of [a-zA-Z0-9._-]")
    if len(set(values["topics"])) != len(values["topics"]):
        raise ConfigurationError("topics", f"found {values['topics']}, which has a topic twice")
    for key, topic in named[len(values["topics"]) :]:
        if topic in values["topics"]:
            raise ConfigurationError(key, f"found {topic!r}, which is also in topics: the pipeline would feed itself")
    if values[_DEAD_LETTERS] == values["output.topic"]:
        raise ConfigurationError(
            _DEAD_LETTERS,
            f"found {values['output.topic']!r}, which is also output.topic: its readers would take dead letters for "
            "records",
        )


def _check_transforms(names: Sequence[str]) -> tuple[str, ...]:
    if not names:
        raise ConfigurationError("transforms", f"found an empty list, allowed are: {', '.join(TRANSFORMS)}")
    for name in names:
        if name not in TRANSFORMS:
            raise ConfigurationError("transforms", f"found {name!r}, allowed are: {', '.join(TRANSFORMS)}")
    if len(set(names)) != len(names):
        raise ConfigurationError("transforms", f"found {list(names)}, which has a transform twice")
    if tuple(names) == ("offload", "inflate"):
        raise ConfigurationError("transforms", f"found {list(names)}, where inflate would undo offload")
    check_order(names)
    check_wrapper_order(names)
    return tuple(names)


def _signing(common: Mapping[str, Any], name: FormatName) -> Signing | None:
    signing = Signing.of(common)
    if signing is not None and name != "wideload":
        raise ConfigurationError(KEY_NAME, f"stands beside reference.format = '{name}', which has no signatures")
    return signing


def _store_config(values: Mapping[str, Any], handed: Mapping[str, object], *, needed: bool) -> Mapping[str, object]:
    """The configuration of the store. A user's class may have secrets among its keys, so all its strings are hidden."""
    store_class = values[_STORE_CLASS]
    if store_class is None and not needed:
        for name in handed:
            raise ConfigurationError(name, f"is a key of a store, but transforms {values['transforms']} need none")
        return {}
    if store_class is None:
        raise ConfigurationError(_STORE_CLASS, f"is missing; transforms {values['transforms']} need a store")
    keys = store_keys(store_class)
    checked = _read((*COMMON_KEYS, *(keys or ())), handed)
    if not needed:
        return {}  # a store that is configured but not needed is checked, and not opened
    return {_STORE_CLASS: store_class} | {
        name: checked[name] if name in checked else _hidden(name, value) for name, value in handed.items()
    }


def _hidden(name: str, value: object) -> object:
    """The value of a key that only a class of the user's own knows."""
    return known(value) if _SECRET_NAME.search(name) else hidden(value)


def _check_delivery(values: Mapping[str, Any]) -> None:
    # As in Kafka's producer, this is checked only if the time is given; else it is made long enough.
    least = values["producer.linger.ms"] + values["producer.request.timeout.ms"]
    if values[_DELIVERY] < least:
        raise ConfigurationError(
            _DELIVERY,
            f"found {values[_DELIVERY]:,}, allowed is at least producer.linger.ms and producer.request.timeout.ms "
            f"together, which are {least:,}",
        )


def _check_below(values: Mapping[str, Any], key: str, limit: str) -> None:
    if values[key] >= values[limit]:
        raise ConfigurationError(
            key, f"found {values[key]:,}, allowed is less than {limit}, which is {values[limit]:,}"
        )


def _check_shutdown(graceful_timeout_ms: int, pipelines: Iterable[PipelineSettings]) -> None:
    """Checks that a pipeline that loses partitions can drain before its time to join the group again is over."""
    for pipeline in pipelines:
        interval = cast("int", pipeline.consumer[_POLL_INTERVAL])
        if graceful_timeout_ms >= interval:
            raise ConfigurationError(
                "task.shutdown.graceful.timeout.ms",
                f"found {graceful_timeout_ms:,}, allowed is less than {_POLL_INTERVAL} of pipeline {pipeline.name}, "
                f"which is {interval:,}",
            )
