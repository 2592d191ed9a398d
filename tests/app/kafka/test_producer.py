"""The controls of an aiokafka producer, on a producer that has no cluster."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import NotLeaderForPartitionError, ProducerFenced, TopicAuthorizationFailedError
from aiokafka.producer.transaction_manager import TransactionState

from app.kafka.producer import ProducerControls

PLACE = TopicPartition("t", 0)
pytestmark = pytest.mark.usefixtures("unlogged")  # nobody waits for what fails behind the end


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
    """In bounded time; what is lost meanwhile, and its own error, is no surprise to the event loop."""
    async with controlled(transactional_id="p:t:0") as (producer, controls):
        controls.silence_asyncio_warnings()
        await controls.abort_transaction(0.01)  # none has begun
        controls.begin_transaction()
        (await _batch(producer, 0)).cancel()
        producer._txn_manager.error_transaction(TopicAuthorizationFailedError("t"))
        await controls.abort_transaction(0.01)
        assert producer._txn_manager.state is TransactionState.ABORTING_TRANSACTION
        producer._message_accumulator._pop_batch(PLACE).failure(NotLeaderForPartitionError())
        # aiokafka makes another future for the transaction, which nobody waits for.
        await _fenced(producer)
        await asyncio.sleep(0)
        producer._txn_manager._transaction_waiter = None
        gc.collect()


async def test_a_transaction_that_is_fenced_as_it_is_aborted() -> None:
    """The sender learns it between the look at the state and the abort: there is nothing to abort, and no error."""
    async with controlled(transactional_id="p:t:0") as (producer, controls):
        controls.begin_transaction()
        aborting = asyncio.create_task(controls.abort_transaction(5))
        asyncio.get_running_loop().call_soon(producer._txn_manager.fatal_error, ProducerFenced())
        await aborting
        assert producer._txn_manager.is_fatal_error()


@pytest.mark.parametrize("where", ["held", "on its way", "to be sent again"])
async def test_an_abandoned_producer_lets_go_of_its_batches(where: str) -> None:
    """Nobody waits for a batch that is not sent any more, wherever it stands, nor for a look at the cluster."""
    async with controlled(enable_idempotence=True) as (producer, controls):
        looking = asyncio.ensure_future(producer.client.force_metadata_update())
        future = await _batch(producer, 0)
        if where != "held":
            batch = producer._message_accumulator._pop_batch(PLACE)
            if where == "to be sent again":
                producer._message_accumulator.reenqueue(batch)
        async with asyncio.timeout(10):
            await controls.abandon()
            await asyncio.wait([future, looking])
            await producer._message_accumulator.flush()
        assert (future.cancelled(), producer._closed) == (True, True)


async def test_what_is_fenced_fails_without_a_line() -> None:
    """A batch on its way, one that waits, one that nobody waits for, and their transaction."""
    async with controlled(transactional_id="p:t:0") as (producer, controls):
        controls.silence_asyncio_warnings()
        controls.begin_transaction()
        futures = [await _batch(producer, partition) for partition in range(3)]
        producer._message_accumulator._pop_batch(PLACE)
        futures.pop().cancel()
        await _fenced(producer)
        for future in futures:
            with pytest.raises(ProducerFenced):
                await future


async def _batch(producer: AIOKafkaProducer, partition: int) -> asyncio.Future[Any]:
    builder = producer.create_batch()
    builder.append(key=b"k", value=b"v", timestamp=1)
    place = TopicPartition("t", partition)
    queued: asyncio.Future[Any] = await producer._message_accumulator.add_batch(builder, place, 5)
    return queued


async def _fenced(producer: AIOKafkaProducer) -> None:
    """The task that sends has ended so."""

    async def fail() -> None:
        raise ProducerFenced

    ended = asyncio.create_task(fail())
    await asyncio.wait([ended])
    producer._sender._fail_all(ended)
