"""The requests of transactions: which go beside each other, and how soon one is sent again."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import ConcurrentTransactions, CoordinatorLoadInProgressError, ProducerFenced

from app.kafka.gate import Call, Gate, Place, Send
from app.kafka.producer import ProducerControls
from app.kafka.transaction_requests import TransactionRequests
from tests.integration.way import MakeTopic

_LONG_S = 60.0
_AIOKAFKAS_S = 0.02

_REFUSED = {ConcurrentTransactions.errno}


async def test_waits_grow_and_begin_again() -> None:
    """While the marks of the last transaction are on their way, the first tries come soon, the later ones less so."""
    producer = AIOKafkaProducer(transactional_id="any")
    requests = TransactionRequests(producer, "any-group")
    waits = [requests.wait_s(_REFUSED, 0.1) for _ in range(7)]
    assert waits == [0.001, 0.002, 0.004, 0.008, 0.016, 0.02, 0.02]
    assert requests.wait_s({0}, None) is None
    assert requests.wait_s(_REFUSED, 0.02) == 0.001
    # What else a broker says is waited for as aiokafka does it.
    assert requests.wait_s({CoordinatorLoadInProgressError.errno}, 0.1) == 0.1
    assert requests.wait_s(_REFUSED | {0}, 0.1) == 0.001
    await producer.stop()


async def test_offsets_that_fail_when_nobody_waits_for_them_are_not_logged() -> None:
    """Their transaction took too long, and its writes report why; the event loop would log a traceback."""
    producer, troubles = AIOKafkaProducer(transactional_id="any"), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
    TransactionRequests(producer, "any-group")
    producer._txn_manager.set_pid_and_epoch(1, 0)
    ProducerControls(producer).begin_transaction()
    sending = asyncio.create_task(producer.send_offsets_to_transaction({TopicPartition("t", 0): (1, "")}, "any-group"))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    del sending
    producer._txn_manager.fatal_error(ProducerFenced())
    await asyncio.sleep(0)
    gc.collect()
    assert troubles == []
    await producer.stop()


async def test_the_group_is_added_beside_the_batches(broker: str, make_topic: MakeTopic) -> None:
    """The coordinator has the group before there are offsets; offsets and end follow, one transaction after another."""
    source, sink = make_topic(1), make_topic(1)
    async with AIOKafkaProducer(bootstrap_servers=broker, transactional_id=f"{sink}-id") as producer:
        controls, sent, added = ProducerControls(producer), list[str](), asyncio.Event()
        TransactionRequests(producer, sink)

        async def seen(call: Call, send: Send) -> Any:
            sent.append(type(call.request).__name__)
            response = await send()
            if type(call.request).__name__.startswith("AddOffsets") and not response.error_code:
                added.set()
            return response

        Gate.of(producer).set(Place.RECORDS, {object: seen})
        for offset in range(1, 4):
            added.clear()
            controls.begin_transaction()
            await producer.send_and_wait(sink, b"x", partition=0)
            await asyncio.wait_for(added.wait(), 20)
            await producer.send_offsets_to_transaction({TopicPartition(source, 0): (offset, "")}, sink)
            await producer.commit_transaction()
    for name in ("ProduceRequest", "AddOffsetsToTxnRequest", "TxnOffsetCommitRequest", "EndTxnRequest"):
        assert sum(each.startswith(name) for each in sent) >= 3, sent


async def test_the_next_transaction_begins_soon(broker: str, make_topic: MakeTopic) -> None:
    """Where the coordinator still ends the last one, no try waits as long as aiokafka would."""
    sink = make_topic(1)
    loop = asyncio.get_running_loop()
    refused, waits, last_s = False, list[float](), 0.0
    async with AIOKafkaProducer(bootstrap_servers=broker, transactional_id=f"{sink}-id") as producer:
        controls = ProducerControls(producer)
        TransactionRequests(producer, sink)

        async def seen(call: Call, send: Send) -> Any:
            nonlocal refused, last_s
            if not type(call.request).__name__.startswith("AddPartitions"):
                return await send()
            if refused:
                waits.append(loop.time() - last_s)
            response = await send()
            last_s = loop.time()
            refused = any(code in _REFUSED for _, each in response.errors for _, code in each)
            return response

        Gate.of(producer).set(Place.RECORDS, {object: seen})
        async with asyncio.timeout(_LONG_S):
            # Until a request has come too soon, which takes a broker that is slow to end one; aiokafka waits 20 ms.
            while min(waits, default=1.0) >= _AIOKAFKAS_S:
                controls.begin_transaction()
                await producer.send_and_wait(sink, b"x", partition=0)
                await producer.commit_transaction()
