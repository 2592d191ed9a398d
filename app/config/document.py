"""The TOML document of a configuration file: nested tables as dotted names, and which name may be in which table."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from app.config.keys import CONSUMER_KEYS, PRODUCER_KEYS
from app.config.secret import fill_in
from app.config.settings import PIPELINE_KEYS, WORKER_KEYS
from app.config.wrapping import HEADER_KEY, is_header_key
from stores.keys import unknown
from stores.registry import STORE_CLASS, STORE_NAMES, store_keys
from stores.store import COMMON_KEYS
from transforms.errors import ConfigurationError

__all__ = ["check_client_names", "check_pipeline_names", "check_top_names", "flatten"]

_TYPO = 0.9  # similarity from which a key for a user's store counts as one of ours, misspelt
_HEADER = HEADER_KEY.name.rpartition(".")[0]

# Keys of Connect that have another name here; none is handed to a store.
_OF_CONNECT: Mapping[str, str] = {
    "errors.deadletterqueue.topic.replication.factor": "topic.creation.default.replication.factor",
    "transaction.boundary": "transaction.boundary.type",
}
# So do keys of Kafka's Java clients: files are PEM, and logins need no Java class.
_ELSEWHERE: Mapping[str, str] = {
    **_OF_CONNECT,
    "consumer.group.id": "group.id",
    "sasl.jaas.config": "sasl.username and sasl.password",
    "ssl.keystore.location": "ssl.certificate.location and ssl.key.location, PEM files",
    "ssl.keystore.password": "ssl.key.password",
    "ssl.truststore.location": "ssl.ca.location, a PEM file",
}


def flatten(table: Mapping[str, Any], environ: Mapping[str, str], prefix: str = "") -> dict[str, object]:
    """The values by dotted name, of nested tables and of quoted names with dots alike.

    Raises:
        ConfigurationError: a name is given twice, or a placeholder cannot be filled in from `environ` or a file.
    """
    flat: dict[str, object] = {}
    for name, value in table.items():
        nested = isinstance(value, dict)
        for key, item in flatten(value, environ, f"{prefix}{name}.").items() if nested else [(prefix + name, value)]:
            if key in flat:
                raise ConfigurationError(key, "is given twice: with quotes and without")
            flat[key] = item if nested else fill_in(key, item, environ)
    return flat


def check_top_names(names: Iterable[str]) -> None:
    """Checks the keys above all pipelines, which must be keys of the worker.

    Raises:
        ConfigurationError: a key belongs elsewhere, or is unknown.
    """
    known = [key.name for key in WORKER_KEYS]
    for name in names:
        if name in known:
            continue
        if difflib.get_close_matches(name.partition(".")[0], ["pipeline"], cutoff=0.8):
            raise ConfigurationError(name, "is not a key that is known here; a pipeline is a table [pipeline.NAME]")
        if is_header_key(name) or name in {key.name for key in (*PIPELINE_KEYS, *COMMON_KEYS)}:
            raise ConfigurationError(name, "belongs to a pipeline: it goes below the line [pipeline.NAME]")
        raise _unknown(name, known)


def check_client_names(names: Iterable[str]) -> None:
    """Checks the keys that begin with `consumer.` or `producer.`.

    Raises:
        ConfigurationError: a key is unknown.
    """
    for name in names:
        for prefix, keys in (("consumer.", CONSUMER_KEYS), ("producer.", PRODUCER_KEYS)):
            known = [key.name for key in keys]
            if name.startswith(prefix) and name not in known:
                raise _unknown(name, known)


def check_pipeline_names(pipeline: str, handed: Iterable[str], store_class: object, own: Iterable[str]) -> None:
    """Checks the keys in a pipeline's table that are not its own; they must be keys of its store.

    Args:
        pipeline: its name.
        handed: the keys for the store.
        store_class: the value of `large.message.payload.store.class`.
        own: the pipeline's own keys.

    Raises:
        ConfigurationError: a key belongs to the worker, or is unknown.
    """
    check_client_names(handed)
    keys = store_keys(store_class) if isinstance(store_class, str) else None
    known = [*own, *(key.name for key in (*COMMON_KEYS, *(keys or ())))]
    worker = {key.name for key in WORKER_KEYS}
    for name in handed:
        if name in _OF_CONNECT:
            raise _unknown(name, known)
        if name in worker:
            raise ConfigurationError(name, "belongs to the worker: it goes above the first line [pipeline.NAME]")
        nested = re.fullmatch(r"(.+)\.(?:topics|output\.topic|transforms)", name)
        if nested and (keys is not None or store_class is None):
            quoted = f'[pipeline."{pipeline}.{nested[1]}"]'
            raise ConfigurationError(name, f"is not a key; a name with dots is quoted: {quoted}")
        if difflib.get_close_matches(name.rstrip("0123456789").rstrip("."), [_HEADER], n=1, cutoff=_TYPO):
            raise ConfigurationError(name, f"is not a key that is known here; did you mean {HEADER_KEY.name}?")
        if name in known:
            continue
        other = name.partition(".")[0]
        if keys is not None and other in STORE_NAMES and other != store_class:
            raise ConfigurationError(
                name,
                f"is a key of the store {other}, and {STORE_CLASS} is {store_class!r}; correct one of them",
            )
        if keys is not None or difflib.get_close_matches(name, known, n=1, cutoff=_TYPO):
            raise _unknown(name, known)


def _unknown(name: str, known: Iterable[str]) -> ConfigurationError:
    if name in _ELSEWHERE:
        return ConfigurationError(name, f"is not a key that is known here; use instead: {_ELSEWHERE[name]}")
    return unknown(name, known)
