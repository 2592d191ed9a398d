"""Splits one configuration between a client, its serializers and their store.

Source: seed 000, "New ProducerConfig to support Composable Serializer" and "New ConsumerConfig".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from app.config.client import coerced, limits_names
from app.config.naming import check_config
from app.serializers.composable import ComposableDeserializer, ComposableSerializer
from app.serializers.large_message import LargeMessageDeserializer, LargeMessageSerializer
from app.serializers.options import (
    CONSUMER_KEYS,
    MAX_BLOCK,
    MAX_POLL_INTERVAL,
    PRODUCER_KEYS,
    STORE_KEY,
    check_time,
    is_store_key,
)
from stores.keys import Key, misspelt, read, unknown
from stores.registry import STORE_CLASS, named_keys, store_keys
from stores.store import COMMON_KEYS
from transforms.errors import ConfigurationError, SerializationError
from transforms.identifiers import LIMIT_KEY
from transforms.record import Header

__all__ = ["ClientConfig", "consumer", "deserialized", "producer"]

_LARGE = (LargeMessageSerializer, LargeMessageDeserializer)
_Composable = TypeVar("_Composable", ComposableSerializer, ComposableDeserializer)


@dataclass(frozen=True, slots=True)
class ClientConfig(Generic[_Composable]):
    """A configuration, split.

    Attributes:
        parts: the serializers or deserializers of `key` and `value`; a part that is missing is bytes already.
        client: the client's own keys, by Kafka's names.
    """

    parts: Mapping[str, _Composable]
    client: Mapping[str, object] = dataclasses.field(repr=False)  # passwords are in it

    def leaves(self) -> list[tuple[str, object]]:
        """Each serializer with its part."""
        return [(part, leaf) for part, composable in self.parts.items() for leaf in composable.leaves()]

    def close(self) -> None:
        """Closes all serializers."""
        for composable in self.parts.values():
            composable.close()

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Closes all serializers if the block raises an error."""
        try:
            yield
        except BaseException:
            self.close()
            raise


def producer(config: Mapping[str, object], names: Collection[str]) -> ClientConfig[ComposableSerializer]:
    """The serializers that `key.serializers`, `key.serializer`, `value.serializers` and `value.serializer` name.

    Args:
        config: keys as Kafka names them, the store's among them.
        names: the keys that the client knows.

    Raises:
        ConfigurationError: a name, such as `group.id`, is over its limit; a list stands beside its singular; a stage
            cannot be loaded; a key is unknown; the store calls of one record may together take longer than
            `max.block.ms`.
    """
    return _apart(config, names, ComposableSerializer, "serializer", MAX_BLOCK)


def consumer(config: Mapping[str, object], names: Collection[str]) -> ClientConfig[ComposableDeserializer]:
    """The deserializers that the four keys of a consumer name; everything else is as with `producer`.

    Raises:
        ConfigurationError: as with `producer`, for `max.poll.interval.ms`.
    """
    return _apart(config, names, ComposableDeserializer, "deserializer", MAX_POLL_INTERVAL)


def deserialized(
    deserializers: ClientConfig[ComposableDeserializer], record: Any
) -> tuple[dict[str, Any], list[Header]]:
    """`key` and `value` of a record for the application, and its headers.

    Raises:
        RecordDeserializationError: a stage raised an error.
    """
    found, headers = {"key": record.key, "value": record.value}, list(record.headers)
    try:
        for part, composable in deserializers.parts.items():
            found[part] = composable.deserialize(record.topic, headers, found[part])
    except SerializationError as exc:
        raise exc.at(record.partition, record.offset) from exc.__cause__
    return found, headers


def _apart(
    config: Mapping[str, object],
    names: Collection[str],
    composable: type[_Composable],
    kind: str,
    limit: Key,
) -> ClientConfig[_Composable]:
    check_config(config, enabled=limits_names(config))
    parts: dict[str, _Composable] = {}
    taken: set[str] = {LIMIT_KEY}
    for part in ("key", "value"):
        singular, plural = f"{part}.{kind}", f"{part}.{kind}s"
        taken |= {singular, plural}
        single, listed = config.get(singular), config.get(plural)
        if single is not None and listed is not None:
            raise ConfigurationError(
                plural, f"stands beside {singular}, allowed is one of the two: a list under {plural}, or one {singular}"
            )
        if listed is not None:
            parts[part] = composable(cast("list[object]", listed), config, is_key=part == "key")
        elif single is not None:
            parts[part] = composable([single], config, is_key=part == "key", key=singular)
    client = {name: value for name, value in config.items() if name in names and name not in taken}
    split = ClientConfig(parts, client)
    with split.closed_on_error():
        stages = [stage for _, stage in split.leaves()]
        larges = [stage for stage in stages if isinstance(stage, _LARGE)]
        if len(larges) > 1:
            allowed_ms = cast("int", read([limit], coerced([limit], config))[limit.name])
            if limit is MAX_BLOCK and config.get(limit.name) is None:
                allowed_ms *= len(larges)  # its default is for one call of the store
            store_ms = sum(stage.store_timeout_ms for stage in larges)
            check_time(store_ms, limit.name, allowed_ms, f", {len(larges)} calls for its key and its value")
        store_class = cast("str | type | None", config.get(STORE_CLASS)) if larges else None
        # A stage lists its keys in `KEYS`; any key may be one of a stage that is configured and has no list.
        others = [stage for stage in stages if not isinstance(stage, _LARGE) and hasattr(stage, "configure")]
        own_keys = [getattr(stage, "KEYS", None) for stage in others]
        taken |= {key for keys in own_keys for key in keys or ()}
        rest = [name for name in config if name not in taken]
        _check_known(rest, names, sorted(taken), store_class, any_key=None in own_keys)
    return split


def _check_known(
    found: Collection[str],
    names: Collection[str],
    others: list[str],
    store_class: str | type | None,
    *,
    any_key: bool,
) -> None:
    """Raises an error if a key is neither the client's nor the store's; `others` may have been meant.

    If a class without a list of its keys may take any key (`any_key`, or the store's class), only a misspelt one is an
    error.
    """
    unknowns = [name for name in found if name not in names]
    known = [*names, *others]
    if store_class is not None:
        named = named_keys(store_class)
        any_key |= not named and store_keys(store_class) is None
        unknowns = [name for name in unknowns if not is_store_key(name, store_class)]
        known += named
    if store_class is not None or any_key:
        known += [key.name for key in (STORE_KEY, *PRODUCER_KEYS, *CONSUMER_KEYS, *COMMON_KEYS)]
    if any_key:
        for name in unknowns:
            if (error := misspelt(name, known)) is not None:
                raise error
    elif unknowns:
        raise _unknown(unknowns, known)


def _unknown(found: list[str], known: list[str]) -> ConfigurationError:
    """The error for the first misspelt key, or else for the first unknown key."""
    # A key may be known to the other kind of client alone.
    errors = [unknown(name, [each for each in known if each != name]) for name in found]
    misspelt = next((error for error in errors if "did you mean" in error.reason), None)
    if misspelt is None and STORE_CLASS in found:
        return ConfigurationError(
            STORE_CLASS, "is only for LargeMessageSerializer and LargeMessageDeserializer, and none is among the stages"
        )
    return misspelt or errors[0]
