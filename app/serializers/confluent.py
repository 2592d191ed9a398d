"""confluent-kafka's own clients, made from one configuration that has the serializers and their store in it.

    producer = SerializingProducer(producer_config({"bootstrap.servers": ..., "value.serializers": [...], ...}))
    consumer = DeserializingConsumer(consumer_config({...}))

The result is a configuration as these clients take it. They do not close the serializers in it; the application does:
`config["value.serializer"].close()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.serializers import config as taken
from app.serializers.composable import ComposableDeserializer
from app.serializers.librdkafka import KEYS
from app.serializers.threads import Threads

__all__ = ["AwaitedDeserializer", "async_consumer_config", "consumer_config", "producer_config"]

_LIMIT = "message.max.bytes"
_LIMIT_BYTES = 1_000_000  # librdkafka's default
_ASIDE = frozenset({"max.block.ms", "max.request.size"})  # Kafka's keys that only the serializers read here
_NAMES = KEYS | _ASIDE


def producer_config(config: Mapping[str, object]) -> dict[str, Any]:
    """The configuration of a `SerializingProducer`.

    The serializers also offload values over `message.max.bytes` (1,000,000), which librdkafka would refuse.

    Args:
        config: keys with Kafka's names: librdkafka's, and those of the serializers and their store. The store calls of
            a record must fit into `max.block.ms`.

    Returns:
        The keys of librdkafka, with `key.serializer` and `value.serializer` if `config` names serializers.

    Raises:
        ConfigurationError: a key is unknown or missing, or its value is wrong.
    """
    parts = taken.producer({_LIMIT: _LIMIT_BYTES, **config}, names=_NAMES)
    client: dict[str, Any] = {key: value for key, value in parts.client.items() if key not in _ASIDE}
    return {**client, **_present({"key.serializer": parts.key, "value.serializer": parts.value})}


def consumer_config(config: Mapping[str, object]) -> dict[str, Any]:
    """The configuration of a `DeserializingConsumer`; otherwise as `producer_config`.

    Raises:
        ConfigurationError: as there.
    """
    parts = taken.consumer(config, names=_NAMES)
    return {**parts.client, **_present({"key.deserializer": parts.key, "value.deserializer": parts.value})}


def async_consumer_config(config: Mapping[str, object]) -> dict[str, Any]:
    """The configuration of an `AsyncDeserializingConsumer` of `confluent_kafka.aio`; otherwise as `consumer_config`.

    Payloads are downloaded off the event loop. The deserializers are closed with `aclose()`.

    Raises:
        ConfigurationError: as there.
    """
    parts = taken.consumer(config, names=_NAMES)
    awaited = {
        "key.deserializer": parts.key and AwaitedDeserializer(parts.key, is_key=True),
        "value.deserializer": parts.value and AwaitedDeserializer(parts.value, is_key=False),
    }
    return {**parts.client, **_present(awaited)}


class AwaitedDeserializer:
    """Deserializers as `confluent_kafka.aio` takes them: the caller awaits the result.

    Args:
        composable: the deserializers.
        is_key: whether they are for keys.
    """

    def __init__(self, composable: ComposableDeserializer, *, is_key: bool) -> None:
        self._composable = composable
        self._is_key = is_key
        self._threads = Threads()

    async def __call__(self, data: bytes | None, context: Any) -> Any:
        """As `ComposableDeserializer.deserialize`, without blocking the loop on a store."""
        return await self._threads.run(self._composable, context.topic, context.headers, data, is_key=self._is_key)

    async def aclose(self) -> None:
        """Closes the deserializers, once no store call is under way."""
        await self._threads.close()
        self._composable.close()


def _present(serializers: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in serializers.items() if value is not None}
