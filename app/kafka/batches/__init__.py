"""The producer: batches closed by what they compress to, and split where the broker refuses them (seed 001)."""

from app.kafka.batches.client import BatchingProducer
from app.kafka.batches.numbers import BatchNumbers
from app.kafka.batches.producer import Batches, BatchSettings, RecordRefusedError

__all__ = ["BatchNumbers", "BatchSettings", "Batches", "BatchingProducer", "RecordRefusedError"]
