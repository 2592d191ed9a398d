"""The controls of an aiokafka producer, on a producer that has no cluster."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaTimeoutError, NotLeaderForPartitionError, ProducerFenced, TopicAuthorizationFailedError
from aiokafka.producer.transaction_manager import TransactionResult, TransactionState

from app.kafka.producer import ProducerControls
from app.kafka.transaction_requests import TransactionRequests
from app.log_filters import calm_clients
from transforms.record_batch import Stamp

PLACE = TopicPartition("t", 0)


@asynccontextmanager
async def controlled(**arguments: Any) -> AsyncIterator[tuple[AIOKafkaProducer, ProducerControls]]:
    """A producer that has an id and has not been started."""
    producer = AIOKafkaProducer(**arguments)
    if producer._txn_manager is not None:
        producer._txn_manager.set_pid_and_epoch(7, 3)
    try:
        yield producer, ProducerControls(producer)
    finally:
        await producer.stop()


async def test_what_a_producer_is() -> None:
    """The settings that a producer was made with."""
    async with controlled(acks=0, compression_type="lz4", max_request_size=99) as (_, controls):
        assert (controls.codec, controls.codec_number, controls.acknowledged) == ("lz4", 3, False)
        assert (controls.transactional, controls.in_transaction, controls.next_stamp(PLACE)) == (False, False, None)
        assert (controls.max_request_bytes, controls.closed) == (99, False)
    assert controls.closed
    async with controlled(transactional_id="p:t:0") as (_, controls):
        assert (controls.codec, controls.codec_number, controls.acknowledged) == (None, 0, True)
        assert controls.transactional


async def test_sequence_numbers_go_back_and_wrap() -> None:
    """What a refused batch has taken is taken again, over the largest number too; 0 follows that."""
    async with controlled(enable_idempotence=True) as (producer, controls):
        stamp = controls.next_stamp(PLACE)
        assert stamp == Stamp(7, 3, 0)
        producer._txn_manager.increment_sequence_number(PLACE, 5)
        controls.rewind(PLACE, stamp, 5)
        controls.rewind(PLACE, stamp, 5)  # it was not sent again meanwhile
        assert controls.next_stamp(PLACE) == stamp

        producer._txn_manager.increment_sequence_number(PLACE, 2**31 - 1)
        largest = controls.next_stamp(PLACE)
        assert largest == Stamp(7, 3, 2**31 - 1)
        producer._txn_manager.increment_sequence_number(PLACE, 1)
        controls.rewind(PLACE, largest, 1)
        assert controls.next_stamp(PLACE) == largest
        producer._txn_manager.increment_sequence_number(PLACE, 1)
        controls.wrap(PLACE)
        assert controls.next_stamp(PLACE) == Stamp(7, 3, 0)

        producer._txn_manager.increment_sequence_number(PLACE, 9)
        with pytest.raises(AssertionError, match="something else has been sent"):
            controls.rewind(PLACE, stamp, 5)


async def test_a_forgotten_id_is_asked_for_again() -> None:
    """Nothing is sent until there is another id, and each partition begins again."""
    async with controlled(enable_idempotence=True) as (producer, controls):
        producer._txn_manager.increment_sequence_number(PLACE, 5)
        controls.forget_producer_id()
        assert not producer._txn_manager.has_pid()
        waiting = asyncio.ensure_future(producer._txn_manager.wait_for_pid())
        await asyncio.sleep(0)
        producer._txn_manager.set_pid_and_epoch(8, 0)
        await waiting
        assert controls.next_stamp(PLACE) == Stamp(8, 0, 0)


async def test_transactions() -> None:
    """One begins at once; between two of them another epoch can be asked for."""
    async with controlled(transactional_id="p:t:0") as (producer, controls):
        controls.begin_transaction()
        assert controls.in_transaction
        producer._txn_manager.committing_transaction()
        producer._txn_manager.complete_transaction()
        controls.renew_epoch()
        assert producer._txn_manager.state is TransactionState.UNINITIALIZED
        producer._txn_manager.set_pid_and_epoch(7, 4)
        controls.begin_transaction()
        assert controls.in_transaction


@pytest.mark.parametrize("abort", [True, False])
async def test_a_failed_transaction_is_released(*, abort: bool) -> None:
    """It is aborted if that is wanted, in bounded time; its error is no surprise to the event loop."""
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    async with controlled(transactional_id="p:t:0") as (producer, controls):
        TransactionRequests(producer, "g")
        await controls.release_transaction(0.01, abort=abort)  # none has begun
        controls.begin_transaction()
        producer._txn_manager.error_transaction(TopicAuthorizationFailedError("t"))
        await controls.release_transaction(0.01, abort=abort)
        state = TransactionState.ABORTING_TRANSACTION if abort else TransactionState.ABORTABLE_ERROR
        assert producer._txn_manager.state is state
        # aiokafka makes another future for it, which nobody waits for.
        producer._txn_manager.fatal_error(ProducerFenced())
        producer._txn_manager._transaction_waiter = None
    assert not unseen


async def test_a_transaction_that_is_fenced_as_it_is_released() -> None:
    """The sender learns it between the look at the state and the abort: there is nothing to abort, and no error."""
    async with controlled(transactional_id="p:t:0") as (producer, controls):
        TransactionRequests(producer, "g")
        controls.begin_transaction()
        releasing = asyncio.create_task(controls.release_transaction(5, abort=True))
        asyncio.get_running_loop().call_soon(producer._txn_manager.fatal_error, ProducerFenced())
        await releasing
        assert producer._txn_manager.is_fatal_error()


async def test_batches_are_queued() -> None:
    """One batch of a partition at a time, within the time of who asks."""
    async with controlled() as (producer, controls):
        batch = controls.builder(value_serializer=str.encode)
        batch.append(timestamp=1, key=None, value="text", headers=[])
        batch.close()
        future = await controls.queue(batch, PLACE, 1)
        with pytest.raises(KafkaTimeoutError):
            _ = await controls.queue(controls.builder(), PLACE, 0.01)
        producer._message_accumulator.fail_all(TopicAuthorizationFailedError("t"))
        with pytest.raises(TopicAuthorizationFailedError):
            await future


async def test_abandoned_it_stops_with_batches_in_it() -> None:
    """Nobody waits for what it still holds."""
    producer = AIOKafkaProducer()
    controls = ProducerControls(producer)
    batch = controls.builder()
    batch.append(timestamp=1, key=None, value=b"", headers=[])
    _ = await controls.queue(batch, PLACE, 1)
    async with asyncio.timeout(2):
        await controls.abandon()
    assert controls.closed


async def test_abandoned_it_leaves_no_request_that_waits() -> None:
    """A request that has failed waits for a look at the cluster, which nobody takes any more."""
    producer = AIOKafkaProducer()
    client = producer.client
    waiting = asyncio.ensure_future(client.force_metadata_update())
    await ProducerControls(producer).abandon()
    await asyncio.wait([waiting], timeout=5)
    assert waiting.done()


@pytest.mark.parametrize("again", [False, True], ids=["on its way", "to be sent again"])
async def test_an_abandoned_producer_lets_go_of_its_batches(*, again: bool) -> None:
    """Nobody waits for a batch that is not sent any more, wherever it stands; and nothing is logged for it."""
    errors: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["message"]))
    async with controlled(enable_idempotence=True) as (producer, controls):
        builder = controls.builder()
        builder.append(key=b"k", value=b"v", timestamp=1)
        future = await controls.queue(builder, PLACE, 5)
        batch = producer._message_accumulator._pop_batch(PLACE)
        if again:
            producer._message_accumulator.reenqueue(batch)
        await controls.abandon()
        await asyncio.wait([future], timeout=5)
        assert future.cancelled()
        await asyncio.wait_for(producer._message_accumulator.flush(), 5)
    assert errors == []


@asynccontextmanager
async def nothing_logged() -> AsyncIterator[None]:
    """Fails if the log of a worker has a failure that nobody has looked at, or a task that never ended."""
    logged: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = logged.append  # type: ignore[method-assign,assignment]
    logger = logging.getLogger("asyncio")
    calm_clients(whole=True)
    gc.collect()  # what other tests have left
    logger.addHandler(handler)
    try:
        yield
        await asyncio.sleep(0)
        gc.collect()
    finally:
        logger.removeHandler(handler)
    assert [each.getMessage() for each in logged] == []


async def _batch(controls: ProducerControls, partition: int) -> asyncio.Future[Any]:
    builder = controls.builder()
    builder.append(key=b"k", value=b"v", timestamp=1)
    return await controls.queue(builder, TopicPartition("t", partition), 5)


async def test_what_fails_while_a_transaction_is_released_is_not_logged() -> None:
    """Nobody waits for a batch of a flow that has ended; its leader may be lost while the transaction is aborted."""
    async with nothing_logged(), controlled(transactional_id="p:t:0") as (producer, controls):
        controls.begin_transaction()
        (await _batch(controls, 0)).cancel()
        await controls.release_transaction(0, abort=True)
        producer._message_accumulator._pop_batch(TopicPartition("t", 0)).failure(NotLeaderForPartitionError())
        await asyncio.sleep(0)
        gc.collect()


async def test_what_is_fenced_fails_without_a_line() -> None:
    """A batch on its way, one that waits, one that nobody waits for, and the commit of all three."""
    async with nothing_logged():
        producer = AIOKafkaProducer(transactional_id="p:t:0")
        controls = ProducerControls(producer)
        producer._txn_manager.set_pid_and_epoch(7, 3)
        TransactionRequests(producer, "g")
        controls.hear_failures()
        controls.begin_transaction()
        futures = [await _batch(controls, partition) for partition in range(3)]
        producer._message_accumulator._pop_batch(TopicPartition("t", 0))
        futures.pop().cancel()
        producer._txn_manager.committing_transaction()
        committing = asyncio.create_task(producer._sender._do_txn_commit(TransactionResult.COMMIT))
        await asyncio.sleep(0)
        ended = asyncio.create_task(_fail(ProducerFenced()))
        await asyncio.wait([ended])
        producer._sender._fail_all(ended)
        for future in futures:
            with pytest.raises(ProducerFenced):
                await future
        await asyncio.wait([committing], timeout=5)
        assert committing.cancelled()
        await producer.stop()
        del producer, controls, futures, future, ended, committing


async def _fail(error: Exception) -> None:
    raise error


async def test_abandoned_in_a_commit_it_sends_nothing_more() -> None:
    """The commit waited for batches that are dropped: it must not reach the coordinator, and its task ends."""
    async with nothing_logged():
        producer = AIOKafkaProducer(transactional_id="p:t:0")
        controls = ProducerControls(producer)
        producer._txn_manager.set_pid_and_epoch(7, 3)
        controls.begin_transaction()
        future = await _batch(controls, 0)
        producer._txn_manager.partition_added(TopicPartition("t", 0))
        producer._txn_manager.committing_transaction()
        asked: list[object] = []
        producer._sender._find_coordinator = lambda *_: asked.append(_)
        committing = asyncio.create_task(producer._sender._do_txn_commit(TransactionResult.COMMIT))
        await asyncio.sleep(0)
        await controls.abandon()
        await asyncio.wait([committing, future], timeout=5)
        assert committing.cancelled()
        assert future.cancelled()
        assert asked == []
        del producer, controls, future, committing
