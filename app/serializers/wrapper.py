"""Message wrappers inside a client: the application has `MessageWrapper` objects, Kafka has their bytes.

Source: seed 002, "Client users to create the message wrapper inserting their value inside it before creating producer
record". The format is that of the worker (`transforms.wrapper`), so its `unwrap` reads what a client wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.config.wrapping import PLAIN_KEY
from app.serializers.stage import Headers
from stores.keys import read
from transforms.errors import MalformedWrapperError, SerializationError
from transforms.wrapper import MessageWrapper

__all__ = ["WrapperDeserializer", "WrapperSerializer"]


class _Wrapper:
    """Knows whether it is for keys or for values."""

    KEYS: tuple[str, ...] = ()

    def __init__(self, config: Mapping[str, object] | None = None, *, is_key: bool = False) -> None:
        self._field = "key" if is_key else "value"
        if config is not None:
            self.configure(config, is_key)

    def configure(self, config: Mapping[str, object], is_key: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002  # Kafka's signature
        """Takes the configuration, which needs no key for it."""
        self._field = "key" if is_key else "value"


class WrapperSerializer(_Wrapper):
    """Serializes a `MessageWrapper`: the first of `value.serializers`.

    The value in the wrapper is bytes, or None for the tombstone marker. The record's headers stay as they are.

    Args:
        config: not needed.
        is_key: whether it is for keys, not for values.
    """

    def serialize(self, topic: str, headers: Headers, data: object) -> bytes | None:  # noqa: ARG002  # Kafka's signature
        """The wrapper's bytes; a null stays a null, which is a true tombstone.

        Raises:
            SerializationError: `data` is no `MessageWrapper`, or does not fit the format.
        """
        if data is None:
            return None
        if not isinstance(data, MessageWrapper):
            reason = f"WrapperSerializer: found {type(data).__name__}, allowed are MessageWrapper and None"
            raise SerializationError(topic, self._field, reason)
        try:
            return data.serialize()
        except (TypeError, ValueError) as exc:
            raise SerializationError(topic, self._field, f"WrapperSerializer: {exc}") from exc

    def __call__(self, data: object, context: Any) -> bytes | None:
        """The same, as confluent-kafka calls it."""
        return self.serialize(context.topic, None, data)


class WrapperDeserializer(_Wrapper):
    """Parses a `MessageWrapper`: the last of `value.deserializers`.

    Args:
        config: with `unwrap.on.plain.value`: `fail`, the default, or `pass`, which gives a wrapper without headers for
            a value that is no wrapper.
        is_key: whether it is for keys, not for values.

    Raises:
        ConfigurationError: `unwrap.on.plain.value` is neither.
    """

    KEYS = (PLAIN_KEY.name,)
    _passes = False

    def configure(self, config: Mapping[str, object], is_key: bool = False) -> None:  # noqa: FBT001, FBT002  # Kafka's signature
        """Takes the configuration.

        Raises:
            ConfigurationError: see the class.
        """
        super().configure(config, is_key)
        self._passes = read([PLAIN_KEY], config)[PLAIN_KEY.name] == "pass"

    def deserialize(self, topic: str, headers: Headers, data: bytes | None) -> MessageWrapper | None:  # noqa: ARG002  # Kafka's signature
        """The wrapper; a null stays a null.

        Raises:
            SerializationError: the bytes are no wrapper; `__cause__` is a `MalformedWrapperError`.
        """
        if data is None:
            return None
        try:
            return MessageWrapper.parse(data)
        except MalformedWrapperError as exc:
            if self._passes:
                return MessageWrapper({}, data)
            reason = f"WrapperDeserializer: {exc}"
            raise SerializationError(topic, self._field, reason, deserializing=True) from exc

    def __call__(self, data: bytes | None, context: Any) -> MessageWrapper | None:
        """The same, as confluent-kafka calls it."""
        return self.deserialize(context.topic, None, data)
