"""Splits one configuration between a client, its serializers and their store.

Source: seed 000, "New ProducerConfig to support Composable Serializer" and "New ConsumerConfig".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from app.config.client import coerced, limits_names
from app.config.naming import check_config
from app.serializers.composable import ComposableDeserializer, ComposableSerializer
from app.serializers.large_message import LargeMessageDeserializer, LargeMessageSerializer
from app.serializers.options import CONSUMER_KEYS, PRODUCER_KEYS, STORE_KEY, check_time, is_store_key
from stores.keys import Key, read, unknown
from stores.registry import STORE_CLASS, named_keys, store_keys
from stores.store import COMMON_KEYS
from transforms.errors import ConfigurationError, SerializationError
from transforms.identifiers import LIMIT_KEY
from transforms.record import Header

__all__ = ["ClientConfig", "consumer", "deserialized", "producer"]

_Composable = TypeVar("_Composable", ComposableSerializer, ComposableDeserializer)


@dataclass(frozen=True, slots=True)
class ClientConfig(Generic[_Composable]):
    """A configuration, split.

    Attributes:
        key: the serializers or deserializers of keys; None if keys are bytes already.
        value: those of values; None if values are bytes already.
        client: the client's own keys, by Kafka's names.
    """

    key: _Composable | None
    value: _Composable | None
    client: Mapping[str, object] = dataclasses.field(repr=False)  # passwords are in it

    def close(self) -> None:
        """Closes both."""
        for composable in (self.key, self.value):
            if composable is not None:
                composable.close()


def producer(
    config: Mapping[str, object], *, names: Collection[str] | None = None
) -> ClientConfig[ComposableSerializer]:
    """The serializers that `key.serializers`, `key.serializer`, `value.serializers` and `value.serializer` name.

    Args:
        config: keys as Kafka names them, the store's among them.
        names: the keys that the client knows. Without them, every key that is not the store's is the client's.

    Raises:
        ConfigurationError: a name, such as `group.id`, is over its limit; a list stands beside its singular; a stage
            cannot be loaded; a key is unknown; the store calls of one record may together take longer than
            `max.block.ms`.
    """
    return _apart(config, ComposableSerializer, "serializer", LargeMessageSerializer, _MAX_BLOCK, names)


def consumer(
    config: Mapping[str, object], *, names: Collection[str] | None = None
) -> ClientConfig[ComposableDeserializer]:
    """The deserializers that the four keys of a consumer name; everything else is as with `producer`.

    Raises:
        ConfigurationError: as with `producer`, for `max.poll.interval.ms`.
    """
    return _apart(config, ComposableDeserializer, "deserializer", LargeMessageDeserializer, _MAX_POLL_INTERVAL, names)


def deserialized(deserializers: ClientConfig[ComposableDeserializer], record: Any) -> tuple[Any, Any, list[Header]]:
    """Key, value and headers of a record for the application.

    Raises:
        SerializationError: a stage raised an error; with topic, partition and offset.
    """
    topic, headers, key, value = record.topic, list(record.headers), deserializers.key, deserializers.value
    try:
        found_key = record.key if key is None else key.deserialize(topic, headers, record.key)
        return found_key, record.value if value is None else value.deserialize(topic, headers, record.value), headers
    except SerializationError as exc:
        raise exc.at(record.partition, record.offset) from exc.__cause__


def _key(keys: tuple[Key, ...], name: str) -> Key:
    return next(key for key in keys if key.name == name)


_MAX_BLOCK = _key(tuple(PRODUCER_KEYS), "max.block.ms")
_MAX_POLL_INTERVAL = _key(tuple(CONSUMER_KEYS), "max.poll.interval.ms")


def _apart(
    config: Mapping[str, object],
    composable: type[_Composable],
    kind: str,
    large: type[LargeMessageSerializer | LargeMessageDeserializer],
    limit: Key,
    names: Collection[str] | None,
) -> ClientConfig[_Composable]:
    check_config(config, enabled=limits_names(config))
    found: dict[str, _Composable | None] = {}
    taken: set[str] = {LIMIT_KEY}
    for field in ("key", "value"):
        singular = f"{field}.{kind}"
        plural = f"{singular}s"
        taken |= {singular, plural}
        if config.get(singular) is not None and config.get(plural) is not None:
            raise ConfigurationError(
                plural, f"stands beside {singular}, allowed is one of the two: a list under {plural}, or one {singular}"
            )
        is_key = field == "key"
        if config.get(plural) is not None:
            found[field] = composable(cast("list[object]", config[plural]), config, is_key=is_key)
        elif config.get(singular) is not None:
            found[field] = composable([config[singular]], config, is_key=is_key, key=singular)
        else:
            found[field] = None
    stages = [leaf for each in found.values() if each is not None for leaf in each.leaves()]
    larges = [stage for stage in stages if isinstance(stage, large)]
    try:
        _check_total([stage.store_timeout_ms for stage in larges], config, limit)
        others = [stage for stage in stages if not isinstance(stage, large)]
        rest = {k: v for k, v in config.items() if k not in taken}
        client = _clients_own(rest, names, sorted(taken), others, large=bool(larges))
    except ConfigurationError:
        ClientConfig(found["key"], found["value"], {}).close()
        raise
    return ClientConfig(found["key"], found["value"], client)


def _check_total(timeouts_ms: list[int], config: Mapping[str, object], limit: Key) -> None:
    if len(timeouts_ms) > 1:
        given = coerced([limit], config)
        allowed_ms = cast("int", read([limit], given)[limit.name])
        check_time(sum(timeouts_ms), limit.name, allowed_ms, f", {len(timeouts_ms)} calls for its key and its value")


def _clients_own(
    config: Mapping[str, object],
    names: Collection[str] | None,
    taken: Iterable[str],
    others: Iterable[object],
    *,
    large: bool,
) -> dict[str, object]:
    """The part of a configuration that is for the client; `others` are the application's own stages."""
    # A stage lists its keys in `KEYS`; any key may be one of a stage that is configured and has no list.
    listed = [getattr(stage, "KEYS", None) for stage in others if hasattr(stage, "configure")]
    stages_own = {key for keys in listed for key in keys or ()}
    store_class = cast("str | type", config[STORE_CLASS]) if large and STORE_CLASS in config else None
    is_open = None in listed or (
        store_class is not None and store_keys(store_class) is None and not named_keys(store_class)
    )
    client, unknowns = {}, []
    for name, value in config.items():
        if names is not None and name in names:
            client[name] = value
        elif name in stages_own or (store_class is not None and is_store_key(name, store_class)):
            continue
        elif names is None:
            client[name] = value
        elif not is_open:
            unknowns.append(name)
    if unknowns:
        raise _unknown(unknowns, [*(names or ()), *taken, *stages_own, *_store_names(store_class)])
    return client


def _unknown(found: list[str], known: list[str]) -> ConfigurationError:
    """The error for the first misspelt key, or else for the first unknown key."""
    errors = [unknown(name, known) for name in found]
    misspelt = next((error for error in errors if "did you mean" in error.reason), None)
    if misspelt is None and STORE_CLASS in found:
        return ConfigurationError(
            STORE_CLASS, "is only for LargeMessageSerializer and LargeMessageDeserializer, and none is among the stages"
        )
    return misspelt or errors[0]


def _store_names(store_class: str | type | None) -> list[str]:
    if store_class is None:
        return []
    keys = (STORE_KEY, *PRODUCER_KEYS, *CONSUMER_KEYS, *COMMON_KEYS)
    return [*(key.name for key in keys), *named_keys(store_class)]
