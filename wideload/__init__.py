"""Oversized messages travel through Kafka: the public face of Wideload.

    from wideload import LargeMessageSerializer, LargeMessageDeserializer, PayloadStore

A name is imported at its first use, so `import wideload` imports no Kafka client, no boto3 and no PySpark. The modules
below are public too; whatever `wideload._internal` holds is not. docs/python.md has the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wideload.chunks import (
        AssembledRecord,
        AssemblingConsumer,
        ChunkedRecordMetadata,
        ChunkError,
        ChunkingProducer,
        ChunkMessageId,
        Counts,
        Discarded,
    )
    from wideload.serializers import (
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
    from wideload.stores import PayloadStore, open_store

__all__ = [
    "AssembledRecord",
    "AssemblingConsumer",
    "ChunkError",
    "ChunkMessageId",
    "ChunkedRecordMetadata",
    "ChunkingProducer",
    "ComposableDeserializer",
    "ComposableSerializer",
    "ConfigurationError",
    "Counts",
    "Discarded",
    "LargeMessageDeserializer",
    "LargeMessageSerializer",
    "MalformedReferenceError",
    "MalformedWrapperError",
    "MessageWrapper",
    "PayloadCorruptError",
    "PayloadNotFoundError",
    "PayloadStore",
    "PayloadStoreError",
    "PayloadTooLargeError",
    "RecordDeserializationError",
    "ReferenceRefusedError",
    "SerializationError",
    "TypedWrapper",
    "ValueTooLargeError",
    "WrapperDeserializer",
    "WrapperSerializer",
    "open_store",
]

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these

    def __getattr__(name: str) -> object:
        """The name, imported from the first of the modules that has it; the last one imports aiokafka."""
        if name in __all__:
            from importlib import import_module

            for module in ("stores", "serializers", "chunks"):
                home = import_module(f"{__name__}.{module}")
                if name in home.__all__:
                    globals()[name] = found = getattr(home, name)
                    return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
