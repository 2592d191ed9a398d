"""Clients that write and read chunked topics without a worker: aiokafka's own clients, extended with chunks.

Imports `kafka` and `config`.
"""

from app.chunks.consumer import AssemblingConsumer
from app.chunks.producer import ChunkedRecordMetadata, ChunkingProducer
from app.chunks.record_inbox import AssembledRecord
from transforms.chunked_message import ChunkMessageId, Counts, Discarded
from transforms.errors import ChunkError

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
