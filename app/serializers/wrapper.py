"""Message wrappers inside a client: the application has objects, Kafka has their bytes.

Source: the wrapper alternative of KIP-82, "Client users to create the message wrapper inserting their value inside it
before creating producer record", and "Each headers value will be custom serialisable by the
interceptors/plugins that use the header". The format is that of the worker (`transforms.wrapper`), so its `unwrap`
reads what a client wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from app.config.wrapping import PLAIN_KEY
from app.serializers.compaction import CompactionWarning
from app.serializers.stage import Configured, Headers, Stage, close_all, load
from stores.keys import read
from transforms.errors import ConfigurationError, MalformedWrapperError
from transforms.wrapper import UNMAPPED_PREFIX, HeaderTable, MessageWrapper

V = TypeVar("V")

_MARKER_STAYS = (
    "a wrapper without a value deletes nothing there: compaction keeps it like any other value; send None, which "
    "deletes the key"
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


class _Wrapper(Configured):
    """Has the serializers of the content of a wrapper.

    Attributes:
        KEYS: the properties that are its own; None if they may be any.
    """

    _OWN_KEYS: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: Mapping[str, object] | None = None, *, is_key: bool = False) -> None:
        super().__init__(config or {}, is_key=is_key)

    def _take(self, config: Mapping[str, object]) -> None:
        self._stages: dict[int | None, Stage] = {}  # of headers by their keys, of the value by None
        end = f".{self._DIRECTION}r"
        keys: list[str] | None = [*self._OWN_KEYS]
        for key, item in config.items():
            if key == f"wrapper.value{end}":
                number = None
            elif key.startswith(UNMAPPED_PREFIX) and key.endswith(end):
                number = HeaderTable().key(key.removesuffix(end))
                if number is None:
                    found = key.removeprefix(UNMAPPED_PREFIX).removesuffix(end)
                    allowed = f"between {UNMAPPED_PREFIX} and {end} is an int32, without leading zeros"
                    raise ConfigurationError(key, f"found {found!r}, allowed {allowed}")
            else:
                continue
            stage = self._stages[number] = load(item, self._DIRECTION, key, "", config, self._field)
            keys = None if keys is None or stage.keys is None else [*keys, key, *stage.keys]
        self.KEYS = None if keys is None else tuple(keys)

    def close(self) -> None:
        """Closes the serializers of the wrapper's content."""
        close_all(stage.target for stage in self._stages.values())


class WrapperSerializer(_Wrapper):
    """Serializes a `MessageWrapper` or a `TypedWrapper`: the first of `value.serializers`.

    In a `MessageWrapper` the value is bytes, or None for the tombstone marker, and headers are bytes. So are those of a
    `TypedWrapper` without a serializer. The record's headers do not change. If the cluster can be queried, a warning is
    logged for a wrapper without a value for a compacted topic, once for each topic.

    Args:
        config: with `wrapper.value.serializer` and `wrapper.header.NUMBER.serializer`: a class, an object, or a dotted
            path, as in `value.serializers`.
        is_key: whether it is for keys, not for values.

    Raises:
        ConfigurationError: NUMBER is not an int32, or a serializer cannot be loaded.
    """

    _DIRECTION = "serialize"

    def _take(self, config: Mapping[str, object]) -> None:
        super()._take(config)
        self._warning = CompactionWarning(config, _MARKER_STAYS)

    def serialize(self, topic: str, headers: Headers, data: object) -> bytes | None:  # noqa: ARG002  # Kafka's signature
        """The wrapper's bytes; a null stays a null, which is a true tombstone.

        Raises:
            SerializationError: `data` is not a wrapper, or violates the format; or a serializer of its content raised
                an error, or did not return bytes.
        """
        if data is None:
            return None
        if not isinstance(data, MessageWrapper | TypedWrapper):
            allowed = "MessageWrapper, TypedWrapper and None" if self._stages else "MessageWrapper and None"
            raise self._error(topic, f"found {type(data).__name__}, allowed are {allowed}")
        within: Any = data.headers
        if not isinstance(within, Mapping):
            raise self._error(topic, f"the headers are of type {type(within).__name__}, allowed is a mapping")
        if isinstance(data, TypedWrapper):  # the content of a `MessageWrapper` is serialized already
            serialized = {key: self._content(topic, key, each) for key, each in within.items()}
            data = MessageWrapper(serialized, None if data.value is None else self._content(topic, None, data.value))
        try:
            found = data.serialize()
        except (TypeError, ValueError) as exc:
            raise self._error(topic, str(exc)) from exc
        if data.value is None:
            self._warning.ask(topic)
        return found

    def _content(self, topic: str, key: int | None, data: Any) -> Any:
        """The bytes in the wrapper of a header, or of the value if `key` is None."""
        stage = self._stages.get(key)
        if stage is None:
            return data
        if data is None:
            raise stage.error(topic, "found None, and a header in a wrapper must have a value; omit the header")
        found = stage.run(topic, None, data)  # the headers of the record are not for it
        if isinstance(found, bytes):
            return found
        # Before the value is serialized, producers check for the null that must not be written to a compacted topic.
        hint = "; for a wrapper without a value, set the value to None" if found is None and key is None else ""
        raise stage.error(topic, f"returned {type(found).__name__}, allowed is bytes{hint}")


class WrapperDeserializer(_Wrapper):
    """Parses a `MessageWrapper`: the last of `value.deserializers`; a `TypedWrapper` if it has deserializers.

    Args:
        config: with `unwrap.on.plain.value`: `fail`, the default, or `pass`, which returns a value that is not a
            wrapper as a wrapper without headers; and with `wrapper.value.deserializer` and
            `wrapper.header.NUMBER.deserializer`: a class, an object, or a dotted path, as in `value.deserializers`.
            A header without one is bytes.
        is_key: whether it is for keys, not for values.

    Raises:
        ConfigurationError: `unwrap.on.plain.value` is neither; NUMBER is not an int32; a deserializer cannot be loaded.
    """

    _DIRECTION = "deserialize"
    _OWN_KEYS = (PLAIN_KEY.name,)

    def _take(self, config: Mapping[str, object]) -> None:
        super()._take(config)
        self._passes = read([PLAIN_KEY], config)[PLAIN_KEY.name] == "pass"

    def deserialize(
        self,
        topic: str,
        headers: Headers,  # noqa: ARG002  # Kafka's signature
        data: bytes | None,
    ) -> MessageWrapper | TypedWrapper[Any] | None:
        """The wrapper; a null stays a null.

        Raises:
            SerializationError: the bytes are not a wrapper; `__cause__` is a `MalformedWrapperError`. Or a deserializer
                of its content raised an error.
        """
        if data is None:
            return None
        try:
            wrapper = MessageWrapper.parse(data)
        except MalformedWrapperError as exc:
            if not self._passes:
                raise self._error(topic, str(exc)) from exc
            wrapper = MessageWrapper({}, data)
        if not self._stages:
            return wrapper
        found = {key: self._content(topic, key, each) for key, each in wrapper.headers.items()}
        return TypedWrapper(found, None if wrapper.value is None else self._content(topic, None, wrapper.value))

    def _content(self, topic: str, key: int | None, data: bytes) -> Any:
        stage = self._stages.get(key)
        return data if stage is None else stage.run(topic, None, data)
