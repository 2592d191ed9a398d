"""Several serializers as one: what `value.serializers` and its three siblings name, applied in order.

Source: seed 000, "New Producer/Consumer configs to support Composable Serializer/Deserializer".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from app.serializers.stage import Context, Direction, Headers, Stage, appended_headers, load, shared_headers
from transforms.errors import ConfigurationError, ResourceIdentifierTooLargeError, SerializationError
from transforms.identifiers import check

__all__ = ["ComposableDeserializer", "ComposableSerializer"]

_KIND: Mapping[Direction, str] = {"serialize": "serializer", "deserialize": "deserializer"}


class _Composable:
    """What the two have in common."""

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
        self._key = key or f"{self._field}.{_KIND[self._DIRECTION]}s"
        self.stages = tuple(
            load(item, self._DIRECTION, self._key, position, config or {}, is_key=is_key)
            for position, item in enumerate(_listed(stages, self._key), start=1)
        )

    def close(self) -> None:
        """Closes every stage that can be closed, also where one of them raises; then raises what the first raised."""
        errors = []
        for stage in self.stages:
            try:
                stage.close()
            except Exception as exc:  # noqa: BLE001  # the others are to be closed too
                errors.append(exc)
        if errors:
            raise errors[0]

    def leaves(self) -> Iterator[object]:
        """The serializers themselves; in place of a composable among the stages, those in it."""
        for stage in self.stages:
            if isinstance(stage.target, _Composable):
                yield from stage.target.leaves()
            else:
                yield stage.target

    def step(self, stage: Stage, data: Any, context: Context) -> Any:
        """One stage of `stages`, for clients that run some stages on another thread; `data` is not None.

        Raises:
            SerializationError: as of all of them.
        """
        try:
            result = stage.call(data, context)
        except SerializationError:
            raise
        except Exception as exc:
            raise self._error(context, f"{stage.name}, raised {type(exc).__name__}: {exc}") from exc
        return self.checked(stage, result, context)

    def checked(self, stage: Stage, result: Any, context: Context) -> Any:
        """What `stage` gave, if it may give that.

        Raises:
            SerializationError: it is neither `bytes` nor None, and must be.
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
    """Serializers, one behind the other: the first takes what the application has, each later one takes bytes.

    A null passes every stage as a null and is handed to none of them, so a tombstone stays one.

    Args:
        stages: what `app.serializers.stage` takes; a string is a list of dotted paths with commas between them.
        config: what classes among them are configured with: the client's own configuration.
        is_key: whether keys are serialized, not values.
        key: the key of the configuration where the stages stand, for messages; `value.serializers` and the like where
            it is not given.

    Raises:
        ConfigurationError: the list is empty, or a stage cannot be had; it says which, by position and class.

    Attributes:
        stages: in order.
    """

    _DIRECTION = "serialize"

    def serialize(self, topic: str, headers: Headers, data: Any) -> bytes | None:
        """What goes to Kafka for `data`.

        Args:
            topic: the topic of the record.
            headers: those of the record; stages append to it. None where the client has none to give.
            data: the key or the value of the application.

        Raises:
            SerializationError: a stage raised an error, or gave something other than `bytes` or None; or the topic's
                name is over its limit.
        """
        try:
            check("topic", topic)
        except ResourceIdentifierTooLargeError as exc:
            raise self._error(Context(topic, self._field, headers), str(exc)) from exc
        return cast("bytes | None", self._run(data, Context(topic, self._field, headers)))

    def __call__(self, data: Any, context: Any) -> bytes | None:
        """The same, as confluent-kafka calls it."""
        with appended_headers(context) as headers:
            return self.serialize(context.topic, headers, data)


class ComposableDeserializer(_Composable):
    """Deserializers, one behind the other: each but the last gives bytes, the last what the application wants.

    Arguments, attributes and nulls are as with `ComposableSerializer`.
    """

    _DIRECTION = "deserialize"

    def deserialize(self, topic: str, headers: Headers, data: bytes | None) -> Any:
        """What the application gets for `data`.

        Args:
            topic: the topic of the record.
            headers: those of the record; stages take from it what is theirs.
            data: the key or the value as Kafka has it.

        Raises:
            SerializationError: a stage raised an error, or one but the last gave something other than `bytes` or None.
        """
        return self._run(data, Context(topic, self._field, headers))

    def __call__(self, data: bytes | None, context: Any) -> Any:
        """The same, as confluent-kafka calls it."""
        with shared_headers(context) as headers:
            return self.deserialize(context.topic, headers, data)


def _listed(stages: Sequence[object] | str, key: str) -> Sequence[object]:
    listed = [item.strip() for item in stages.split(",")] if isinstance(stages, str) else stages
    if not isinstance(listed, list | tuple):
        found = f"class {listed.__name__}" if isinstance(listed, type) else type(listed).__name__
        raise ConfigurationError(key, f"found one {found}, allowed is a list of classes or dotted paths")
    if not listed or listed == [""]:
        raise ConfigurationError(key, "is an empty list, allowed is one of at least one stage")
    return listed
