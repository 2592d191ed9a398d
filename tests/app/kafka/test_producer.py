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
from aiokafka.errors import NotLeaderForPartitionError, ProducerFenced, TopicAuthorizationFailedError
from aiokafka.producer.transaction_manager import TransactionState

from app.kafka.producer import ProducerControls
from app.log_filters import calm_clients

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
    async with controlled(acks=0, compression_type="lz4") as (_, controls):
        assert (controls.codec, controls.acknowledged) == (3, False)
        assert (controls.transactional, controls.in_transaction) == (False, False)
    async with controlled(transactional_id="p:t:0") as (_, controls):
        assert (controls.codec, controls.acknowledged, controls.transactional) == (0, True, True)


async def test_a_forgotten_id_is_asked_for_again() -> None:
    """Nothing is sent until there is another id, and each partition begins again."""
    async with controlled(enable_idempotence=True) as (producer, controls):
        producer._txn_manager.increment_sequence_number(PLACE, 5)
        controls.renew_id()
        assert not producer._txn_manager.has_pid()
        waiting = asyncio.ensure_future(producer._txn_manager.wait_for_pid())
        await asyncio.sleep(0)
        producer._txn_manager.set_pid_and_epoch(8, 0)
        await waiting
        assert producer._txn_manager.sequence_number(PLACE) == 0


async def test_transactions() -> None:
    """One begins immediately; between two of them another epoch can be asked for."""
    async with controlled(transactional_id="p:t:0") as (producer, controls):
        controls.begin_transaction()
        assert controls.in_transaction
        producer._txn_manager.committing_transaction()
        producer._txn_manager.complete_transaction()
        asked = producer._txn_manager.make_task_waiter()
        controls.renew_id()
        assert asked.done()
        assert producer._txn_manager.state is TransactionState.UNINITIALIZED
        producer._txn_manager.set_pid_and_epoch(7, 4)
        controls.begin_transaction()
        assert controls.in_transaction


async def test_a_failed_transaction_is_aborted() -> None:
    """In bounded time; its error is no surprise to the event loop."""
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    async with controlled(transactional_id="p:t:0") as (producer, controls):
        controls.keep_failures_quiet()
        await controls.abort_transaction(0.01)  # none has begun
        controls.begin_transaction()
        producer._txn_manager.error_transaction(TopicAuthorizationFailedError("t"))
        await controls.abort_transaction(0.01)
        assert producer._txn_manager.state is TransactionState.ABORTING_TRANSACTION
        # aiokafka makes another future for it, which nobody waits for.
        ended = asyncio.create_task(_fail(ProducerFenced()))
        await asyncio.wait([ended])
        producer._sender._fail_all(ended)
        await asyncio.sleep(0)
        producer._txn_manager._transaction_waiter = None
        gc.collect()
    assert not unseen


async def test_a_transaction_that_is_fenced_as_it_is_aborted() -> None:
    """The sender learns it between the look at the state and the abort: there is nothing to abort, and no error."""
    async with controlled(transactional_id="p:t:0") as (producer, controls):
        controls.begin_transaction()
        aborting = asyncio.create_task(controls.abort_transaction(5))
        asyncio.get_running_loop().call_soon(producer._txn_manager.fatal_error, ProducerFenced())
        await aborting
        assert producer._txn_manager.is_fatal_error()


async def test_abandoned_it_stops_with_batches_in_it() -> None:
    """Nobody waits for what it still holds."""
    producer = AIOKafkaProducer()
    controls = ProducerControls(producer)
    _ = await _batch(producer, 0)
    async with asyncio.timeout(2):
        await controls.abandon()
    assert producer._closed


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
        future = await _batch(producer, 0)
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


async def _batch(producer: AIOKafkaProducer, partition: int) -> asyncio.Future[Any]:
    builder = producer.create_batch()
    builder.append(key=b"k", value=b"v", timestamp=1)
    queued: asyncio.Future[Any] = await producer._message_accumulator.add_batch(
        builder, TopicPartition("t", partition), 5
    )
    return queued


async def test_what_fails_while_a_transaction_is_aborted_is_not_logged() -> None:
    """Nobody waits for a batch of a flow that has ended; its leader may be lost while the transaction is aborted."""
    async with nothing_logged(), controlled(transactional_id="p:t:0") as (producer, controls):
        controls.begin_transaction()
        (await _batch(producer, 0)).cancel()
        await controls.abort_transaction(0)
        producer._message_accumulator._pop_batch(TopicPartition("t", 0)).failure(NotLeaderForPartitionError())
        await asyncio.sleep(0)
        gc.collect()


async def test_what_is_fenced_fails_without_a_line() -> None:
    """A batch on its way, one that waits, one that nobody waits for, and their transaction."""
    async with nothing_logged():
        producer = AIOKafkaProducer(transactional_id="p:t:0")
        controls = ProducerControls(producer)
        producer._txn_manager.set_pid_and_epoch(7, 3)
        controls.keep_failures_quiet()
        controls.begin_transaction()
        futures = [await _batch(producer, partition) for partition in range(3)]
        producer._message_accumulator._pop_batch(TopicPartition("t", 0))
        futures.pop().cancel()
        ended = asyncio.create_task(_fail(ProducerFenced()))
        await asyncio.wait([ended])
        producer._sender._fail_all(ended)
        for future in futures:
            with pytest.raises(ProducerFenced):
                await future
        await producer.stop()
        del producer, controls, futures, future, ended


async def _fail(error: Exception) -> None:
    raise error
