"""One serializer or deserializer of a list, whichever client it was written for; and ours, as confluent-kafka calls it.

It is a class, an object, or the dotted path of a class or a function, with one of these shapes:

    serialize(topic, headers, data)     Kafka's own method; kafka-python 3
    serialize(topic, data)              Kafka's older one; kafka-python 2
    __call__(data, context)             confluent-kafka; the context has `topic`, `field` and `headers`
    __call__(data)                      aiokafka, and any plain function

and the same with `deserialize`. As in Kafka's clients, a class is called without arguments, and its object gets the
client's whole configuration by `configure(config, is_key)`, if it has this method; an object is used unchanged.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, cast

from stores.dotted import parts, resolve
from transforms.errors import ConfigurationError, SerializationError
from transforms.record import Header

Direction = Literal["serialize", "deserialize"]
Headers = list[Header] | None
Call = Callable[[str, Headers, Any], Any]

_OPPOSITE: Mapping[Direction, Direction] = {"serialize": "deserialize", "deserialize": "serialize"}
# Classes for the values of headers that a serializer of keys, or of values, adds to those of the application.
_MARKS: Mapping[str, type[bytes]] = {field: type(f"_Of_{field}", (bytes,), {}) for field in ("key", "value")}
_BY_POSITION = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}


@dataclass(frozen=True, slots=True)
class Stage:
    """An item of a list, ready to be called.

    Attributes:
        name: for messages: the property that lists it, its position there, and its class.
        target: the serializer or deserializer itself, which `call` calls.
        field: `key` or `value`.
    """

    name: str
    target: object
    call: Call
    field: str
    direction: Direction

    @property
    def keys(self) -> Sequence[str] | None:
        """Its own properties. None if they may be any, because it is configured and does not list them."""
        found: Sequence[str] | None = getattr(self.target, "KEYS", None if hasattr(self.target, "configure") else ())
        return found

    def run(self, topic: str, headers: Headers, data: Any) -> Any:
        """The result for the data.

        Raises:
            SerializationError: it raised an error.
        """
        try:
            return self.call(topic, headers, data)
        except SerializationError:
            raise
        except Exception as exc:
            raise self.error(topic, f"raised {type(exc).__name__}: {exc}") from exc

    def error(self, topic: str, reason: str) -> SerializationError:
        """An error that names the item."""
        deserializing = self.direction == "deserialize"
        return SerializationError(topic, self.field, f"{self.name}, {reason}", deserializing=deserializing)


def load(item: object, direction: Direction, key: str, where: str, config: Mapping[str, object], field: str) -> Stage:
    """Loads an item of the property `key`; `where` is its position there, for messages.

    Raises:
        ConfigurationError: the item cannot be found or called, lacks the method, or rejects the configuration.
    """
    target: Any = item
    if isinstance(item, str):
        path = parts(item)
        if path is None:
            raise ConfigurationError(
                key, f"{where}found {item!r}, allowed is a class, or its path as package.module.Class"
            )
        target = resolve(key, item, path)
    is_class = isinstance(target, type)
    named = target if is_class or inspect.isroutine(target) else type(target)
    name = f"{where}{getattr(named, '__qualname__', named)}"
    if is_class:
        try:
            target = target()
        except Exception as exc:
            raise ConfigurationError(
                key,
                f"{name}: cannot be created without arguments ({type(exc).__name__}: {exc}); "
                "list a configured object in place of the class",
            ) from exc
    call = _call(target, direction, field)
    if call is None:
        raise ConfigurationError(
            key,
            f"{name}: lacks the method {direction}(topic, headers, data), and cannot be called with (data) or (data, "
            "context) either",
        )
    if is_class and hasattr(target, "configure"):
        try:
            target.configure(config, field == "key")
        except ConfigurationError:
            raise
        except Exception as exc:
            raise ConfigurationError(key, f"{name}: configure raised {type(exc).__name__}: {exc}") from exc
    return Stage(f"{key}, {name}", target, call, field, direction)


def _call(target: object, direction: Direction, field: str) -> Call | None:
    """How an item is called, whichever shape it has; None if it cannot be."""
    method = getattr(target, direction, None)
    if callable(method):
        names, required = _positional(method, ("topic", "headers", "data"))
        match 3 if names[1:2] == ("headers",) else required:
            case 3:
                return cast("Call", method)
            case 2:
                return lambda topic, _headers, data: method(topic, data)
    elif callable(target) and not hasattr(target, _OPPOSITE[direction]):
        names, required = _positional(target, ("data",))
        # The context is optional in confluent-kafka's own serializers; a second argument of another name is not one.
        match 2 if names[1:2] in {("ctx",), ("context",)} else required:
            case 2:
                facts = partial(SimpleNamespace, field=field)  # those of confluent-kafka's `SerializationContext`
                return lambda topic, headers, data: target(data, facts(topic=topic, headers=headers))
            case 0 | 1 if names:
                return lambda _topic, _headers, data: target(data)
    return None


def _positional(function: Callable[..., object], assumed: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
    """The names of the arguments that a function takes by position, and how many of them it requires.

    `assumed` is used for a function that takes any, or has no signature, such as some built-in ones.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return assumed, len(assumed)
    if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters):
        return assumed, len(assumed)
    found = [each for each in parameters if each.kind in _BY_POSITION]
    return tuple(each.name for each in found), sum(each.default is inspect.Parameter.empty for each in found)


def encoded(headers: Sequence[tuple[str, Any]]) -> list[Header]:
    """A copy of headers as Kafka has them: confluent-kafka also takes text as a value, and sends UTF-8."""
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in headers]


def close_all(targets: Iterable[object]) -> None:
    """Closes all that have `close`, even if one raises an error; then raises the error of the first."""
    with ExitStack() as closing:
        for target in targets:
            if callable(close := getattr(target, "close", None)):
                closing.callback(close)


class Ours:
    """The common part of our serializers and deserializers."""

    _DIRECTION: ClassVar[Direction]
    _field = "value"

    def __call__(self, data: Any, context: Any) -> Any:
        """As `serialize` or `deserialize`, called as by confluent-kafka.

        Changes of the headers are made in the list or dict of the context, because there is no other way to the
        record; they remain after an error. An application may reuse its list or dict, for the next record, or for
        this one after a full queue. Headers that a serializer added before are therefore removed first.
        """
        given, call = context.headers, getattr(self, self._DIRECTION)
        if not isinstance(given, list | dict):  # there is no place for a header
            return call(context.topic, None, data)
        adds, mark = self._DIRECTION == "serialize", _MARKS.get(str(context.field), _MARKS["value"])
        listed = given.items() if isinstance(given, dict) else given
        headers = [header for header in listed if not isinstance(header[1], mark)] if adds else list(listed)
        count = len(headers)
        found = call(context.topic, headers, data)
        if adds or len(headers) != count:
            added = [(name, mark(value) if isinstance(value, bytes) else value) for name, value in headers[count:]]
            given.clear()
            (given.update if isinstance(given, dict) else given.extend)([*headers[:count], *added])
        return found

    def _error(self, topic: str, reason: str) -> SerializationError:
        named, deserializing = f"{type(self).__name__}: {reason}", self._DIRECTION == "deserialize"
        return SerializationError(topic, self._field, named, deserializing=deserializing)


class Configured(Ours, ABC):
    """One of our classes that is configured as Kafka configures a serializer."""

    def __init__(self, config: Mapping[str, object] | None = None, *, is_key: bool = False) -> None:
        if config is not None:
            self.configure(config, is_key)

    def configure(self, config: Mapping[str, object], is_key: bool = False) -> None:  # noqa: FBT001, FBT002  # Kafka's signature
        """Reads the client's whole configuration; makes no request.

        Raises:
            ConfigurationError: see the class.
        """
        self._field = "key" if is_key else "value"
        self._take(config)

    @abstractmethod
    def _take(self, config: Mapping[str, object]) -> None:
        """Reads its own properties."""
