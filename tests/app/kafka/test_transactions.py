"""The requests of transactions, and the start of a producer: which go beside each other, and when one is sent again."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.client import CoordinationType
from aiokafka.errors import (
    CommitFailedError,
    ConcurrentTransactions,
    CoordinatorLoadInProgressError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    KafkaTimeoutError,
    ProducerFenced,
)
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, TxnOffsetCommitRequest

from app.kafka import transactions
from app.kafka.gate import Call, Gate, Place, Send
from app.kafka.producer import ProducerControls
from app.kafka.structs import Member
from app.kafka.transactions import TransactionRequests
from app.kafka.writer import Writer
from tests.integration.way import MakeTopic

_LONG_S = 60.0
_AIOKAFKAS_S = 0.02

_REFUSED = {ConcurrentTransactions.errno}


async def test_waits_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the marks of the last transaction are on their way, the first tries come soon, the later ones less so."""
    waits: list[float] = []
    codes = [ConcurrentTransactions.errno] * 7 + [CoordinatorLoadInProgressError.errno]

    async def send() -> Any:
        return SimpleNamespace(error_code=codes.pop(0))

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    producer = AIOKafkaProducer(transactional_id="any")
    requests = TransactionRequests(producer, "any", "any-group")
    monkeypatch.setattr(asyncio, "sleep", sleep)
    response = await requests._add_group(Call(None, None), send)
    # What else a broker says is waited for as aiokafka does it.
    assert response.error_code == CoordinatorLoadInProgressError.errno
    assert waits == [0.001, 0.002, 0.004, 0.008, 0.016, 0.02, 0.02]
    await producer.stop()


async def test_offsets_that_fail_when_nobody_waits_for_them_are_not_logged() -> None:
    """Their transaction took too long, and its writes report why; the event loop would log a traceback."""
    producer, troubles = AIOKafkaProducer(transactional_id="any"), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
    writer = Writer(producer, transactional_id="any", group_id="any-group")
    producer._txn_manager.set_pid_and_epoch(1, 0)
    writer.begin()
    sending = asyncio.create_task(writer.commit({TopicPartition("t", 0): (1, "")}))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    del sending
    producer._txn_manager.fatal_error(ProducerFenced())
    await asyncio.sleep(0)
    gc.collect()
    await writer.stop()
    del writer, producer
    gc.collect()
    assert troubles == []


@pytest.mark.parametrize("code", [22, 25, 82])
async def test_offsets_of_a_former_owner_are_refused(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """They name the member as it was when the commit began; a refusal ends the transaction, which is aborted then."""
    member, sent = Member(4, "m", "one"), list[Any]()
    producer = AIOKafkaProducer(transactional_id="any")
    writer = Writer(producer, transactional_id="any", group_id="g", member=lambda: member)
    requests = writer._requests
    assert requests is not None

    async def send(offsets: Any, group: str) -> None:
        call = Call(None, TxnOffsetCommitRequest("any", group, 5, 6, [("raw", [(0, 9, "note")])]))
        call.change(lambda *_: SimpleNamespace(**WITH_EPOCHS))

        async def answer() -> Any:
            sent.append(call.prepare({28: (0, 3)}))
            return SimpleNamespace(errors=[("raw", [(0, code, {})], {})])

        response = await requests._commit_offsets(call, answer)
        assert response.errors == [("raw", [(0, GroupAuthorizationFailedError.errno)])]
        raise GroupAuthorizationFailedError(group)

    monkeypatch.setattr(producer, "send_offsets_to_transaction", send)
    with pytest.raises(CommitFailedError):
        await writer.commit({TopicPartition("raw", 0): (9, "note")})
    (struct,) = sent
    assert [getattr(struct, name) for name in struct.SCHEMA.names] == [
        *("any", "g", 5, 6, 4, "m", "one"),
        [("raw", [(0, 9, 3, "note", {})], {})],
        {},
    ]
    assert struct.encode()
    member = Member(-1, "", None)  # it is a member no more
    with pytest.raises(CommitFailedError):
        await writer.commit({TopicPartition("raw", 0): (9, "note")})
    assert len(sent) == 1
    await producer.stop()


WITH_EPOCHS: dict[str, Any] = {
    "transactional_id": "any",
    "group": "g",
    "producer_id": 5,
    "producer_epoch": 6,
    "topics": [("raw", [(0, 9, 3, "note")])],
}


async def test_the_group_is_added_beside_the_batches(broker: str, make_topic: MakeTopic) -> None:
    """The coordinator has the group before there are offsets; offsets and end follow, one transaction after another."""
    source, sink = make_topic(1), make_topic(1)
    async with AIOKafkaProducer(bootstrap_servers=broker, transactional_id=f"{sink}-id") as producer:
        controls, sent = ProducerControls(producer), list[str]()
        requests = TransactionRequests(producer, f"{sink}-id", sink)

        async def seen(call: Call, send: Send) -> Any:
            sent.append(type(call.request).__name__)
            return await send()

        Gate.of(producer).set(Place.RECORDS, {object: seen})
        for offset in range(1, 4):
            controls.begin_transaction()
            await producer.send_and_wait(sink, b"x", partition=0)
            assert requests._group is not None
            assert not (await requests._group).error_code
            await producer.send_offsets_to_transaction({TopicPartition(source, 0): (offset, "")}, sink)
            await producer.commit_transaction()
            assert requests._group is None
    for name in ("ProduceRequest", "AddOffsetsToTxnRequest", "TxnOffsetCommitRequest", "EndTxnRequest"):
        assert sum(each.startswith(name) for each in sent) >= 3, sent


async def test_the_next_transaction_begins_soon(broker: str, make_topic: MakeTopic) -> None:
    """Where the coordinator still ends the last one, no try waits as long as aiokafka would."""
    sink = make_topic(1)
    loop = asyncio.get_running_loop()
    refused, waits, last_s = False, list[float](), 0.0
    async with AIOKafkaProducer(bootstrap_servers=broker, transactional_id=f"{sink}-id") as producer:
        controls = ProducerControls(producer)

        async def seen(_: Call, send: Send) -> Any:
            nonlocal refused, last_s
            if refused:
                waits.append(loop.time() - last_s)
            response = await send()
            last_s = loop.time()
            refused = any(code in _REFUSED for _, each in response.errors for _, code in each)
            return response

        Gate.of(producer).set(Place.RECEIVE, {AddPartitionsToTxnRequest: seen})
        TransactionRequests(producer, f"{sink}-id", sink)
        async with asyncio.timeout(_LONG_S):
            # Until a request has come too soon, which takes a broker that is slow to end one; aiokafka waits 20 ms.
            while min(waits, default=1.0) >= _AIOKAFKAS_S:
                controls.begin_transaction()
                await producer.send_and_wait(sink, b"x", partition=0)
                await producer.commit_transaction()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConcurrentTransactions, r"the brokers have not ended its last transaction in 0\.01 s.* min\.insync\.replicas"),
        (CoordinatorLoadInProgressError, r"no coordinator in 0\.01 s; .* transaction\.state\.log\.min\.isr"),
    ],
)
async def test_a_start_that_takes_too_long(monkeypatch: pytest.MonkeyPatch, error: Any, reason: str) -> None:
    """A coordinator that cannot end the last transaction is there: its log is not what lacks replicas."""
    monkeypatch.setattr(transactions, "_START_S", 0.01)
    code = error.errno

    async def answer() -> Any:
        await asyncio.sleep(0)
        return SimpleNamespace(error_code=code)

    producer = AIOKafkaProducer(transactional_id="any")
    requests = TransactionRequests(producer, "orders", "group")

    async def start() -> None:
        while (await requests._init(Call(None, None), answer)).error_code:
            pass

    monkeypatch.setattr(producer, "start", start)
    with pytest.raises(KafkaTimeoutError, match=rf"transactional\.id orders: {reason}"):
        await requests.start()
    code = 0
    await requests.start()
    await producer.stop()


@pytest.mark.parametrize("kind", [CoordinationType.TRANSACTION, CoordinationType.GROUP])
async def test_a_coordinator_is_searched_for_again_after_each_passing_error(
    monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """aiokafka's sender would end, with a traceback, by a connection that breaks, or a coordinator that loads."""
    producer = AIOKafkaProducer(transactional_id="orders", retry_backoff_ms=1)
    answers: list[Any] = [
        KafkaConnectionError("it broke"),
        SimpleNamespace(error_code=CoordinatorLoadInProgressError.errno),
        SimpleNamespace(error_code=0, coordinator_id=3),
        SimpleNamespace(error_code=GroupAuthorizationFailedError.errno),
    ]

    async def answer(*_: object, **__: object) -> Any:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def well(*_: object, **__: object) -> bool:
        return True

    for name in ("ready", "force_metadata_update"):
        monkeypatch.setattr(producer.client, name, well)
    monkeypatch.setattr(producer.client, "get_random_node", lambda: 0)
    monkeypatch.setattr(producer.client, "send", answer)
    TransactionRequests(producer, "orders", "group")
    assert await producer._sender._find_coordinator(kind, "any") == 3
    producer._sender._coordinator_dead(kind)
    with pytest.raises(GroupAuthorizationFailedError):
        await producer._sender._find_coordinator(kind, "any")
    await producer.stop()
