"""aiokafka's producer beyond its public methods: the only module that touches its private names."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError
from aiokafka.producer.message_accumulator import BatchBuilder, MessageBatch

from app.kafka.batches.batch import Batch
from app.kafka.gate import Gate
from app.kafka.shielded import retrieve_exception
from transforms.record_batch import RecordBatch

TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)

_STOP_SENDER_S = 1.0


class ProducerControls:
    """Controls one aiokafka producer, on its event loop.

    Args:
        producer: started or not.

    Attributes:
        codec: the number of the compression in record batches.
        acknowledged: False with `acks=0`.
        transactional: True if the producer has a `transactional.id`.
    """

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer
        self._held: Any = producer._message_accumulator
        self._transactions: Any = producer._txn_manager
        self.codec: int = self._held._compression_type
        self.acknowledged: bool = producer._sender._acks != 0
        self.transactional = self._transactions is not None and self._transactions.transactional_id is not None

    async def partition(self, topic: str, partition: int | None, key: bytes | None) -> int:
        """The partition of a record: the given one, or the one that the producer's partitioner chooses.

        Raises:
            KafkaTimeoutError: the cluster does not know the topic.
        """
        await self._producer.partitions_for(topic)
        number: int = self._producer._partition(topic, partition, None, None, key, None)
        return number

    def silence_asyncio_warnings(self) -> None:
        """Keeps asyncio from logging failures in the producer: the sender of a batch, or of a commit, reports them."""
        fail_all = self._held.fail_all

        def failing(error: BaseException) -> None:
            self._quieten_batches()
            fail_all(error)
            asyncio.get_running_loop().call_soon(self._quieten_transaction)  # aiokafka fails the transaction next

        self._held.fail_all = failing

    def _quieten_batches(self) -> None:
        for batch in [*self._held._pending_batches, *self._queued]:
            batch.future.add_done_callback(retrieve_exception)
            batch._drain_waiter.add_done_callback(retrieve_exception)

    def _quieten_transaction(self) -> None:
        if ends := self.transactional and self._transactions.wait_for_transaction_end():
            ends.add_done_callback(retrieve_exception)

    @property
    def _queued(self) -> list[Any]:
        return [batch for batches in self._held._batches.values() for batch in batches]

    # --- transactions ------------------------------------------------------------------------------------------------

    @property
    def in_transaction(self) -> bool:
        """True while a transaction is open, and nothing in it has failed."""
        return self._transactions is not None and self._transactions.is_in_transaction()

    def begin_transaction(self) -> None:
        """Begins a transaction immediately; aiokafka's `begin_transaction` lets other tasks run first."""
        self._transactions.begin_transaction()
        self._quieten_transaction()

    async def abort_transaction(self, timeout_s: float) -> None:
        """Aborts the open transaction, if there is one, so that readers need not wait until it times out."""
        self._quieten_batches()  # nothing waits for them, and they may still fail
        # aiokafka asserts that a transaction is open, but the sender may just have found out that it is fenced.
        with contextlib.suppress(KafkaError, TimeoutError, AssertionError):
            async with asyncio.timeout(timeout_s):
                await self._producer.abort_transaction()

    def renew_id(self) -> None:
        """Makes aiokafka request a new producer id, or epoch, before the next batch; batches in flight keep theirs.

        The sequence numbers restart at 0. A transactional producer may do this only between two transactions.
        """
        manager = self._transactions
        manager.notify_task_waiter()
        type(manager).__init__(manager, manager.transactional_id, manager.transaction_timeout_ms)

    # --- the end -----------------------------------------------------------------------------------------------------

    async def abandon(self) -> None:
        """Stops the producer within about a second, and drops the batches that it still holds.

        aiokafka's `stop` would flush first, and would never end while a broker is down.
        """
        self._quieten_batches()
        await Gate.of(self._producer).client.close()  # with a gate, it opens no more connections after that
        # A search for a coordinator would continue: the time-out ends it.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._producer._sender.close(), _STOP_SENDER_S)
        # Otherwise a task of `stop` would wait for them forever. Each batch removes itself when it is done, including
        # one that was to be sent again.
        self._held._pending_batches.update(self._queued)
        for batch in list(self._held._pending_batches):
            batch.future.cancel()
        await self._producer.stop()


class RefusedBatches:
    """Splits batches of aiokafka's `send` that are refused for their size, until a record is refused alone (KIP-126).

    aiokafka fails all records of such a batch, and has used up their sequence numbers. Here order and sequence numbers
    are as if the parts had been sent in the first place. aiokafka sends one batch of a partition at a time, so nothing
    overtakes them. A batch that was sent before without an answer may be in the log, and is not split. Neither is a
    batch of `send_batch`, which has one future for all its records.

    Args:
        producer: started or not.
        timeout_s: its `request.timeout.ms`.
        refused: called with the topic of each batch that was too large.
        settled: called with the future of each other batch, once it is done.
    """

    def __init__(
        self,
        producer: AIOKafkaProducer,
        timeout_s: float,
        refused: Callable[[str], None],
        settled: Callable[[asyncio.Future[Any]], None],
    ) -> None:
        self._controls = ProducerControls(producer)
        self._held: Any = producer._message_accumulator
        self._transactions: Any = producer._txn_manager
        self._timeout_s = timeout_s
        self._refused = refused
        self._settled = settled
        self._append: Callable[[BatchBuilder, TopicPartition], MessageBatch] = self._held._append_batch
        self._held._append_batch = lambda builder, place: self._watched(self._append(builder, place))

    def _watched(self, batch: MessageBatch) -> MessageBatch:
        batch.failure = partial(self._failed, batch, batch.failure)
        batch.future.add_done_callback(self._settled)
        return batch

    def _failed(self, batch: MessageBatch, fail: Callable[[BaseException], None], exception: BaseException) -> None:
        """Takes the place of `MessageBatch.failure`."""
        if not isinstance(exception, TOO_LARGE):
            fail(exception)
            return
        self._refused(batch.tp.topic)
        if batch.retry_count > 1:
            fail(exception)
            return
        data = RecordBatch.read(memoryview(bytes(batch.get_data_buffer())))
        if self._transactions is not None and self._transactions.producer_id == data.producer_id:
            self._transactions.increment_sequence_number(batch.tp, -batch.record_count)  # it is not in the log
        batch.future.remove_done_callback(self._settled)
        if not len(batch._msg_futures) == batch.record_count > 1:
            fail(exception)
            return
        whole = Batch[Any](None, 0.0, data.codec, transactional=self._controls.transactional, whole=data)
        futures = iter(batch._msg_futures)
        parts = []
        for records in whole.divided():
            part = MessageBatch(batch.tp, records, self._timeout_s, 0)
            part.append = _takes_no_more  # `send` calls it; our batch has another signature, and is closed
            part._msg_futures += [
                (future, SimpleNamespace(offset=offset, timestamp=metadata.timestamp))
                for offset, (future, metadata) in zip(range(records.records), futures, strict=False)
            ]
            parts.append(self._watched(part))
        self._held._batches[batch.tp].extendleft(reversed(parts))
        for part in parts:
            # A task that waits for the batch, such as `flush`, waits for all parts.
            part.future.add_done_callback(lambda _: _settle(batch, parts))


def _takes_no_more(*_: object, **__: object) -> None:
    """Takes the place of `MessageBatch.append`."""


def _settle(batch: MessageBatch, parts: list[MessageBatch]) -> None:
    if all(part.future.done() for part in parts) and not batch.future.done():
        batch.future.set_result(None)
