"""Serializers for clients that can change: the formats of the worker, written and read inside a producer or consumer.

Knows transforms and stores, and nothing of the worker. Neither Faust nor any Kafka client is imported by this package
itself; the module named after a client imports that one.
"""

from app.serializers.composable import ComposableDeserializer, ComposableSerializer
from app.serializers.large_message import LargeMessageDeserializer, LargeMessageSerializer
from app.serializers.wrapper import WrapperDeserializer, WrapperSerializer
from transforms.errors import (
    ConfigurationError,
    MalformedReferenceError,
    MalformedWrapperError,
    PayloadCorruptError,
    PayloadNotFoundError,
    PayloadStoreError,
    PayloadTooLargeError,
    ReferenceRefusedError,
    SerializationError,
)
from transforms.wrapper import MessageWrapper

__all__ = [
    "ComposableDeserializer",
    "ComposableSerializer",
    "ConfigurationError",
    "LargeMessageDeserializer",
    "LargeMessageSerializer",
    "MalformedReferenceError",
    "MalformedWrapperError",
    "MessageWrapper",
    "PayloadCorruptError",
    "PayloadNotFoundError",
    "PayloadStoreError",
    "PayloadTooLargeError",
    "ReferenceRefusedError",
    "SerializationError",
    "WrapperDeserializer",
    "WrapperSerializer",
]
