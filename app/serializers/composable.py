"""Several serializers as one: those that `value.serializers` or one of its three siblings lists, in order.

Source: KIP-1159, "New Producer/Consumer configs to support Composable Serializer/Deserializer".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from app.serializers.large_message import LargeMessageDeserializer
from app.serializers.stage import Headers, Ours, Stage, close_all, load
from transforms.errors import ConfigurationError, ResourceIdentifierTooLargeError, SerializationError
from transforms.identifiers import check


class Composable(Ours):
    """A list of serializers or deserializers. The items of a composable in the list replace it."""

    def __init__(
        self,
        stages: Sequence[object] | str,
        config: Mapping[str, object] | None = None,
        *,
        is_key: bool = False,
        key: str | None = None,
    ) -> None:
        self._field = "key" if is_key else "value"
        self._key = key = key or f"{self._field}.{self._DIRECTION}rs"
        listed = [item.strip() for item in stages.split(",")] if isinstance(stages, str) else stages
        if not isinstance(listed, list | tuple):
            found = f"class {listed.__name__}" if isinstance(listed, type) else type(listed).__name__
            raise ConfigurationError(key, f"found one {found}, allowed is a list of classes or dotted paths")
        if not listed or listed == [""]:
            raise ConfigurationError(key, "is an empty list; list at least one item")
        own = [
            load(item, self._DIRECTION, key, f"item {position}, ", config or {}, self._field)
            for position, item in enumerate(listed, start=1)
        ]
        self._own = [stage.target for stage in own]
        self.stages = tuple(stage for each in own for stage in _stages(each))

    def close(self) -> None:
        """Closes every item that has `close`, even if one raises an error; then raises the first error."""
        close_all(self._own)

    def step(self, stage: Stage, topic: str, headers: Headers, data: Any) -> Any:
        """Runs one of `stages`; `data` is not None.

        Raises:
            SerializationError: the item raised an error, or returned neither `bytes` nor None where it must.
        """
        result = stage.run(topic, headers, data)
        may_be_any = self._DIRECTION == "deserialize" and stage is self.stages[-1]
        if may_be_any or isinstance(result, bytes) or result is None:
            return result
        raise stage.error(topic, f"returned {type(result).__name__}, allowed are bytes and None")


class ComposableSerializer(Composable):
    """Serializers in order: the first takes the application's object, each later one takes bytes.

    No serializer is called for a null, so a tombstone stays one.

    Args:
        stages: serializers in a shape that `docs/serializers.md` has; a string is a comma-separated list of paths.
        config: the client's configuration; classes in the list receive it.
        is_key: whether the data are keys, not values.
        key: the property that lists the serializers, for messages; `value.serializers` and the like by default.

    Raises:
        ConfigurationError: the list is empty, or an item cannot be loaded; the message has its position and class.

    Attributes:
        stages: the serializers, in order.
    """

    _DIRECTION = "serialize"

    def serialize(self, topic: str, headers: Headers, data: Any) -> bytes | None:
        """The bytes for Kafka. Serializers append to `headers`, which are None if the client has none.

        Raises:
            SerializationError: an item raised an error, or returned neither `bytes` nor None; or the topic's name is
                over its limit.
        """
        try:
            check("topic", topic)
        except ResourceIdentifierTooLargeError as exc:
            raise SerializationError(topic, self._field, f"{self._key}, {exc}") from exc
        for stage in self.stages:
            if data is None:
                break
            data = self.step(stage, topic, headers, data)
        return cast("bytes | None", data)


class ComposableDeserializer(Composable):
    """Deserializers in order: each but the last returns bytes, the last one returns the application's object.

    Arguments, attributes and nulls are as with `ComposableSerializer`.
    """

    _DIRECTION = "deserialize"

    @cached_property
    def _headerless(self) -> Sequence[Stage]:
        """The deserializers for a record without headers, which is neither a reference nor a chunk."""
        return [stage for stage in self.stages if type(stage.target) is not LargeMessageDeserializer]

    @property
    def keeps_plain(self) -> bool:
        """Whether the data of a record without headers are not changed."""
        return not self._headerless

    def deserialize(self, topic: str, headers: Headers, data: bytes | None) -> Any:
        """The application's object. Deserializers remove their headers from `headers`.

        Raises:
            SerializationError: an item raised an error, or one before the last returned neither `bytes` nor None.
        """
        for stage in self.stages if headers else self._headerless:
            if data is None:
                break
            data = self.step(stage, topic, headers, data)
        return data


def _stages(own: Stage) -> Sequence[Stage]:
    """The items of a composable within a list, unless it is of a class that does something else."""
    method = getattr(type(own.target), own.direction, None)
    if method in {ComposableSerializer.serialize, ComposableDeserializer.deserialize}:
        return cast("Composable", own.target).stages
    return (own,)
