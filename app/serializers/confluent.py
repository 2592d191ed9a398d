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
    split = taken.producer({_LIMIT: _LIMIT_BYTES, **config}, _NAMES)
    client: dict[str, Any] = {key: value for key, value in split.client.items() if key not in _ASIDE}
    return {**client, **{f"{part}.serializer": composable for part, composable in split.parts.items()}}


def consumer_config(config: Mapping[str, object]) -> dict[str, Any]:
    """The configuration of a `DeserializingConsumer`; otherwise as `producer_config`.

    Raises:
        ConfigurationError: as there.
    """
    split = taken.consumer(config, _NAMES)
    return {**split.client, **{f"{part}.deserializer": composable for part, composable in split.parts.items()}}


def async_consumer_config(config: Mapping[str, object]) -> dict[str, Any]:
    """The configuration of an `AsyncDeserializingConsumer` of `confluent_kafka.aio`; otherwise as `consumer_config`.

    Payloads are downloaded off the event loop. The deserializers are closed with `aclose()`.

    Raises:
        ConfigurationError: as there.
    """
    made = consumer_config(config)
    return {
        key: AwaitedDeserializer(value) if isinstance(value, ComposableDeserializer) else value
        for key, value in made.items()
    }


class AwaitedDeserializer:
    """Deserializers as `confluent_kafka.aio` takes them: the caller awaits the result.

    Args:
        composable: the deserializers.
    """

    def __init__(self, composable: ComposableDeserializer) -> None:
        self._composable = composable
        self._threads = Threads()

    async def __call__(self, data: bytes | None, context: Any) -> Any:
        """As `ComposableDeserializer.deserialize`, without blocking the loop on a store."""
        return await self._threads.run(self._composable, context.topic, context.headers, data)

    async def aclose(self) -> None:
        """Closes the deserializers, once no store call is under way."""
        await self._threads.close()
        self._composable.close()
