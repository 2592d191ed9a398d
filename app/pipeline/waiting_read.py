"""What was read of one partition and waits to be admitted: batches, and the records of one that was taken apart."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from app.kafka.source_batch import SourceBatch, UnreadBatch
from transforms.record import SourceRecord

_MADE_AT_ONCE = 500
_LARGE_BATCH_BYTES = 1_048_576
_MADE_OF_LARGE = 8  # of a larger batch: the headers of one record may take 8 MiB as objects


@dataclass(slots=True, eq=False)
class WaitingRead:
    """What was read of one partition and waits, in order: the records of a batch that was taken apart, then batches.

    Attributes:
        records: the next ones of the batch that was taken apart.
        source: gives those behind them.
        batches: those behind that one.
        opened: bytes of the batch that was taken apart, before compression; 0 if there is none.
        for_work: whether the first record waits for room for its work, or behind records with work.
    """

    records: deque[SourceRecord] = field(default_factory=deque)
    source: Iterator[SourceRecord] = field(default_factory=lambda: iter(()))
    batches: deque[SourceBatch] = field(default_factory=deque)
    opened: int = 0
    for_work: bool = False

    def __bool__(self) -> bool:
        return bool(self.opened or self.batches)

    @property
    def size(self) -> int:
        """Bytes of the batches."""
        return self.opened + sum(batch.size for batch in self.batches)

    def open(self, limit: int) -> SourceBatch:
        """Takes the next batch apart, unless it holds more bytes than `limit`; returns it.

        Raises:
            CorruptRecordException: the batch cannot be read.
        """
        batch = self.batches.popleft()
        unread = batch.unread(limit)
        if unread is None:
            self.opened, self.source = batch.plain_bytes, batch.records()
        else:
            self.opened, self.source = batch.size, iter((unread,))
        return batch

    def make(self) -> bool:
        """Makes the next records of the batch that was taken apart, if there are none; False if there are no more."""
        if not self.records:
            count = _MADE_AT_ONCE if self.opened <= _LARGE_BATCH_BYTES else _MADE_OF_LARGE
            self.records.extend(itertools.islice(self.source, count))
        return bool(self.records)

    def forget(self) -> None:
        """Lets go of what was decompressed of batches that were looked at, and wait."""
        for batch in itertools.takewhile(lambda each: each.passes is not None, self.batches):
            batch.forget()

    @property
    def timestamp(self) -> int | None:
        """The timestamp of the first record that waits, in milliseconds since 1970; None if it is not known."""
        if self.records:
            return self.records[0].timestamp
        return self.batches[0].timestamp if self.batches and not self.opened else None

    @property
    def first(self) -> int | None:
        """The offset of the first record that waits; None if there is none.

        Raises:
            CorruptRecordException: the batch cannot be read.
        """
        if self.opened and self.make():
            record = self.records[0]
            return record.first if isinstance(record, UnreadBatch) else record.offset
        return self.batches[0].offset if self.batches else None
