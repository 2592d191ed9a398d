"""Several serializers as one: those that `value.serializers` or one of its three siblings lists, in order.

Source: seed 000, "New Producer/Consumer configs to support Composable Serializer/Deserializer".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from app.serializers.large_message import LargeMessageDeserializer
from app.serializers.stage import Context, Direction, Headers, Stage, load, shared_headers, with_appended
from transforms.errors import ConfigurationError, ResourceIdentifierTooLargeError, SerializationError
from transforms.identifiers import check

__all__ = ["ComposableDeserializer", "ComposableSerializer"]


class _Composable:
    """A list of stages."""

    _DIRECTION: Direction

    def __init__(
        self,
        stages: Sequence[object] | str,
        config: Mapping[str, object] | None = None,
        *,
        is_key: bool = False,
        key: str | None = None,
    ) -> None:
        self._field = "key" if is_key else "value"
        self._key = key or f"{self._field}.{self._DIRECTION}rs"
        self.stages = tuple(
            load(item, self._DIRECTION, self._key, position, config or {}, is_key=is_key)
            for position, item in enumerate(_listed(stages, self._key), start=1)
        )

    def context(self, topic: str, headers: Headers) -> Context:
        """The facts of a record for the stages."""
        return Context(topic, self._field, headers)

    def close(self) -> None:
        """Closes every stage that has `close`, even if one raises an error; then raises the first error."""
        errors = []
        for stage in self.stages:
            try:
                stage.close()
            except Exception as exc:  # noqa: BLE001  # the other stages must be closed too
                errors.append(exc)
        if errors:
            raise errors[0]

    def leaves(self) -> Iterator[object]:
        """The serializers; for a composable among the stages, the serializers in it."""
        for stage in self.stages:
            if isinstance(stage.target, _Composable):
                yield from stage.target.leaves()
            else:
                yield stage.target

    def step(self, stage: Stage, data: Any, context: Context) -> Any:
        """Runs one of `stages`, for clients that run some stages on another thread; `data` is not None.

        Raises:
            SerializationError: the stage raised an error, or gave neither `bytes` nor None where it must.
        """
        try:
            result = stage.call(data, context)
        except SerializationError:
            raise
        except Exception as exc:
            raise self._error(context, f"{stage.name}, raised {type(exc).__name__}: {exc}") from exc
        return self.checked(stage, result, context)

    def checked(self, stage: Stage, result: Any, context: Context) -> Any:
        """The result of a stage.

        Raises:
            SerializationError: it must be `bytes` or None, and is neither.
        """
        last = stage is self.stages[-1]
        if (not last or self._DIRECTION == "serialize") and not isinstance(result, bytes | None):
            raise self._error(context, f"{stage.name}, gave {type(result).__name__}, allowed are bytes and None")
        return result

    def _run(self, data: Any, context: Context) -> Any:
        for stage in self.stages:
            if data is None:
                return None
            data = self.step(stage, data, context)
        return data

    def _error(self, context: Context, reason: str) -> SerializationError:
        deserializing = self._DIRECTION == "deserialize"
        return SerializationError(context.topic, self._field, f"{self._key}, {reason}", deserializing=deserializing)


class ComposableSerializer(_Composable):
    """Serializers in order: the first takes the application's object, each later one takes bytes.

    No stage gets a null: it passes as a null, so a tombstone stays one.

    Args:
        stages: serializers in a shape that `docs/serializers.md` has; a string is a list of dotted paths with commas.
        config: the client's configuration; classes among the stages get it.
        is_key: whether the data are keys, not values.
        key: the key of the configuration that lists the stages, for messages; `value.serializers` and the like by
            default.

    Raises:
        ConfigurationError: the list is empty, or a stage cannot be loaded; the message has its position and class.

    Attributes:
        stages: in order.
    """

    _DIRECTION = "serialize"

    def serialize(self, topic: str, headers: Headers, data: Any) -> bytes | None:
        """The bytes for Kafka.

        Args:
            topic: the topic of the record.
            headers: of the record; stages append to the list. None if the client gives none.
            data: the key or the value of the application.

        Raises:
            SerializationError: a stage raised an error, or gave neither `bytes` nor None; or the topic's name is over
                its limit.
        """
        context = self.context(topic, headers)
        try:
            check("topic", topic)
        except ResourceIdentifierTooLargeError as exc:
            raise self._error(context, str(exc)) from exc
        return cast("bytes | None", self._run(data, context))

    def __call__(self, data: Any, context: Any) -> bytes | None:
        """The same, as confluent-kafka calls it."""
        return with_appended(context, lambda headers: self.serialize(context.topic, headers, data))


class ComposableDeserializer(_Composable):
    """Deserializers in order: each but the last gives bytes, the last one gives the application's object.

    Arguments, attributes and nulls are as with `ComposableSerializer`.
    """

    _DIRECTION = "deserialize"

    @cached_property
    def keeps_plain(self) -> bool:
        """Whether the data of a record without headers stay as they are."""
        return all(type(stage.target) is LargeMessageDeserializer for stage in self.stages)

    def deserialize(self, topic: str, headers: Headers, data: bytes | None) -> Any:
        """The application's object.

        Args:
            topic: the topic of the record.
            headers: of the record; stages remove their own headers from the list.
            data: the key or the value as Kafka has it.

        Raises:
            SerializationError: a stage raised an error, or one before the last gave neither `bytes` nor None.
        """
        if not headers and self.keeps_plain:
            return data
        return self._run(data, self.context(topic, headers))

    def __call__(self, data: bytes | None, context: Any) -> Any:
        """The same, as confluent-kafka calls it. If a stage fails, the record keeps the headers that it has."""
        given = shared_headers(context)
        headers = None if given is None else list(given)
        found = self.deserialize(context.topic, headers, data)
        if given is not None and headers is not None and len(headers) != len(given):
            given[:] = headers
        return found


def _listed(stages: Sequence[object] | str, key: str) -> Sequence[object]:
    listed = [item.strip() for item in stages.split(",")] if isinstance(stages, str) else stages
    if not isinstance(listed, list | tuple):
        found = f"class {listed.__name__}" if isinstance(listed, type) else type(listed).__name__
        raise ConfigurationError(key, f"found one {found}, allowed is a list of classes or dotted paths")
    if not listed or listed == [""]:
        raise ConfigurationError(key, "is an empty list, allowed is one of at least one stage")
    return listed
