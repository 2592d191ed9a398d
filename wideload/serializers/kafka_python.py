"""Serializers with kafka-python."""

from __future__ import annotations

from app.serializers.kafka_python import DeserializingConsumer, SerializingProducer

__all__ = ["DeserializingConsumer", "SerializingProducer"]
