"""Clients that write and read chunked topics by themselves, without a worker: aiokafka's own, with chunks inside.

Knows transforms, and of the application only how a client is configured and how topics are described.
"""

from app.chunks.consumer import AssemblingConsumer
from app.chunks.pending import AssembledRecord
from app.chunks.producer import ChunkedRecordMetadata, ChunkingProducer
from transforms.assembly import ChunkMessageId, Counts, Discarded
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
