"""Raw batches: of records that aiokafka's builder does not take, because the name of a header is not UTF-8."""

from __future__ import annotations

from collections.abc import Sequence

from app.kafka.batches.batch import WholeBuilder
from transforms.record import RecordLike
from transforms.record_batch import RecordBatch, pack

__all__ = ["raw_batch"]


def raw_batch(records: Sequence[RecordLike], *, transactional: bool = False) -> WholeBuilder:
    """An uncompressed batch of records, for `send_batch` of a producer.

    Args:
        records: one or more; the names of headers have bytes that are not UTF-8 by `surrogateescape`.
        transactional: whether it becomes part of a transaction.
    """
    return WholeBuilder(RecordBatch.read(memoryview(pack(records))), transactional=transactional, codec=0)
