"""Serializers with confluent-kafka."""

from __future__ import annotations

from app.serializers.confluent import (
    AwaitedDeserializer,
    DeserializingConsumer,
    SerializingProducer,
    async_consumer_config,
    consumer_config,
    producer_config,
)

__all__ = [
    "AwaitedDeserializer",
    "DeserializingConsumer",
    "SerializingProducer",
    "async_consumer_config",
    "consumer_config",
    "producer_config",
]
