"""The producer: batches closed by what they compress to, and split where the broker refuses them (seed 001)."""

from app.batches.client import BatchingProducer
from app.batches.numbers import BatchNumbers
from app.batches.producer import Batches, BatchSettings, RecordRefusedError

__all__ = ["BatchNumbers", "BatchSettings", "Batches", "BatchingProducer", "RecordRefusedError"]
