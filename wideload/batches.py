"""A producer whose batches are closed by what they are estimated to compress to, on aiokafka's producer (KIP-126)."""

from __future__ import annotations

from app.kafka.batches import Batches, BatchingProducer, BatchNumbers, BatchSettings, RecordRefusedError
from transforms.record import Header, Record

__all__ = ["BatchNumbers", "BatchSettings", "Batches", "BatchingProducer", "Header", "Record", "RecordRefusedError"]
