"""The properties of the serializers in a client's configuration, and those of the store there.

A value may have its own type or be a string, as with Kafka's clients.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.config.client import coerced
from app.config.settings import PIPELINE_KEYS
from stores.keys import OURS, REQUIRED, Key, misspelt, read, unknown
from stores.registry import STORE_CLASS, named_keys, store_keys
from stores.store import COMMON_KEYS
from transforms.errors import ConfigurationError

GENERATOR = "large.message.id.generator"
TIMEOUT = "large.message.store.timeout.ms"
_STRATEGY = "large.message.strategy"  # of producers that can send chunks

_WORKERS = {key.name: key for key in (*PIPELINE_KEYS, *COMMON_KEYS)}


def _as_workers(name: str, doc: str, **more: Any) -> Key:
    """A property of the worker, with its meaning for a client."""
    return replace(_WORKERS[name], doc=doc, **more)


STORE_KEY = _as_workers(
    STORE_CLASS,
    "The payload store: `s3`, `gcs`, `azure`, `filesystem`, `memory`, or a custom class as `package.module.Class`.",
    default=REQUIRED,
)
MAX_BLOCK = Key(
    "max.block.ms",
    "int",
    "The maximum time in milliseconds that a send may block. `large.message.store.timeout.ms`, for key and value "
    "together, must not exceed it. If both are offloaded, the default is twice as long.",
    default=60_000,
    minimum=0,
)
MAX_POLL_INTERVAL = Key(
    "max.poll.interval.ms",
    "int",
    "The maximum time in milliseconds between two polls. `large.message.store.timeout.ms`, for key and value "
    "together, must not exceed it.",
    default=300_000,
    minimum=1,
)

PRODUCER_KEYS: Sequence[Key] = (
    _as_workers(
        "large.message.threshold.bytes",
        "The size in bytes above which a value is stored as a payload. A record that `max.request.size` "
        "(confluent-kafka: `message.max.bytes`) would refuse is offloaded too.",
    ),
    _as_workers(
        "large.message.compression.type",
        "The compression codec of payloads in the store. Payloads of keys are never compressed, as equal keys need "
        "equal references.",
    ),
    _as_workers(
        GENERATOR,
        "How payloads are named. `uuid`: with a random UUID. `sha256`: with the digest of the stored bytes, for "
        "compacted topics; keys always use it.",
        default="uuid",
        allowed=("uuid", "sha256"),
    ),
    MAX_BLOCK,
    Key("max.request.size", "int", "The maximum size in bytes of a request, if the client has this limit.", minimum=0),
    Key(
        "message.max.bytes", "int", "The maximum size in bytes of a request, by its name in confluent-kafka.", minimum=0
    ),
)
CONSUMER_KEYS: Sequence[Key] = (MAX_POLL_INTERVAL,)
OUR_NAMES = [key.name for key in (STORE_KEY, *PRODUCER_KEYS, *COMMON_KEYS) if key.name.startswith(OURS)]


def read_options(config: Mapping[str, object], keys: Sequence[Key]) -> tuple[dict[str, Any], dict[str, object]]:
    """The values of `keys` and of the properties that all stores have, and the configuration of the store.

    Args:
        config: of a client.
        keys: `PRODUCER_KEYS` or `CONSUMER_KEYS`.

    Raises:
        ConfigurationError: a property is missing or wrong, or the store may take longer than the client allows.
    """
    own = read(keys, coerced(keys, config))
    store = _store_config(config)
    values: dict[str, Any] = {**read(COMMON_KEYS, store), **own}
    limit = MAX_POLL_INTERVAL.name if keys is CONSUMER_KEYS else MAX_BLOCK.name
    check_time(values[TIMEOUT], limit, values[limit])
    return values, store


def check_time(store_ms: int, key: str, allowed_ms: int, calls: str = "") -> None:
    """Refuses a store whose calls for one record may take longer than the client's limit `key` allows (KIP-1159).

    Raises:
        ConfigurationError: the message has both numbers, and `calls`.
    """
    if store_ms > allowed_ms:
        raise ConfigurationError(
            TIMEOUT,
            f"the store may take {store_ms:,} ms for a record{calls}, retries included; allowed is no more than {key}, "
            f"which is {allowed_ms:,}; lower {TIMEOUT}, or raise {key}",
        )


def own_names(store_class: str | type) -> Sequence[str] | None:
    """The properties of a serializer with this store, and of the store; None if a custom class may have any."""
    named = named_keys(store_class)
    return [*OUR_NAMES, *named] if named or store_keys(store_class) is not None else None


def is_store_key(name: str, store_class: str | type) -> bool:
    """Whether a property of a client's configuration is for the store or the serializers, not for the client.

    A built-in store owns all properties with its name, so that misspelled ones are found; a custom class its `KEYS`.
    """
    if store_keys(store_class) is None:
        return name.startswith(OURS) or name in named_keys(store_class)
    return name.startswith((OURS, f"{store_class}."))


def _store_config(config: Mapping[str, object]) -> dict[str, object]:
    """The part of `config` for the store: a built-in one gets its own properties, a class all but the serializer's."""
    name = config.get(STORE_CLASS)
    if not isinstance(name, str | type):
        for near in difflib.get_close_matches(STORE_CLASS, config, n=1, cutoff=0.9) if name is None else ():
            raise unknown(near, [STORE_CLASS])
        found = "is missing; it is required" if name is None else f"found {name!r}"
        raise ConfigurationError(STORE_CLASS, f"{found}: {STORE_KEY.doc}")
    keys = store_keys(name)
    known = {key.name: key for key in (*COMMON_KEYS, *(keys or ()))}
    ours = set(OUR_NAMES) - known.keys() - {STORE_CLASS}
    store = {
        key: known[key].coerce(value) if key in known else value
        for key, value in config.items()
        if key not in ours and (keys is None or (value is not None and is_store_key(key, name)))
    }
    if _STRATEGY in store:
        raise ConfigurationError(
            _STRATEGY, "is supported only by a SerializingProducer of wideload.serializers; leave it out here"
        )
    # The store would report this too, but it knows fewer names that may have been meant.
    for key in store:
        if key not in (*known, STORE_CLASS, *named_keys(name)):
            error = (misspelt if keys is None else unknown)(key, [*OUR_NAMES, _STRATEGY, *known])
            if error is not None:
                raise error
    return store
