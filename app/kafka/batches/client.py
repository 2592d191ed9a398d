"""A producer for single records, which returns a future for each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from typing import Self

from aiokafka import AIOKafkaProducer
from aiokafka.errors import IllegalOperation, KafkaTimeoutError, ProducerClosed
from aiokafka.structs import RecordMetadata

from app.kafka.batches.batch import Each
from app.kafka.batches.bounds import ByteLimit
from app.kafka.batches.numbers import BatchNumbers
from app.kafka.batches.outbox import Batches, BatchSettings
from transforms.batch_size import batch_of_one_bytes
from transforms.record import Record, RecordLike

DEFAULT_BUFFER_BYTES = 33_554_432
DEFAULT_MAX_BLOCK_S = 60.0


# The future of a record, its timestamp, and the bytes of the buffer that it holds.
_Receipt = tuple[asyncio.Future[RecordMetadata], int, int]


class BatchingProducer:
    """Sends records one by one through `Batches`, in the order of the calls, partition by partition.

    A record that its topic refuses fails alone, with `RecordRefusedError`; later records are still sent. If it is not
    known whether a batch is in the log, as when it is refused on a second try, all sending ends: every undelivered
    record fails, and so does each later `send`.

    Args:
        producer: an aiokafka producer, started; nothing else may send through it. It is not stopped here.
        settings: how batches are built.
        buffer_bytes: `buffer.memory`: `send` waits while the undelivered records need more; a single record may exceed
            it.
        max_block_s: `max.block.ms`: how long `send` waits.
        numbers: counts batches and records.
    """

    def __init__(
        self,
        producer: AIOKafkaProducer,
        settings: BatchSettings | None = None,
        *,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        max_block_s: float = DEFAULT_MAX_BLOCK_S,
        numbers: BatchNumbers | None = None,
    ) -> None:
        self._producer = producer
        self._batches = Batches(producer, settings, numbers=numbers, too_large=self._too_large)
        self._buffer = ByteLimit(buffer_bytes, self._batches.press)
        self._failures = 0
        self._max_block_s = max_block_s
        self._closed = False

    @property
    def numbers(self) -> BatchNumbers:
        """The counts of batches and records."""
        return self._batches.numbers

    def metrics(self) -> Mapping[str, object]:
        """The metrics under the names of Kafka's producer; those of the topics are below `topics`."""
        return self.numbers.page()

    async def send(
        self, topic: str, record: RecordLike, *, partition: int | None = None
    ) -> asyncio.Future[RecordMetadata]:
        """Sends a record; key and value may both be null.

        Args:
            topic: the topic.
            record: a timestamp below 0 means now.
            partition: of the topic; None lets aiokafka's partitioner choose it by the key.

        Returns:
            A future with the partition and the offset of the record, done once the record is in the log.

        Raises:
            KafkaTimeoutError: the buffer stayed full for `max_block_s`, or the topic stayed unknown.
            IllegalOperation: the producer is transactional, and no transaction has begun.
            KafkaError: the error that has ended all sending.
        """
        self._check()
        timestamp = record.timestamp if record.timestamp >= 0 else int(time.time() * 1000)
        size = batch_of_one_bytes(record)
        number = await self._batches.controls.partition(topic, partition, record.key)
        limit = await self._limit(topic)
        try:
            async with asyncio.timeout(self._max_block_s):
                await self._buffer.take(size)
        except TimeoutError as exc:
            raise KafkaTimeoutError(
                f"buffer.memory stayed full for the {self._max_block_s:g} s of max.block.ms"
            ) from exc
        try:
            self._check()
            outbox = self._batches.outbox(topic, number, self._receipts)
            outbox.limit_bytes = limit
            load = outbox.append(Record(record.key, record.value, record.headers, timestamp))
        except BaseException:
            self._buffer.give(size)
            raise
        outbox.send()
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        load.entries.append((future, timestamp, size))
        return future

    def _receipts(self) -> Each[_Receipt]:
        return Each(self._delivered, self._failed)

    def _delivered(self, receipts: Sequence[_Receipt], metadata: RecordMetadata) -> None:
        # As in aiokafka: with type 1, the broker's time of the batch counts (LogAppendTime), else that of each record.
        by_broker = metadata.timestamp_type == 1
        for index, (future, timestamp, held) in enumerate(receipts):
            self._buffer.give(held)
            if not future.done():
                future.set_result(
                    metadata._replace(
                        # If an earlier try has reached the broker, the broker may not know the offset any more.
                        offset=metadata.offset + index if metadata.offset >= 0 else -1,
                        timestamp=metadata.timestamp if by_broker else timestamp,
                    )
                )

    def _failed(self, receipts: Sequence[_Receipt], error: BaseException) -> None:
        self._failures += len(receipts)
        for future, _, held in receipts:
            self._buffer.give(held)
            if not future.done():
                future.set_exception(copy(error))  # otherwise each `await` would extend one traceback
                future.exception()  # marks it as retrieved, so that asyncio does not log it

    async def flush(self) -> None:
        """Waits until each record is delivered or has failed; batches do not linger."""
        await self._batches.flush()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """A transaction for the records that are sent in this block; an error aborts it.

        Raises:
            KafkaError: the transaction could not be committed, or a record could not be delivered.
        """
        await self._producer.begin_transaction()
        failures = self._failures
        try:
            yield self
            await self.flush()
            self._check(failures)
        except BaseException:
            await self.flush()
            await self._producer.abort_transaction()
            raise
        await self._producer.commit_transaction()

    async def close(self) -> None:
        """Delivers all records, and accepts no more. The aiokafka producer is not stopped."""
        self._closed = True
        await self.flush()

    async def _limit(self, topic: str) -> int | None:  # noqa: ARG002
        """The size of the largest batch that a topic accepts; None if it is not known."""
        return None

    def _too_large(self, topic: str, size: int) -> None:
        """Notes that a topic has refused a batch of several records for its size, `size` bytes."""

    def _check(self, failures: int | None = None) -> None:
        if self._batches.failure is not None:
            raise self._batches.failure
        if failures not in (None, self._failures):
            raise IllegalOperation(f"{self._failures - failures} records of the transaction were refused")
        if self._closed:
            raise ProducerClosed
        controls = self._batches.controls
        if controls.transactional and not controls.in_transaction:
            raise IllegalOperation("there is no transaction; send within `transaction()`")
