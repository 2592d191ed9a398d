"""The requests of transactions, and the start of a producer: which go beside each other, and when one is sent again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
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

_AIOKAFKAS_S = 0.02
COMMIT = {TopicPartition("raw", 0): (9, "note")}


@pytest.fixture
async def producer() -> AsyncIterator[AIOKafkaProducer]:
    """Has not been started."""
    producer = AIOKafkaProducer(transactional_id="orders", retry_backoff_ms=1)
    yield producer
    await producer.stop()


async def test_waits_grow(producer: AIOKafkaProducer, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the marks of the last transaction are on their way, the first tries come soon, the later ones less so."""
    waits: list[float] = []
    codes = [ConcurrentTransactions.errno] * 7 + [CoordinatorLoadInProgressError.errno]

    async def send() -> Any:
        return SimpleNamespace(error_code=codes.pop(0))

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    requests = TransactionRequests(producer, "any", "any-group")
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "sleep", sleep)
        response = await requests._add_group(Call(None, None), send)
    # What else a broker says is waited for as aiokafka does it.
    assert response.error_code == CoordinatorLoadInProgressError.errno
    assert waits == [0.001, 0.002, 0.004, 0.008, 0.016, 0.02, 0.02]


@pytest.mark.usefixtures("unlogged")
async def test_offsets_that_fail_when_nobody_waits_for_them_are_not_logged() -> None:
    """Their transaction took too long, and its writes report why; the event loop would log a traceback."""
    producer = AIOKafkaProducer(transactional_id="any")
    writer = Writer(producer, transactional_id="any", group_id="any-group")
    producer._txn_manager.set_pid_and_epoch(1, 0)
    writer.begin()
    sending = asyncio.create_task(writer.commit(COMMIT))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    producer._txn_manager.fatal_error(ProducerFenced())
    await writer.stop()


@pytest.mark.parametrize("code", [22, 25, 82])
async def test_offsets_of_a_former_owner_are_refused(
    producer: AIOKafkaProducer, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """They name the member as it was when the commit began; a refusal ends the transaction, which is aborted then."""
    member, sent = Member(4, "m", "one"), list[Any]()
    writer = Writer(producer, transactional_id="any", group_id="g", member=lambda: member)
    requests = writer._requests
    assert requests is not None

    async def send(_: Any, group: str) -> None:
        call = Call(None, TxnOffsetCommitRequest("any", group, 5, 6, [("raw", [(0, 9, "note")])]))
        names = ("transactional_id", "group", "producer_id", "producer_epoch", "topics")
        with_epochs = dict(zip(names, ("any", "g", 5, 6, [("raw", [(0, 9, 3, "note")])]), strict=True))
        call.change(lambda *_: SimpleNamespace(**with_epochs))

        async def answer() -> Any:
            sent.append(call.prepare({28: (0, 3)}))
            return SimpleNamespace(errors=[("raw", [(0, code, {})], {})])

        response = await requests._commit_offsets(call, answer)
        assert response.errors == [("raw", [(0, GroupAuthorizationFailedError.errno)])]
        raise GroupAuthorizationFailedError(group)

    monkeypatch.setattr(producer, "send_offsets_to_transaction", send)
    with pytest.raises(CommitFailedError):
        await writer.commit(COMMIT)
    member = Member(-1, "", None)  # it is a member no more
    with pytest.raises(CommitFailedError):
        await writer.commit(COMMIT)
    (struct,) = sent
    assert [getattr(struct, name) for name in struct.SCHEMA.names] == [
        *("any", "g", 5, 6, 4, "m", "one"),
        [("raw", [(0, 9, 3, "note", {})], {})],
        {},
    ]
    assert struct.encode()


async def test_transactions_of_a_broker(broker: str, make_topic: MakeTopic) -> None:
    """The group is added beside the batches; where the last one still ends, no try waits as long as aiokafka would."""
    source, sink = make_topic(1), make_topic(1)
    loop = asyncio.get_running_loop()
    refused, waits, last_s, sent = False, list[float](), 0.0, list[str]()
    async with AIOKafkaProducer(bootstrap_servers=broker, transactional_id=f"{sink}-id") as producer:
        controls = ProducerControls(producer)
        requests = TransactionRequests(producer, f"{sink}-id", sink)

        async def seen(call: Call, send: Send) -> Any:
            sent.append(type(call.request).__name__)
            return await send()

        async def added(_: Call, send: Send) -> Any:
            nonlocal refused, last_s
            if refused:
                waits.append(loop.time() - last_s)
            response = await send()
            last_s = loop.time()
            refused = any(code == ConcurrentTransactions.errno for _, each in response.errors for _, code in each)
            return response

        Gate.of(producer).set(Place.RECORDS, {object: seen})
        Gate.of(producer).set(Place.RECEIVE, {AddPartitionsToTxnRequest: added})
        async with asyncio.timeout(60):
            # Until a request has come too soon, which takes a broker that is slow to end one; aiokafka waits 20 ms.
            offset = 0
            while offset < 3 or min(waits, default=1.0) >= _AIOKAFKAS_S:
                offset += 1
                controls.begin_transaction()
                await producer.send_and_wait(sink, b"x", partition=0)
                assert requests._group is not None
                assert not (await requests._group).error_code
                await producer.send_offsets_to_transaction({TopicPartition(source, 0): (offset, "")}, sink)
                await producer.commit_transaction()
                assert requests._group is None
    for name in ("ProduceRequest", "AddOffsetsToTxnRequest", "TxnOffsetCommitRequest", "EndTxnRequest"):
        assert sum(each.startswith(name) for each in sent) >= 3, sent


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConcurrentTransactions, r"the brokers have not ended its last transaction in 0\.01 s.* min\.insync\.replicas"),
        (CoordinatorLoadInProgressError, r"no coordinator in 0\.01 s; .* transaction\.state\.log\.min\.isr"),
    ],
)
async def test_a_start_that_takes_too_long(
    producer: AIOKafkaProducer, monkeypatch: pytest.MonkeyPatch, error: Any, reason: str
) -> None:
    """A coordinator that cannot end the last transaction is there: its log is not what lacks replicas."""
    monkeypatch.setattr(transactions, "_START_S", 0.01)
    code = error.errno

    async def answer() -> Any:
        await asyncio.sleep(0)
        return SimpleNamespace(error_code=code)

    requests = TransactionRequests(producer, "orders", "group")

    async def start() -> None:
        while (await requests._init(Call(None, None), answer)).error_code:
            pass

    monkeypatch.setattr(producer, "start", start)
    with pytest.raises(KafkaTimeoutError, match=rf"transactional\.id orders: {reason}"):
        await requests.start()
    code = 0
    await requests.start()


@pytest.mark.parametrize("kind", [CoordinationType.TRANSACTION, CoordinationType.GROUP])
async def test_a_coordinator_is_searched_for_again_after_each_passing_error(
    producer: AIOKafkaProducer, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """aiokafka's sender would end, with a traceback, by a connection that breaks, or a coordinator that loads."""
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

    for name, does in (("ready", well), ("force_metadata_update", well), ("send", answer)):
        monkeypatch.setattr(producer.client, name, does)
    monkeypatch.setattr(producer.client, "get_random_node", lambda: 0)
    TransactionRequests(producer, "orders", "group")
    assert await producer._sender._find_coordinator(kind, "any") == 3
    producer._sender._coordinator_dead(kind)
    with pytest.raises(GroupAuthorizationFailedError):
        await producer._sender._find_coordinator(kind, "any")
