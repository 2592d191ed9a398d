"""One serializer or deserializer of a list, whichever client it was written for.

It is a class, an object, or the dotted path of a class or a function, with one of these shapes:

    serialize(topic, headers, data)     Kafka's own method; kafka-python 3
    serialize(topic, data)              Kafka's older one; kafka-python 2
    __call__(data, context)             confluent-kafka; the context has `topic`, `field` and `headers`
    __call__(data)                      aiokafka, and any plain function

and the same with `deserialize`. As in Kafka's clients, a class is called without arguments, and its object gets the
client's whole configuration by `configure(config, is_key)`, if it has this method; an object is taken as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stores.dotted import parts, resolve
from transforms.errors import ConfigurationError
from transforms.record import Header

__all__ = ["Context", "Direction", "Headers", "Stage", "encoded", "load", "shared_headers", "with_appended"]

Direction = Literal["serialize", "deserialize"]
Headers = list[Header] | None

_OPPOSITE: Mapping[Direction, Direction] = {"serialize": "deserialize", "deserialize": "serialize"}
_CONTEXT_NAMES = {("ctx",), ("context",)}
_METHOD = ("topic", "headers", "data")
_OLD_METHOD = ("topic", "data")
_FUNCTION = ("data",)
_FUNCTION_WITH_CONTEXT = ("data", "context")
_BY_POSITION = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}


@dataclass(frozen=True, slots=True)
class Context:
    """The facts of confluent-kafka's `SerializationContext`, for stages that were written for it.

    Attributes:
        topic: the topic of the record.
        field: `key` or `value`.
        headers: of the record; a serializer may append to the list. None if the client gives none.
    """

    topic: str
    field: str
    headers: Headers


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage that is ready.

    Attributes:
        name: position and class, for messages.
        target: the serializer or deserializer itself.
        call: takes data and context, gives data.
    """

    name: str
    target: object
    call: Callable[[Any, Context], object]

    def close(self) -> None:
        """Closes the serializer, if it has `close`."""
        close = getattr(self.target, "close", None)
        if callable(close):
            close()


def load(
    item: object, direction: Direction, key: str, position: int | None, config: Mapping[str, object], *, is_key: bool
) -> Stage:
    """The stage for an item of the list.

    Args:
        item: a class, a dotted path, or an object.
        direction: the method that the stage needs.
        key: the key of the configuration that has the list.
        position: in the list, from 1; None if the key names one stage.
        config: for a class.
        is_key: whether the stage is for keys.

    Raises:
        ConfigurationError: the item cannot be found or called, lacks the method, or refuses the configuration.
    """
    target = item
    if isinstance(item, str):
        path = parts(item)
        if path is None:
            where = "" if position is None else f"stage {position}: "
            raise ConfigurationError(
                key, f"{where}found {item!r}, allowed is a class, or its path as package.module.Class"
            )
        target = resolve(key, item, path)
    name = _name(target) if position is None else f"stage {position}, {_name(target)}"
    made = isinstance(target, type)
    if isinstance(target, type):
        target = _made(target, key, name)
    call = _call(target, direction)
    if call is None:
        raise ConfigurationError(
            key,
            f"{name}: lacks the method {direction}(topic, headers, data), and cannot be called with (data) or (data, "
            "context) either",
        )
    if made and hasattr(target, "configure"):
        _configure(target, key, name, config, is_key=is_key)
    return Stage(name, target, call)


def shared_headers(context: Any) -> Headers:
    """The headers of confluent-kafka's context as a list: the record's own list, or a copy of its dict.

    None if the application gave no headers: then no header can be added to the record.
    """
    given = context.headers
    return list(given.items()) if isinstance(given, dict) else given if isinstance(given, list) else None


def encoded(headers: Sequence[tuple[str, Any]]) -> list[Header]:
    """Headers as Kafka has them, in a list of its own: confluent-kafka also takes text as a value, and sends UTF-8."""
    for _, each in headers:
        if isinstance(each, str):
            return [(name, value.encode() if isinstance(value, str) else value) for name, value in headers]
    return list(headers)


class _Appended(bytes):
    """The value of a header that a serializer has appended to the application's own headers.

    Attributes:
        field: what was serialized, `key` or `value`.
    """

    field: str


def with_appended(context: Any, serialize: Callable[[Headers], bytes | None]) -> bytes | None:
    """Serializes with `shared_headers`: the headers that are appended are put into the application's list or dict.

    confluent-kafka offers no other way. The application may use the list or dict again, for the next record, or for the
    same one after a full queue. So the headers that were appended before are removed first.
    """
    given, field = context.headers, context.field
    if given:
        if isinstance(given, list):
            given[:] = [header for header in given if not _is_appended(header[1], field)]
        elif isinstance(given, dict):
            for name in [name for name, value in given.items() if _is_appended(value, field)]:
                del given[name]
    headers = shared_headers(context)
    count = len(headers or ())
    data = serialize(headers)
    if headers and len(headers) > count:
        headers[count:] = [(name, _appended(value, field)) for name, value in headers[count:]]
        if isinstance(given, dict):
            given.update(headers[count:])
    return data


def _is_appended(value: object, field: object) -> bool:
    return isinstance(value, _Appended) and value.field == str(field)


def _appended(value: bytes | None, field: object) -> bytes | None:
    if not isinstance(value, bytes):
        return value
    marked = _Appended(value)
    marked.field = str(field)
    return marked


def _name(target: object) -> str:
    named = target if isinstance(target, type) or inspect.isroutine(target) else type(target)
    return str(getattr(named, "__qualname__", named))


def _made(cls: type, key: str, name: str) -> object:
    try:
        return cls()
    except Exception as exc:
        raise ConfigurationError(
            key,
            f"{name}: cannot be made without arguments ({type(exc).__name__}: {exc}); "
            "put the object itself in its place, made as it should be",
        ) from exc


def _configure(target: Any, key: str, name: str, config: Mapping[str, object], *, is_key: bool) -> None:
    try:
        target.configure(config, is_key)
    except ConfigurationError:
        raise
    except Exception as exc:
        raise ConfigurationError(key, f"{name}: configure raised {type(exc).__name__}: {exc}") from exc


def _call(target: object, direction: Direction) -> Callable[[Any, Context], object] | None:
    """The call of a stage; None if it has neither shape."""
    method = getattr(target, direction, None)
    if callable(method):
        names, required = _positional(method, _METHOD)
        if required == len(_METHOD) or names[1:2] == ("headers",):
            return lambda data, context: method(context.topic, context.headers, data)
        return (lambda data, context: method(context.topic, data)) if required == len(_OLD_METHOD) else None
    if not callable(target) or hasattr(target, _OPPOSITE[direction]):
        return None
    names, required = _positional(target, _FUNCTION)
    # The context is optional in confluent-kafka's own serializers; a second argument of another name is not one.
    if required == len(_FUNCTION_WITH_CONTEXT) or names[1:2] in _CONTEXT_NAMES:
        return target
    return (lambda data, _: target(data)) if required <= len(_FUNCTION) and names else None


def _positional(function: Callable[..., object], assumed: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
    """The names of the arguments that a function takes by position, and how many of them it requires.

    `assumed` stands for the names of one that takes any, or that does not say, as some built-in functions.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return assumed, len(assumed)
    if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters):
        return assumed, len(assumed)
    found = [each for each in parameters if each.kind in _BY_POSITION]
    return tuple(each.name for each in found), sum(each.default is inspect.Parameter.empty for each in found)
