"""Serializers for the producers and consumers of an application; there is a module for each client below.

Importing this imports none of the clients.
"""

from __future__ import annotations

from app.serializers import (
    ComposableDeserializer,
    ComposableSerializer,
    ConfigurationError,
    LargeMessageDeserializer,
    LargeMessageSerializer,
    MalformedReferenceError,
    MalformedWrapperError,
    MessageWrapper,
    PayloadCorruptError,
    PayloadNotFoundError,
    PayloadStoreError,
    PayloadTooLargeError,
    RecordDeserializationError,
    ReferenceRefusedError,
    SerializationError,
    TypedWrapper,
    ValueTooLargeError,
    WrapperDeserializer,
    WrapperSerializer,
)

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
    "RecordDeserializationError",
    "ReferenceRefusedError",
    "SerializationError",
    "TypedWrapper",
    "ValueTooLargeError",
    "WrapperDeserializer",
    "WrapperSerializer",
]
