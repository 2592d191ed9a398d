"""Message wrappers inside a client: the application has objects, Kafka has their bytes.

Source: seed 002, "Client users to create the message wrapper inserting their value inside it before creating producer
record", and "Each headers value will be custom serialisable by the interceptors/plugins that use the header". The
format is that of the worker (`transforms.wrapper`), so its `unwrap` reads what a client wrote.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from app.config.wrapping import PLAIN_KEY
from app.serializers.compaction import CompactionWarning
from app.serializers.stage import Context, Direction, Headers, Stage, load
from stores.keys import read
from transforms.errors import ConfigurationError, MalformedWrapperError, SerializationError
from transforms.wrapper import UNMAPPED_PREFIX, MessageWrapper

__all__ = ["TypedWrapper", "WrapperDeserializer", "WrapperSerializer"]

V = TypeVar("V")

_VALUE = "wrapper.value"
_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,9}", re.ASCII)
_LEAST, _MOST = -(2**31), 2**31 - 1
_MARKER_STAYS = (
    "a wrapper without a value deletes nothing there: compaction keeps it as any other value; send None, which deletes "
    "the key"
)


@dataclass(frozen=True, slots=True)
class TypedWrapper(Generic[V]):
    """The content of a wrapper as the application has it; see `wrapper.value.serializer`.

    Attributes:
        headers: objects by int key, in order.
        value: an object; None is the tombstone marker.
    """

    headers: Mapping[int, Any]
    value: V | None


class _Wrapper:
    """Knows whether it is for keys or for values, and the serializers of what is in the wrapper."""

    _DIRECTION: ClassVar[Direction]
    _OWN_KEYS: tuple[str, ...] = ()

    def __init__(self, config: Mapping[str, object] | None = None, *, is_key: bool = False) -> None:
        self._field = "key" if is_key else "value"
        self._value: Stage | None = None
        self._headers: dict[int, Stage] = {}
        self.KEYS: tuple[str, ...] | None = self._OWN_KEYS
        if config is not None:
            self.configure(config, is_key)

    def configure(self, config: Mapping[str, object], is_key: bool = False) -> None:  # noqa: FBT001, FBT002  # Kafka's signature
        """Takes the configuration.

        Raises:
            ConfigurationError: see the class.
        """
        self._field = "key" if is_key else "value"
        end = f".{self._DIRECTION}r"
        keys = [*self._OWN_KEYS]
        listed = True
        for key, item in config.items():
            number = _number(key, end) if key.startswith(UNMAPPED_PREFIX) and key.endswith(end) else None
            if number is None and key != _VALUE + end:
                continue
            stage = load(item, self._DIRECTION, key, None, config, is_key=is_key)
            if number is None:
                self._value = stage
            else:
                self._headers[number] = stage
            own = getattr(stage.target, "KEYS", None if hasattr(stage.target, "configure") else ())
            listed = listed and own is not None
            keys += [key, *(own or ())]
        # Any key may be one of a stage that is configured and has no list.
        self.KEYS = tuple(keys) if listed else None

    @property
    def _typed(self) -> bool:
        return self._value is not None or bool(self._headers)

    def close(self) -> None:
        """Closes the serializers of what is in the wrapper."""
        for stage in (*self._headers.values(), *(() if self._value is None else (self._value,))):
            stage.close()

    def _called(self, stage: Stage, key: int | None, topic: str, data: Any) -> Any:
        """What a stage makes of a header, or of the value if `key` is None.

        Raises:
            SerializationError: the stage raised an error; it names the key of the configuration.
        """
        try:
            # Headers of the record are not for it: those in the wrapper are.
            return stage.call(data, Context(topic, self._field, None))
        except Exception as exc:
            raise self._error(topic, key, f"{stage.name}, raised {type(exc).__name__}: {exc}") from exc

    def _error(self, topic: str, key: int | None, reason: str) -> SerializationError:
        named = f"{_VALUE if key is None else f'{UNMAPPED_PREFIX}{key}'}.{self._DIRECTION}r"
        deserializing = self._DIRECTION == "deserialize"
        return SerializationError(topic, self._field, f"{named}, {reason}", deserializing=deserializing)


class WrapperSerializer(_Wrapper):
    """Serializes a `MessageWrapper` or a `TypedWrapper`: the first of `value.serializers`.

    In a `MessageWrapper` the value is bytes, or None for the tombstone marker, and headers are bytes. So are those of a
    `TypedWrapper` that have no serializer of their own. The record's headers stay as they are. If the cluster can be
    asked, a wrapper without a value for a compacted topic is warned of, once for each topic.

    Args:
        config: with `wrapper.value.serializer` and `wrapper.header.NUMBER.serializer`: a class, an object, or a dotted
            path, as in `value.serializers`.
        is_key: whether it is for keys, not for values.

    Raises:
        ConfigurationError: NUMBER is no int32, or a serializer cannot be loaded.
    """

    _DIRECTION = "serialize"
    _compaction: CompactionWarning | None = None

    def configure(self, config: Mapping[str, object], is_key: bool = False) -> None:  # noqa: FBT001, FBT002  # Kafka's signature
        """Takes the configuration.

        Raises:
            ConfigurationError: see the class.
        """
        super().configure(config, is_key)
        self._compaction = CompactionWarning(config, _MARKER_STAYS) if config.get("bootstrap.servers") else None

    def serialize(self, topic: str, headers: Headers, data: object) -> bytes | None:  # noqa: ARG002  # Kafka's signature
        """The wrapper's bytes; a null stays a null, which is a true tombstone.

        Raises:
            SerializationError: `data` is no wrapper, or does not fit the format; or a serializer of what is in it
                raised an error, or gave no bytes.
        """
        if data is None:
            return None
        if not isinstance(data, MessageWrapper | TypedWrapper):
            allowed = "MessageWrapper, TypedWrapper and None" if self._typed else "MessageWrapper and None"
            reason = f"WrapperSerializer: found {type(data).__name__}, allowed are {allowed}"
            raise SerializationError(topic, self._field, reason)
        within: Any = data.headers
        if not isinstance(within, Mapping):
            reason = f"WrapperSerializer: the headers are of type {type(within).__name__}, allowed is a mapping"
            raise SerializationError(topic, self._field, reason)
        # What is in a `MessageWrapper` is serialized already.
        found = data if isinstance(data, MessageWrapper) else self._serialized(topic, data)
        try:
            serialized = found.serialize()
        except (TypeError, ValueError) as exc:
            raise SerializationError(topic, self._field, f"WrapperSerializer: {exc}") from exc
        if found.value is None and self._compaction is not None and topic not in self._compaction.asked:
            self._compaction.ask(topic)
        return serialized

    def _serialized(self, topic: str, typed: TypedWrapper[Any]) -> MessageWrapper:
        headers = {key: self._header(topic, key, each) for key, each in typed.headers.items()}
        return MessageWrapper(headers, self._of_value(topic, typed.value))

    def _header(self, topic: str, key: int, data: Any) -> Any:
        stage = self._headers.get(key)
        if stage is None:
            return data
        if data is None:
            raise self._error(topic, key, "found None, and a header in a wrapper has a value: leave it out")
        found = self._called(stage, key, topic, data)
        if not isinstance(found, bytes):
            raise self._error(topic, key, f"{stage.name}, gave {type(found).__name__}, allowed is bytes")
        return found

    def _of_value(self, topic: str, data: Any) -> Any:
        if self._value is None or data is None:
            return data
        found = self._called(self._value, None, topic, data)
        if not isinstance(found, bytes):
            # Producers look for the null that a compacted topic must not get before the value is serialized.
            hint = "; for a wrapper without a value, set the value to None" if found is None else ""
            told = f"{self._value.name}, gave {type(found).__name__}, allowed is bytes{hint}"
            raise self._error(topic, None, told)
        return found

    def __call__(self, data: object, context: Any) -> bytes | None:
        """The same, as confluent-kafka calls it."""
        return self.serialize(context.topic, None, data)


class WrapperDeserializer(_Wrapper):
    """Parses a `MessageWrapper`: the last of `value.deserializers`; a `TypedWrapper` if it has deserializers.

    Args:
        config: with `unwrap.on.plain.value`: `fail`, the default, or `pass`, which gives a wrapper without headers for
            a value that is no wrapper; and with `wrapper.value.deserializer` and `wrapper.header.NUMBER.deserializer`:
            a class, an object, or a dotted path, as in `value.deserializers`. A header without one is bytes.
        is_key: whether it is for keys, not for values.

    Raises:
        ConfigurationError: `unwrap.on.plain.value` is neither; NUMBER is no int32, or a deserializer cannot be loaded.
    """

    _DIRECTION = "deserialize"
    _OWN_KEYS = (PLAIN_KEY.name,)
    _passes = False

    def configure(self, config: Mapping[str, object], is_key: bool = False) -> None:  # noqa: FBT001, FBT002  # Kafka's signature
        """Takes the configuration.

        Raises:
            ConfigurationError: see the class.
        """
        super().configure(config, is_key)
        self._passes = read([PLAIN_KEY], config)[PLAIN_KEY.name] == "pass"

    def deserialize(
        self,
        topic: str,
        headers: Headers,  # noqa: ARG002  # Kafka's signature
        data: bytes | None,
    ) -> MessageWrapper | TypedWrapper[Any] | None:
        """The wrapper; a null stays a null.

        Raises:
            SerializationError: the bytes are no wrapper; `__cause__` is a `MalformedWrapperError`. Or a deserializer
                of what is in it raised an error.
        """
        if data is None:
            return None
        try:
            wrapper = MessageWrapper.parse(data)
        except MalformedWrapperError as exc:
            if not self._passes:
                reason = f"WrapperDeserializer: {exc}"
                raise SerializationError(topic, self._field, reason, deserializing=True) from exc
            wrapper = MessageWrapper({}, data)
        if not self._typed:
            return wrapper
        found = {key: self._header(topic, key, each) for key, each in wrapper.headers.items()}
        value: Any = wrapper.value
        if self._value is not None and value is not None:
            value = self._called(self._value, None, topic, value)
        return TypedWrapper(found, value)

    def _header(self, topic: str, key: int, data: bytes) -> Any:
        stage = self._headers.get(key)
        return data if stage is None else self._called(stage, key, topic, data)

    def __call__(self, data: bytes | None, context: Any) -> MessageWrapper | TypedWrapper[Any] | None:
        """The same, as confluent-kafka calls it."""
        return self.deserialize(context.topic, None, data)


def _number(key: str, end: str) -> int:
    text = key.removeprefix(UNMAPPED_PREFIX).removesuffix(end)
    if not _NUMBER.fullmatch(text) or not _LEAST <= int(text) <= _MOST:
        between = f"between {UNMAPPED_PREFIX} and {end}"
        raise ConfigurationError(key, f"found {text!r}, allowed {between} is an int32, without leading zeros")
    return int(text)
