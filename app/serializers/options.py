"""The keys of the serializers in a client's configuration, and the keys there that are the store's.

A value may have its own type or be a string, as with Kafka's clients.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from app.config.client import LIMIT, coerced
from stores.keys import REQUIRED, Key, read, unknown
from stores.registry import STORE_CLASS, named_keys, store_keys
from stores.store import COMMON_KEYS
from transforms.compression import CODECS, Codec
from transforms.errors import ConfigurationError
from transforms.offload import DEFAULT_THRESHOLD_BYTES
from transforms.signing import Signing

__all__ = [
    "CONSUMER_KEYS",
    "DESERIALIZER_KEYS",
    "PRODUCER_KEYS",
    "SERIALIZER_KEYS",
    "STORE_KEY",
    "Deserializing",
    "Serializing",
    "check_time",
    "is_store_key",
]

_GENERATOR = "large.message.id.generator"
_TIMEOUT = "large.message.store.timeout.ms"
_OURS = "large.message."
# Room for the key of a record: the serializer of the value does not see the key.
_KEY_ALLOWANCE_BYTES = 1024

STORE_KEY = Key(
    STORE_CLASS,
    "string",
    "Where payloads live: `filesystem`, `s3`, `memory`, or a class of your own as `package.module.Class`.",
    default=REQUIRED,
)

_STAGES = (
    "Classes, dotted paths or objects, applied in order; a string is a list of paths with commas between them. Not "
    "beside"
)

SERIALIZER_KEYS: Sequence[Key] = (
    Key("value.serializers", "list", f"{_STAGES} `value.serializer`. The first takes what the application has."),
    Key("key.serializers", "list", f"{_STAGES} `key.serializer`."),
    Key("value.serializer", "string", "One, in place of a list."),
    Key("key.serializer", "string", "One, in place of a list."),
    LIMIT,
)

DESERIALIZER_KEYS: Sequence[Key] = (
    Key("value.deserializers", "list", f"{_STAGES} `value.deserializer`. The last gives what the application gets."),
    Key("key.deserializers", "list", f"{_STAGES} `key.deserializer`."),
    Key("value.deserializer", "string", "One, in place of a list."),
    Key("key.deserializer", "string", "One, in place of a list."),
    LIMIT,
)

PRODUCER_KEYS: Sequence[Key] = (
    Key(
        "large.message.threshold.bytes",
        "int",
        "What is longer than this is offloaded; so is what `max.request.size` (in confluent-kafka `message.max.bytes`) "
        "would refuse.",
        default=DEFAULT_THRESHOLD_BYTES,
        minimum=0,
    ),
    Key(
        "large.message.compression.type",
        "string",
        "How payloads are compressed in the store. Those of keys never are, as equal keys need equal references.",
        default="none",
        allowed=("none", *CODECS),
    ),
    Key(
        _GENERATOR,
        "string",
        "How a payload is named. `uuid`: at random. `sha256`: by its stored bytes, for compacted topics; keys have "
        "it always.",
        default="uuid",
        allowed=("uuid", "sha256"),
    ),
    Key(
        "max.block.ms",
        "int",
        "How long a send may block. `large.message.store.timeout.ms`, of keys and values together, must not be more.",
        default=60_000,
        minimum=0,
    ),
    Key("max.request.size", "int", "The most bytes of one request, where the client has this limit.", minimum=0),
    Key("message.max.bytes", "int", "The same, as confluent-kafka calls it.", minimum=0),
)

CONSUMER_KEYS: Sequence[Key] = (
    Key(
        "max.poll.interval.ms",
        "int",
        "The longest time between two polls. `large.message.store.timeout.ms`, of keys and values together, must not "
        "be more.",
        default=300_000,
        minimum=1,
    ),
)


@dataclass(frozen=True, slots=True)
class Serializing:
    """The options of a `LargeMessageSerializer`.

    Attributes:
        threshold_bytes: a longer value is large.
        limit_bytes: a value that is longer as a batch of one is large too; None if the client has no limit.
        codec: of payloads; None for no compression.
        by_digest: whether payloads are named by their SHA-256.
        store_timeout_ms: the longest time of one store call.
        store: the configuration of the store, its class included.
        signing: of references; None for none.
    """

    threshold_bytes: int
    limit_bytes: int | None
    codec: Codec | None
    by_digest: bool
    store_timeout_ms: int
    store: Mapping[str, object] = field(repr=False)  # its secrets are in it
    signing: Signing | None = None

    @classmethod
    def read(cls, config: Mapping[str, object], *, is_key: bool) -> Serializing:
        """From the configuration of a producer.

        Raises:
            ConfigurationError: a key is missing or wrong, keys are to have random ids, or the store may take longer
                than `max.block.ms`.
        """
        values = read(PRODUCER_KEYS, coerced(PRODUCER_KEYS, config))
        generator = values[_GENERATOR]
        if is_key:
            if generator == "uuid" and _GENERATOR in config:
                raise ConfigurationError(
                    _GENERATOR,
                    "found 'uuid', allowed for keys is sha256: equal keys need equal references, to meet in one "
                    "partition and to be compacted; leave it out, and values have uuid and keys sha256",
                )
            generator = "sha256"
        store = {**_store_config(config), _GENERATOR: generator}
        timeout_ms = _store_timeout_ms(store)
        check_time(timeout_ms, "max.block.ms", cast("int", values["max.block.ms"]))
        limits = [value for name in ("max.request.size", "message.max.bytes") if (value := values[name]) is not None]
        codec = values["large.message.compression.type"]
        return cls(
            threshold_bytes=cast("int", values["large.message.threshold.bytes"]),
            limit_bytes=min(cast("list[int]", limits)) - _KEY_ALLOWANCE_BYTES if limits else None,
            codec=None if codec == "none" else cast("Codec", codec),
            by_digest=generator == "sha256",
            store_timeout_ms=timeout_ms,
            store=store,
            signing=Signing.of(read(COMMON_KEYS, store)),
        )


@dataclass(frozen=True, slots=True)
class Deserializing:
    """The options of a `LargeMessageDeserializer`.

    Attributes:
        max_bytes: the largest payload, stored or decompressed.
        store_timeout_ms: the longest time of one store call.
        store: the configuration of the store, its class included.
        signing: of references; None if references need no signature.
    """

    max_bytes: int
    store_timeout_ms: int
    store: Mapping[str, object] = field(repr=False)  # its secrets are in it
    signing: Signing | None = None

    @classmethod
    def read(cls, config: Mapping[str, object]) -> Deserializing:
        """From the configuration of a consumer.

        Raises:
            ConfigurationError: a key is missing or wrong, or the store may take longer than `max.poll.interval.ms`.
        """
        values = read(CONSUMER_KEYS, coerced(CONSUMER_KEYS, config))
        store = _store_config(config)
        common = read(COMMON_KEYS, store)
        timeout_ms = _store_timeout_ms(store)
        check_time(timeout_ms, "max.poll.interval.ms", cast("int", values["max.poll.interval.ms"]))
        return cls(cast("int", common["large.message.max.bytes"]), timeout_ms, store, Signing.of(common))


def check_time(store_ms: int, key: str, allowed_ms: int, calls: str = "") -> None:
    """Refuses a store whose calls for one record may take longer than the client's limit `key` allows (seed 000).

    Raises:
        ConfigurationError: the message has both numbers, and `calls`.
    """
    if store_ms > allowed_ms:
        raise ConfigurationError(
            _TIMEOUT,
            f"the store may take {store_ms:,} ms for a record{calls}, retries included; allowed is no more than {key}, "
            f"which is {allowed_ms:,}; lower {_TIMEOUT}, or raise {key}",
        )


def is_store_key(name: str, store_class: str | type) -> bool:
    """Whether a key of a client's configuration is for the store or the serializers, not for the client.

    A built-in store owns all keys with its prefix, so that a misspelt key is found; a user's class those in its `KEYS`.
    """
    if name.startswith(_OURS):
        return True
    named = named_keys(store_class)
    if store_keys(store_class) is None:
        return name in named
    return name.partition(".")[0] in {each.partition(".")[0] for each in named}


def _store_config(config: Mapping[str, object]) -> dict[str, object]:
    """The part of `config` for the store: a built-in one gets its own keys, a class all but the serializer's keys."""
    name = config.get(STORE_CLASS)
    if name is None:
        for near in difflib.get_close_matches(STORE_CLASS, config, n=1, cutoff=0.9):
            raise unknown(near, [STORE_CLASS])
    if not isinstance(name, str | type):
        found = "is missing; it is required" if name is None else f"found {name!r}"
        raise ConfigurationError(STORE_CLASS, f"{found}: {STORE_KEY.doc}")
    keys = store_keys(name)
    known = {key.name: key for key in (*COMMON_KEYS, *(keys or ()))}
    taken = {key.name for key in PRODUCER_KEYS if key.name.startswith(_OURS)} - known.keys()
    store = {
        key: known[key].coerce(value) if key in known else value
        for key, value in config.items()
        if key not in taken and (keys is None or (value is not None and is_store_key(key, name)))
    }
    if keys is not None:
        # The store would say so too, but it knows fewer names that may have been meant.
        for key in store.keys() - known.keys() - {STORE_CLASS}:
            raise unknown(key, [*known, *taken])
    return store


def _store_timeout_ms(store: Mapping[str, object]) -> int:
    return cast("int", read(COMMON_KEYS, store)[_TIMEOUT])
