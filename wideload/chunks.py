"""Clients that write and read chunked topics without a worker: those of aiokafka, with chunks inside."""

from __future__ import annotations

from app.chunks import (
    AssembledRecord,
    AssemblingConsumer,
    ChunkedRecordMetadata,
    ChunkError,
    ChunkingProducer,
    ChunkMessageId,
    Counts,
    Discarded,
)

__all__ = [
    "AssembledRecord",
    "AssemblingConsumer",
    "ChunkError",
    "ChunkMessageId",
    "ChunkedRecordMetadata",
    "ChunkingProducer",
    "Counts",
    "Discarded",
]
