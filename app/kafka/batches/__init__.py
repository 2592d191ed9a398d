"""A producer whose batches are closed by their compressed size, and split if the broker refuses them (KIP-126)."""

from app.kafka.batches.client import BatchingProducer
from app.kafka.batches.numbers import BatchNumbers
from app.kafka.batches.producer import Batches, BatchSettings, RecordRefusedError

__all__ = ["BatchNumbers", "BatchSettings", "Batches", "BatchingProducer", "RecordRefusedError"]
