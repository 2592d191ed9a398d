"""Batches of an aiokafka producer that the broker refuses as too large: their halves go in their place.

aiokafka fails all records of such a batch. It has used up their sequence numbers, too, so an idempotent producer can
send no later batch to the partition. Source: seed 004, KIP-126.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import MessageSizeTooLargeError, RecordListTooLargeError
from aiokafka.producer.message_accumulator import BatchBuilder, MessageBatch
from aiokafka.record.default_records import DefaultRecordBatch

from app.kafka.producer import ProducerControls
from transforms.record_batch import Stamp

__all__ = ["RefusedBatches"]

_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


class RefusedBatches:
    """Splits what a producer sends and its topic refuses, until a record is refused alone; then that one fails.

    Order and sequence numbers are as if the halves had been sent at first. aiokafka has one batch of a partition at a
    time on its way, so nothing overtakes them. What was sent before without an answer may be in the log: that is not
    split, nor is a batch of `send_batch`, which has one future for all its records.

    Args:
        producer: started or not.
        refused: called with the topic of each batch that was too large.
        settled: called with the future of each other batch, once that is done.
    """

    def __init__(
        self,
        producer: AIOKafkaProducer,
        refused: Callable[[str], None],
        settled: Callable[[asyncio.Future[Any]], None],
    ) -> None:
        self._controls = ProducerControls(producer)
        self._accumulator: Any = producer._message_accumulator
        self._refused = refused
        self._settled = settled
        self._append: Callable[[BatchBuilder, TopicPartition], MessageBatch] = self._accumulator._append_batch
        self._accumulator._append_batch = self._appended

    def _appended(self, builder: BatchBuilder, place: TopicPartition) -> MessageBatch:
        return self._watched(self._append(builder, place))

    def _watched(self, batch: MessageBatch) -> MessageBatch:
        batch.failure = partial(self._failed, batch, batch.failure)
        batch.future.add_done_callback(self._settled)
        return batch

    def _failed(self, batch: MessageBatch, fail: Callable[[BaseException], None], exception: BaseException) -> None:
        """Takes the place of `MessageBatch.failure`."""
        if not isinstance(exception, _TOO_LARGE):
            fail(exception)
            return
        self._refused(batch.tp.topic)
        if batch.retry_count > 1:
            fail(exception)
            return
        sent = DefaultRecordBatch(bytes(batch.get_data_buffer()))
        stamp = Stamp(sent.producer_id, sent.producer_epoch, sent.base_sequence)
        self._controls.take_back(batch.tp, stamp, batch.record_count)
        batch.future.remove_done_callback(self._settled)
        waiting = batch._msg_futures
        halves = self._halves(batch, list(sent)) if len(waiting) == batch.record_count > 1 else ()
        if not halves:
            fail(exception)
            return
        for half in reversed(halves):
            self._accumulator._batches[batch.tp].appendleft(half)
        for half in halves:
            # Whoever waits for the batch, as `flush` does, waits for both.
            half.future.add_done_callback(lambda _: _settle(batch, halves))

    def _halves(self, batch: MessageBatch, records: Sequence[Any]) -> Sequence[MessageBatch]:
        """Two batches with the records of a batch, and their futures; none if one of them takes not all of its half."""
        middle = len(records) // 2
        halves = []
        for start, end in ((0, middle), (middle, len(records))):
            builder = self._controls.builder()
            half = MessageBatch(batch.tp, builder, batch._ttl, 0)
            for record, (future, _) in zip(records[start:end], batch._msg_futures[start:end], strict=True):
                metadata = builder.append(
                    timestamp=record.timestamp, key=record.key, value=record.value, headers=record.headers
                )
                if metadata is None:
                    return ()
                half._msg_futures.append((future, metadata))
            builder.close()
            halves.append(self._watched(half))
        return halves


def _settle(batch: MessageBatch, halves: Sequence[MessageBatch]) -> None:
    if all(half.future.done() for half in halves) and not batch.future.done():
        batch.future.set_result(None)
