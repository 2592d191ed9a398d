"""The TOML document of a configuration file: nested tables as dotted names, and which name may be in which table."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from app.config.defaults import OWN_KEYS, default_keys
from app.config.findings import Findings
from app.config.keys import CONSUMER_KEYS, PRODUCER_KEYS
from app.config.secret import fill_in
from app.config.settings import WORKER_KEYS
from app.config.wrapping import HEADER_KEY, is_header_key
from stores.keys import Key, misspelt, nearest, unknown
from stores.registry import STORE_CLASS, STORE_NAMES, named_keys, store_keys
from stores.store import COMMON_KEYS
from transforms.errors import ConfigurationError

_TYPO = 0.9  # similarity from which a property of a custom store counts as one of ours, misspelt
_HEADER = HEADER_KEY.name.rpartition(".")[0]

# Properties of Connect that have another name here; none is passed to a store.
_OF_CONNECT: Mapping[str, str] = {
    "errors.deadletterqueue.topic.replication.factor": "topic.creation.default.replication.factor",
    "transaction.boundary": "transaction.boundary.type",
}
# The same for properties of Kafka's Java clients: files are PEM, and logins need no Java class.
_ELSEWHERE: Mapping[str, str] = {
    **_OF_CONNECT,
    "consumer.group.id": "group.id",
    "sasl.jaas.config": "sasl.username and sasl.password",
    "ssl.keystore.location": "ssl.certificate.location and ssl.key.location, PEM files",
    "ssl.keystore.password": "ssl.key.password",
    "ssl.truststore.location": "ssl.ca.location, a PEM file",
}

# Properties of Kafka's consumer that the worker does not support, and why.
_REFUSED: Mapping[str, str] = {
    "consumer.group.protocol": (
        "unknown property: the worker joins groups with the protocol classic, the only one that its client aiokafka "
        "supports; brokers of Kafka 4.0 and newer let it share a group with members that use the protocol consumer "
        "(KIP-848)"
    ),
}


def flatten(
    table: Mapping[str, Any], environ: Mapping[str, str], findings: Findings, prefix: str = ""
) -> dict[str, object]:
    """The values by dotted name, of nested tables and of quoted names with dots alike, in the order of the file.

    Names that are set twice, and placeholders that cannot be replaced from `environ` or a file, are noted.
    """
    flat: dict[str, object] = {}
    for name, value in table.items():
        nested = isinstance(value, dict)
        items = flatten(value, environ, findings, f"{prefix}{name}.") if nested else {prefix + name: value}
        for key, item in items.items():
            with findings.noted():
                if key in flat:
                    raise ConfigurationError(key, "is set twice: with and without quotes")
                flat[key] = item  # before it is replaced: a name that fails still has its place in the file
                flat[key] = item if nested else fill_in(key, item, environ)
    return flat


def check_top_names(values: Mapping[str, object], findings: Findings) -> Sequence[Key]:
    """Checks the properties before the first table: those of the worker, and defaults of pipelines. Notes all others.

    Returns:
        the properties of pipelines among them.

    Args:
        values: by name.
        findings: of these properties.
    """
    worker = [key.name for key in WORKER_KEYS]
    names = [name for name in values if name not in worker]
    keys: Sequence[Key] = ()
    with findings.noted():
        keys = default_keys(names)
    defaults = [key.name for key in keys]
    store_class = values.get(STORE_CLASS)
    foreign = isinstance(store_class, str) and store_class not in STORE_NAMES
    no_tables: set[str] = set()
    for name in names:
        first = name.partition(".")[0]
        if name in OWN_KEYS:
            findings.add(ConfigurationError(name, "is a property of a pipeline; move it below a line [pipeline.NAME]"))
        elif name in defaults or is_header_key(name):
            continue
        elif difflib.get_close_matches(first, ["pipeline"], cutoff=0.8):
            if first not in no_tables:  # one error for the whole table
                findings.add(ConfigurationError(name, "unknown property; a pipeline is a table [pipeline.NAME]"))
            no_tables.add(first)
            findings.wrong.add("pipeline")
        else:
            _check_store_name(
                name,
                _client_keys(name) or [*worker, *defaults],
                first,
                findings,
                foreign=foreign and not _client_keys(name),
            )
    return [key for key in keys if key.name in names]


def _client_keys(name: str) -> Sequence[str]:
    for prefix, keys in (("consumer.", CONSUMER_KEYS), ("producer.", PRODUCER_KEYS)):
        if name.startswith(prefix):
            return [key.name for key in keys]
    return ()


def check_pipeline_names(
    pipeline: str, handed: Iterable[str], store_class: object, own: Iterable[str], findings: Findings
) -> None:
    """Checks the properties in a pipeline's table that are not the pipeline's: they must be of its store. Notes others.

    Args:
        pipeline: its name.
        handed: the properties for the store.
        store_class: the value of `large.message.payload.store.class`.
        own: the pipeline's own properties.
        findings: of the pipeline.
    """
    keys = None
    with findings.noted():
        keys = store_keys(store_class) if isinstance(store_class, str) else None
    known = [*own, *(key.name for key in (*COMMON_KEYS, *(keys or ())))]
    worker = {key.name for key in WORKER_KEYS}
    tables: set[str] = set()
    for name in handed:
        nested = re.fullmatch(r"(.+)\.(?:topics|output\.topic|transforms)", name)
        if nested and (keys is not None or store_class is None):
            if nested[1] not in tables:
                quoted = f'[pipeline."{pipeline}.{nested[1]}"]'
                findings.add(ConfigurationError(name, f"unknown property; a name with dots must be quoted: {quoted}"))
            tables.add(nested[1])
            findings.wrong |= set(known)  # this table is none, so nothing is missing in it
    for name in handed:
        if any(name.startswith(f"{table}.") for table in tables) or name in findings.wrong:
            continue
        if name in _OF_CONNECT or (_client_keys(name) and name not in known):
            _note_unknown(name, _client_keys(name) or known, findings)
        elif name in worker:
            findings.add(
                ConfigurationError(name, "is a property of the worker; move it above the first line [pipeline.NAME]")
            )
        elif difflib.get_close_matches(name.rstrip("0123456789").rstrip("."), [_HEADER], n=1, cutoff=_TYPO):
            findings.add(ConfigurationError(name, f"unknown property; did you mean {HEADER_KEY.name}?"))
        elif name not in known:
            _check_store_name(name, known, store_class, findings, foreign=keys is None)


def _check_store_name(
    name: str, known: Sequence[str], store_class: object, findings: Findings, *, foreign: bool
) -> None:
    other = name.partition(".")[0]
    if not foreign and other in STORE_NAMES and other != store_class:
        findings.add(
            ConfigurationError(
                name,
                f"is a property of store {other}, but {STORE_CLASS} is {store_class!r}; correct one of them",
            )
        )
    elif not foreign:
        _note_unknown(name, known, findings)
    elif (error := misspelt(name, known)) is not None and not _is_listed(name, store_class):
        _note(error, known, findings)


def _is_listed(name: str, store_class: object) -> bool:
    """Whether a custom class lists this property; False if there is no such class, which is reported elsewhere."""
    with suppress(ConfigurationError):
        return isinstance(store_class, str) and name in named_keys(store_class)
    return False


def _note_unknown(name: str, known: Iterable[str], findings: Findings) -> None:
    """Notes an unknown property. The one that is probably meant is then misspelt, and not missing."""
    names = list(known)
    _note(_unknown(name, names), names, findings)


def _note(error: ConfigurationError, known: Iterable[str], findings: Findings) -> None:
    findings.add(error)
    near = nearest(error.key, known)
    if near is not None:
        findings.wrong.add(near)


def _unknown(name: str, known: Iterable[str]) -> ConfigurationError:
    if name in _REFUSED:
        return ConfigurationError(name, _REFUSED[name])
    if name in _ELSEWHERE:
        return ConfigurationError(name, f"unknown property; use instead: {_ELSEWHERE[name]}")
    return unknown(name, known)
