"""One table `[pipeline.NAME]` of a configuration file: checked, and turned into the settings of the pipeline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.config.chunking import check_order, chunk_settings
from app.config.defaults import defaults_of
from app.config.document import check_pipeline_names
from app.config.encryption import encryption_settings
from app.config.fields import settings_of
from app.config.findings import Checked, Findings, WrongValueError
from app.config.guarantee import guarantee_of
from app.config.keys import CONSUMER_KEYS, PRODUCER_KEYS
from app.config.naming import check_topic
from app.config.reference_format import check_store_paths
from app.config.reference_scope import reference_scope_settings
from app.config.secret import hidden, known
from app.config.settings import PIPELINE_KEYS, PipelineSettings
from app.config.wrapping import check_order as check_wrapper_order
from app.config.wrapping import is_header_key, wrapper_settings
from stores.registry import STORE_CLASS, store_keys
from stores.store import COMMON_KEYS
from transforms.errors import ConfigurationError
from transforms.formats import FormatName
from transforms.signing import KEY_NAME, Signing

TRANSFORMS = ("offload", "inflate", "chunk", "assemble", "unwrap", "wrap")
POLL_INTERVAL = "consumer.max.poll.interval.ms"

_DEAD_LETTERS = "errors.deadletterqueue.topic.name"
_DELIVERY = "producer.delivery.timeout.ms"
_SECRET_NAME = re.compile(r"password|secret|token|key|credential", re.IGNORECASE)
_FETCH = "consumer.fetch.max.bytes"
_STORE_TIMEOUT = "large.message.store.timeout.ms"
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")
_KEYS = (*PIPELINE_KEYS, *CONSUMER_KEYS, *PRODUCER_KEYS)
_NAMES = tuple(key.name for key in _KEYS)
_PARTS = 7  # of the settings, made by the checks of `_settings`


@dataclass(frozen=True, slots=True)
class Table:
    """The table of a pipeline.

    Attributes:
        name: of the pipeline.
        given: the values in the file, by dotted name.
        findings: its errors.
    """

    name: str
    given: Mapping[str, object]
    findings: Findings

    def settings(self, shared: Mapping[str, object], worker: Checked) -> PipelineSettings | None:
        """The settings of the pipeline; None if something is wrong; `findings` then has the errors.

        Args:
            shared: the values before the first table, which are defaults of all pipelines.
            worker: the values of the worker's properties.
        """
        findings = self.findings
        config = {**defaults_of(shared, self.given), **self.given}
        with findings.noted():
            config = {**_reading_ahead(worker["in.flight.bytes"]), **config}
        with findings.noted():
            _check_name(self.name)
        handed = {key: value for key, value in config.items() if key not in _NAMES and not is_header_key(key)}
        # Names first, or a misspelt property would be reported as a missing one.
        check_pipeline_names(self.name, handed, config.get(STORE_CLASS), _NAMES, findings)
        values = findings.read((*_KEYS, *COMMON_KEYS), config)
        checked: list[PipelineSettings] = []
        with findings.noted():
            checked.append(_settings(self.name, values, config, handed, worker, findings))
        return checked[0] if checked else None


def _settings(
    name: str,
    values: Checked,
    config: Mapping[str, object],
    handed: Mapping[str, object],
    worker: Checked,
    findings: Findings,
) -> PipelineSettings:
    """The settings, if nothing is wrong; each check notes its error, and the others are still made.

    Raises:
        WrongValueError: something is wrong.
    """
    _check_topics(values, findings)
    with findings.noted():
        _check_transforms(values["transforms"])
    with findings.noted():
        if values["group.id"] == "":
            raise ConfigurationError("group.id", "found '', allowed is a name; or leave the property out")
    with findings.noted():
        if values["errors.tolerance"] == "all" and values[_DEAD_LETTERS] is None:
            raise ConfigurationError(_DEAD_LETTERS, 'is missing; errors.tolerance = "all" requires a dead letter queue')
    with findings.noted():
        _check_below(values, "consumer.heartbeat.interval.ms", "consumer.session.timeout.ms")
    with findings.noted():
        _check_below(values, "consumer.fetch.max.wait.ms", "consumer.request.timeout.ms")
    with findings.noted():
        if _DELIVERY in config:
            _check_delivery(values)
    parts: dict[str, Any] = {}
    with findings.noted():
        parts["wrapper"] = wrapper_settings(values, config, values["transforms"])
    with findings.noted():
        parts["reference_scope"] = reference_scope_settings(values, values["transforms"])
    with findings.noted():
        parts["guarantee"] = guarantee_of(values)
    with findings.noted():
        parts["signing"] = _signing(values, values["reference.format"])
    with findings.noted():
        parts["encryption"] = encryption_settings(values)
    with findings.noted():
        parts["store"] = _store_config(values, handed, findings)
        check_store_paths(values["reference.format"], values["transforms"], parts["store"])
        if parts["store"]:
            _check_below(values, _STORE_TIMEOUT, POLL_INTERVAL)
    with findings.noted():
        parts["chunks"] = chunk_settings(values, config, values["transforms"], worker["in.flight.bytes"])
    if findings.errors or len(parts) < _PARTS:
        raise WrongValueError
    return settings_of(
        PipelineSettings,
        values,
        name=name,
        transforms=tuple(values["transforms"]),
        group_id=values["group.id"] or f"wideload-{name}",
        dead_letter_topic=values[_DEAD_LETTERS] if values["errors.tolerance"] == "all" else None,
        max_bytes=values["large.message.max.bytes"],
        store_timeout_ms=values[_STORE_TIMEOUT],
        consumer={key.name: values[key.name] for key in CONSUMER_KEYS},
        producer={key.name: values[key.name] for key in PRODUCER_KEYS},
        **parts,
    )


def _reading_ahead(in_flight_bytes: int) -> Mapping[str, object]:
    """The default of a fetch: read-ahead uses memory too, so it is small if the budget is."""
    return {_FETCH: max(1, min(52_428_800, in_flight_bytes // 4))}


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            "pipeline", f"found the name {name!r}, allowed are 1 to 200 characters of [a-zA-Z0-9._-]"
        )


def _check_topics(values: Checked, findings: Findings) -> None:
    with findings.noted():
        if not values["topics"]:
            raise ConfigurationError("topics", "found an empty list, allowed is one topic or more")
        for topic in values["topics"]:
            check_topic("topics", topic)
        if len(set(values["topics"])) != len(values["topics"]):
            raise ConfigurationError("topics", f"found {values['topics']}, which lists a topic twice")
    for key in ("output.topic", _DEAD_LETTERS):
        with findings.noted():
            topic = values[key]
            if topic is not None:
                check_topic(key, topic)
            if topic in values["topics"]:
                raise ConfigurationError(
                    key, f"found {topic!r}, which is also in topics: the pipeline would feed itself"
                )
    with findings.noted():
        if values[_DEAD_LETTERS] == values["output.topic"]:
            raise ConfigurationError(
                _DEAD_LETTERS,
                f"found {values['output.topic']!r}, which is also output.topic: its consumers would read dead-letter "
                "records as ordinary ones",
            )


def _check_transforms(names: Sequence[str]) -> None:
    if not names:
        raise ConfigurationError("transforms", f"found an empty list, allowed are: {', '.join(TRANSFORMS)}")
    for name in names:
        if name not in TRANSFORMS:
            raise ConfigurationError("transforms", f"found {name!r}, allowed are: {', '.join(TRANSFORMS)}")
    if len(set(names)) != len(names):
        raise ConfigurationError("transforms", f"found {list(names)}, which lists a transform twice")
    if tuple(names) == ("offload", "inflate"):
        raise ConfigurationError(
            "transforms", f"found {list(names)}; inflate would restore what offload has just stored"
        )
    check_order(names)
    check_wrapper_order(names)


def _signing(common: Mapping[str, Any], name: FormatName) -> Signing | None:
    signing = Signing.of(common)
    if signing is not None and name != "wideload":
        raise ConfigurationError(
            KEY_NAME, f"cannot be combined with reference.format = '{name}', which has no signatures"
        )
    return signing


def _store_config(values: Checked, handed: Mapping[str, object], findings: Findings) -> Mapping[str, object]:
    """The configuration of the store. A custom class may have secret properties, so all its strings are hidden."""
    store_class, transforms = values[STORE_CLASS], values["transforms"]
    offloads = "offload" in transforms and values["large.message.strategy"] != "chunk"
    needed = "inflate" in transforms or offloads
    if store_class is None and not needed:
        for name in handed:
            if name not in findings.wrong:
                findings.add(
                    ConfigurationError(name, f"is a property of a store, but transforms {transforms} need no store")
                )
        return {}
    if store_class is None:
        raise ConfigurationError(STORE_CLASS, f"is missing; transforms {transforms} need a store")
    checked = findings.read((*COMMON_KEYS, *(store_keys(store_class) or ())), handed)
    if not needed:
        return {}  # a store that is configured but not needed is checked, and not opened
    return {STORE_CLASS: store_class} | {
        name: checked[name] if name in checked else _hidden(name, value) for name, value in handed.items()
    }


def _hidden(name: str, value: object) -> object:
    """The value of a property that only a custom class knows."""
    return known(value) if _SECRET_NAME.search(name) else hidden(value)


def _check_delivery(values: Mapping[str, Any]) -> None:
    # As in Kafka's producer, this is checked only if the timeout is set; otherwise it is made long enough.
    least = values["producer.linger.ms"] + values["producer.request.timeout.ms"]
    if values[_DELIVERY] < least:
        raise ConfigurationError(
            _DELIVERY,
            f"found {values[_DELIVERY]:,}, allowed is at least the sum of producer.linger.ms and "
            f"producer.request.timeout.ms, which is {least:,}",
        )


def _check_below(values: Mapping[str, Any], key: str, limit: str) -> None:
    if values[key] >= values[limit]:
        raise ConfigurationError(
            key, f"found {values[key]:,}, allowed is less than {limit}, which is {values[limit]:,}"
        )
