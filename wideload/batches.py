"""A producer whose batches are closed by what they are estimated to compress to, on aiokafka's producer (KIP-126)."""

from __future__ import annotations

from app.kafka.batches.client import BatchingProducer
from app.kafka.batches.numbers import BatchNumbers
from app.kafka.batches.outbox import Batches, BatchSettings, RecordRefusedError
from app.kafka.configured_batches import ConfiguredBatchingProducer
from transforms.record import Header, Record

__all__ = [
    "BatchNumbers",
    "BatchSettings",
    "Batches",
    "BatchingProducer",
    "ConfiguredBatchingProducer",
    "Header",
    "Record",
    "RecordRefusedError",
]
