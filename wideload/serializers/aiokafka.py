"""Serializers with aiokafka."""

from __future__ import annotations

from app.serializers.aiokafka import DeserializingConsumer, SerializingProducer

__all__ = ["DeserializingConsumer", "SerializingProducer"]
