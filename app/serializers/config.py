"""Splits one configuration between a client, its serializers and their store.

Source: KIP-1159, "New ProducerConfig to support Composable Serializer" and "New ConsumerConfig".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Generic, Literal, TypeVar, cast

from app.config.client import coerced, limits_names
from app.config.naming import check_config
from app.serializers.composable import Composable, ComposableDeserializer, ComposableSerializer
from app.serializers.large_message import LargeMessage, LargeMessageDeserializer
from app.serializers.options import MAX_BLOCK, MAX_POLL_INTERVAL, OUR_NAMES, check_time
from app.serializers.stage import close_all
from stores.keys import Key, misspelt, read, unknown
from stores.registry import STORE_CLASS
from transforms.errors import ConfigurationError, SerializationError
from transforms.identifiers import LIMIT_KEY
from transforms.record import Header

_PARTS = ("key", "value")
_Composable = TypeVar("_Composable", ComposableSerializer, ComposableDeserializer)


@dataclass(frozen=True)
class ClientConfig(Generic[_Composable]):
    """A configuration, split.

    Attributes:
        parts: the serializers or deserializers of `key` and `value`; a part that is missing is bytes already.
        values: of the properties that are read here for the client; see `producer`.
        client: the client's own properties, by Kafka's names.
    """

    parts: Mapping[str, _Composable]
    values: Mapping[str, Any]
    client: Mapping[str, object] = field(repr=False)  # passwords are in it

    @cached_property
    def larges(self) -> Sequence[tuple[str, LargeMessage]]:
        """The serializers that call a store, each with its part."""
        stages = ((part, stage.target) for part, composable in self.parts.items() for stage in composable.stages)
        return [(part, target) for part, target in stages if isinstance(target, LargeMessage)]

    @property
    def store_timeout_ms(self) -> int:
        """The longest time of all store calls of one record together."""
        return sum(large.store_timeout_ms for _, large in self.larges)

    @property
    def keeps_plain(self: ClientConfig[ComposableDeserializer]) -> bool:
        """Whether the keys and values of records without headers are not changed."""
        return all(composable.keeps_plain for composable in self.parts.values())

    def restored_bytes(self, record: Any) -> int | None:
        """The most bytes that are downloaded for a record; None if the store is not called."""
        if not record.headers:
            return None
        wanted = [
            large.restored_bytes(record.headers)
            for part, large in self.larges
            if isinstance(large, LargeMessageDeserializer) and large.wants(getattr(record, part), record.headers)
        ]
        return sum(wanted) if wanted else None

    def close(self) -> None:
        """Closes all serializers."""
        close_all(self.parts.values())

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Closes all serializers if the block raises an error."""
        try:
            yield
        except BaseException:
            self.close()
            raise


def producer(
    config: Mapping[str, object], names: Collection[str], keys: Sequence[Key] = ()
) -> ClientConfig[ComposableSerializer]:
    """The serializers of `key.serializers`, `key.serializer`, `value.serializers` and `value.serializer`.

    Args:
        config: properties as Kafka names them, the store's among them.
        names: the properties that the client knows.
        keys: further ones, which are read here.

    Raises:
        ConfigurationError: a name, such as `group.id`, is over its limit; a list is combined with its singular; an item
            cannot be loaded; a property is unknown or wrong; or the store calls of one record may together exceed
            `max.block.ms`.
    """
    return _split(config, names, keys, ComposableSerializer, "serializer")


def consumer(
    config: Mapping[str, object], names: Collection[str], keys: Sequence[Key] = ()
) -> ClientConfig[ComposableDeserializer]:
    """As `producer`, for the four properties of a consumer, and for `max.poll.interval.ms`."""
    return _split(config, names, keys, ComposableDeserializer, "deserializer")


def deserialized(
    deserializers: ClientConfig[ComposableDeserializer], record: Any
) -> tuple[dict[str, Any], list[Header]]:
    """`key` and `value` of a record for the application, and its headers.

    Raises:
        RecordDeserializationError: a deserializer raised an error.
    """
    found, headers = {"key": record.key, "value": record.value}, list(record.headers)
    try:
        for part, composable in deserializers.parts.items():
            found[part] = composable.deserialize(record.topic, headers, found[part])
    except SerializationError as exc:
        raise exc.at(record.partition, record.offset) from exc.__cause__
    return found, headers


def restoring(
    deserializers: ClientConfig[ComposableDeserializer], record: Any
) -> Generator[Callable[[], Any], Callable[[], Any], tuple[dict[str, Any], list[Header]]]:
    """As `deserialized`: yields each call of a store, and is sent a function that returns its result."""
    found, headers = {"key": record.key, "value": record.value}, list(record.headers)
    try:
        for part, composable in deserializers.parts.items():
            for stage in composable.stages:
                if found[part] is None:
                    break
                step = partial(composable.step, stage, record.topic, headers, found[part])
                if isinstance(stage.target, LargeMessage) and stage.target.wants(found[part], headers):
                    found[part] = (yield step)()
                else:
                    found[part] = step()
    except SerializationError as exc:
        raise exc.at(record.partition, record.offset) from exc.__cause__
    return found, headers


def _split(
    config: Mapping[str, object],
    names: Collection[str],
    keys: Sequence[Key],
    composable: type[_Composable],
    kind: Literal["serializer", "deserializer"],
) -> ClientConfig[_Composable]:
    check_config(config, enabled=limits_names(config))
    ours: list[str] = [
        LIMIT_KEY,
        *(key.name for key in keys),
        *(f"{part}.{kind}{end}" for part in _PARTS for end in ("", "s")),
    ]
    client = {name: value for name, value in config.items() if name in names and name not in ours}
    parts: dict[str, _Composable] = {}
    split = ClientConfig(parts, read(keys, coerced(keys, config)), client)
    with split.closed_on_error():
        for part in _PARTS:
            singular, plural = f"{part}.{kind}", f"{part}.{kind}s"
            given = [name for name in (singular, plural) if config.get(name) is not None]
            if given == [singular, plural]:
                raise ConfigurationError(
                    plural, f"cannot be combined with {singular}; set either {plural}, a list, or one {singular}"
                )
            for name in given:
                stages = cast("list[object]", config[name] if name == plural else [config[name]])
                parts[part] = composable(stages, config, is_key=part == "key", key=name)
        if len(split.larges) > 1:  # one has checked its own time
            limit = MAX_BLOCK if kind == "serializer" else MAX_POLL_INTERVAL
            allowed_ms = cast("int", read([limit], coerced([limit], config))[limit.name])
            if limit is MAX_BLOCK and config.get(limit.name) is None:
                allowed_ms *= len(split.larges)  # its default is for one call of the store
            calls = f", {len(split.larges)} calls for its key and its value"
            check_time(split.store_timeout_ms, limit.name, allowed_ms, calls)
        _check_known(config, [*names, *ours], parts.values())
    return split


def _check_known(config: Mapping[str, object], known: Sequence[str], parts: Iterable[Composable]) -> None:
    """Refuses a property that neither the client nor a serializer has.

    If a class without a list of its properties may have any, only a misspelt one is an error.
    """
    own = [stage.keys for composable in parts for stage in composable.stages]
    known = [*known, *(name for keys in own for name in keys or ())]
    names = (name for name in config if name not in known)
    found = (misspelt(name, [*known, *OUR_NAMES]) if None in own else unknown(name, known) for name in names)
    errors = [error for error in found if error is not None]
    if not errors:
        return
    error = min(errors, key=lambda error: ("did you mean" not in error.reason, error.key != STORE_CLASS))
    if error.key == STORE_CLASS:
        reason = "is only for LargeMessageSerializer and LargeMessageDeserializer: add one to the list, or remove this"
        error = ConfigurationError(STORE_CLASS, reason)
    raise error
