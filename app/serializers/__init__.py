"""Serializers that write and read the worker's formats inside an application's own producer and consumer.

Imports `chunks`, `kafka` and `config`. Only the module that is named after a client imports this client, and `chunks`;
`faust` is one of them.
"""

from app.serializers.composable import ComposableDeserializer, ComposableSerializer
from app.serializers.large_message import LargeMessageDeserializer, LargeMessageSerializer
from app.serializers.wrapper import TypedWrapper, WrapperDeserializer, WrapperSerializer
from transforms.errors import (
    ConfigurationError,
    MalformedReferenceError,
    MalformedWrapperError,
    PayloadCorruptError,
    PayloadNotFoundError,
    PayloadStoreError,
    PayloadTooLargeError,
    RecordDeserializationError,
    ReferenceRefusedError,
    SerializationError,
    ValueTooLargeError,
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
    "RecordDeserializationError",
    "ReferenceRefusedError",
    "SerializationError",
    "TypedWrapper",
    "ValueTooLargeError",
    "WrapperDeserializer",
    "WrapperSerializer",
]
