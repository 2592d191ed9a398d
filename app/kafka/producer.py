"""The controls of an aiokafka producer: batches, sequence numbers and transactions beyond its public methods."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.producer.transaction_manager import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, PidAndEpoch, TransactionState

from app.kafka.gate import Gate
from app.kafka.shielded import heard
from transforms.record_batch import Stamp

__all__ = ["UNLIMITED_BYTES", "ProducerControls"]

UNLIMITED_BYTES = 2**31 - 1  # Kafka's lengths are signed 32-bit numbers

_STOP_SENDER_S = 1.0
_OPEN = (TransactionState.IN_TRANSACTION, TransactionState.ABORTABLE_ERROR)


class ProducerControls:
    """Controls one aiokafka producer, on its event loop.

    Args:
        producer: started or not.

    Attributes:
        codec: the name of the compression; None for none.
        codec_number: the same, as record batches have it.
        acknowledged: False with `acks=0`.
        max_request_bytes: `max.request.size`.
        transactional: True if the producer has a `transactional.id`.
    """

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer
        Gate.of(producer)  # a client that was closed connects no more
        self._transactions: Any = producer._txn_manager
        self.codec: str | None = producer._compression_type
        self.codec_number: int = producer._message_accumulator._compression_type
        self.acknowledged: bool = producer._sender._acks != 0
        self.max_request_bytes: int = producer._max_request_size
        self.transactional = self._transactions is not None and self._transactions.transactional_id is not None

    @property
    def closed(self) -> bool:
        """True once the producer has been stopped."""
        return bool(self._producer._closed)

    # --- batches -----------------------------------------------------------------------------------------------------

    async def partition(self, topic: str, partition: int | None, key: bytes | None) -> int:
        """The partition of a record: the given one, or the choice of the producer's partitioner.

        Raises:
            KafkaTimeoutError: the cluster does not know the topic.
        """
        await self._producer.partitions_for(topic)
        number: int = self._producer._partition(topic, partition, None, None, key, None)
        return number

    def builder(self, **serializers: Callable[[Any], bytes] | None) -> BatchBuilder:
        """An empty batch; `key_serializer` and `value_serializer` are None for none."""
        return self._producer._message_accumulator.create_builder(**serializers)

    def hear_failures(self) -> None:
        """Lets the event loop not log what fails in the producer, where each failed batch is told by who sent it."""
        held = self._producer._message_accumulator
        fail_all = held.fail_all

        def failing(error: BaseException) -> None:
            self._end_commit()
            self._hear_batches()
            fail_all(error)

        held.fail_all = failing

    async def queue(self, batch: BatchBuilder, place: TopicPartition, timeout_s: float) -> asyncio.Future[Any]:
        """Queues a batch as `send_batch` does, for a partition that is known, within a time of the caller's.

        Raises:
            KafkaTimeoutError: the batches before it have not left in time.
        """
        queued: asyncio.Future[Any] = await self._producer._message_accumulator.add_batch(batch, place, timeout_s)
        return queued

    # --- sequence numbers --------------------------------------------------------------------------------------------

    def next_stamp(self, place: TopicPartition) -> Stamp | None:
        """The stamp that the next batch of a partition gets; None if the producer is not idempotent."""
        manager = self._transactions
        if manager is None:
            return None
        return Stamp(manager.producer_id, manager.producer_epoch, manager.sequence_number(place))

    def wrap(self, place: TopicPartition) -> None:
        """Lets 0 follow the largest sequence number, as Kafka wants it; with aiokafka it is the smallest."""
        if self._transactions is not None and self._transactions.sequence_number(place) < 0:
            self._transactions._sequence_numbers[place] += 2**31

    def rewind(self, place: TopicPartition, stamp: Stamp, records: int) -> None:
        """Takes back the sequence numbers of the last batch of a partition, which is not in the log.

        The next batch has to take them; aiokafka itself never goes back.

        Args:
            place: the partition.
            stamp: of the batch.
            records: of the batch.
        """
        numbers = self._transactions._sequence_numbers
        if numbers[place] != stamp.sequence:
            expected = stamp.sequence + records
            assert numbers[place] in (expected, expected - 2**32), "something else has been sent to this partition"
            numbers[place] = stamp.sequence

    def take_back(self, place: TopicPartition, stamp: Stamp, records: int) -> None:
        """As `rewind`, unless the producer has got another id or epoch since, or has none."""
        manager = self._transactions
        if manager is not None and (stamp.producer_id, stamp.epoch) == (manager.producer_id, manager.producer_epoch):
            self.rewind(place, stamp, records)

    def forget_producer_id(self) -> None:
        """Lets aiokafka ask for a new producer id, or epoch, before the next batch; batches on their way keep theirs.

        Each partition begins again with sequence number 0.
        """
        manager = self._transactions
        manager._pid_and_epoch = PidAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        manager._pid_waiter = asyncio.get_running_loop().create_future()
        manager._sequence_numbers.clear()

    # --- transactions ------------------------------------------------------------------------------------------------

    @property
    def in_transaction(self) -> bool:
        """True while a transaction is open, and nothing in it has failed."""
        return self._transactions is not None and self._transactions.is_in_transaction()

    def begin_transaction(self) -> None:
        """Begins a transaction at once; `begin_transaction` of aiokafka lets other tasks run first."""
        self._transactions.begin_transaction()

    async def release_transaction(self, timeout_s: float, *, abort: bool) -> None:
        """Takes leave of the open transaction, if there is one.

        Args:
            timeout_s: how long to wait for the end of an abort.
            abort: whether to abort the transaction, so that readers need not wait until it times out.
        """
        self._hear_batches()  # nobody waits for them any more; they may still fail
        if abort and self._transactions.state in _OPEN:
            # Without a turn of the loop before it begins: the sender may find out then that it is fenced.
            with contextlib.suppress(KafkaError, TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._producer.abort_transaction()

    def renew_epoch(self) -> None:
        """Lets aiokafka ask for a new epoch before the next transaction; only between two transactions."""
        self.forget_producer_id()
        self._transactions.state = TransactionState.UNINITIALIZED
        self._transactions.notify_task_waiter()

    # --- the end -----------------------------------------------------------------------------------------------------

    async def abandon(self) -> None:
        """Stops the producer within about a second, and drops the batches that it still holds.

        `stop` of aiokafka would flush first, and would never end with a broker that is down.
        """
        self._end_commit()
        self._hear_batches()
        await self._producer.client.close()
        # What searches for a coordinator goes on searching.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._producer._sender.close(), _STOP_SENDER_S)
        self._drop_batches()
        await self._producer.stop()

    def _drop_batches(self) -> None:
        """Lets nothing wait for the batches that the producer holds: a task of its `stop` would, for ever."""
        held = self._producer._message_accumulator
        # Each takes itself off there when it is done, one that was to be sent again too.
        held._pending_batches.update(batch for batches in held._batches.values() for batch in batches)
        for batch in list(held._pending_batches):
            batch.future.cancel()

    def _end_commit(self) -> None:
        """Lets a commit that waits for batches end with them, without a request: they are not in the log."""
        if self.transactional:
            self._transactions.is_empty_transaction = _cancel  # aiokafka asks that next

    def _hear_batches(self) -> None:
        held = self._producer._message_accumulator
        for batch in [*held._pending_batches, *(batch for batches in held._batches.values() for batch in batches)]:
            batch.future.add_done_callback(heard)
            batch._drain_waiter.add_done_callback(heard)


def _cancel() -> bool:
    raise asyncio.CancelledError
