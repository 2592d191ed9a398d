"""`AssemblingConsumer` on a log that a test gives, without a broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import ConsumerStoppedError

from app.chunks.consumer import AssemblingConsumer
from app.chunks.range_reader import RangeReader
from transforms.chunk import Chunk
from transforms.chunked_message import Discarded
from transforms.errors import SerializationError
from transforms.read_range import ReadRange
from transforms.record import Header

P3 = TopicPartition("t", 3)


class Fetches:
    """What a consumer fetches, in place of a broker: one batch a call, then nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[Sequence[ConsumerRecord]] = []
        monkeypatch.setattr(AIOKafkaConsumer, "getmany", self._getmany)
        monkeypatch.setattr(AIOKafkaConsumer, "getone", self._getone)

    async def _getmany(self, *_: TopicPartition, **__: object) -> dict[TopicPartition, Sequence[ConsumerRecord]]:
        return {P3: self.batches.pop(0)} if self.batches else {}

    async def _getone(self, *_: TopicPartition) -> ConsumerRecord:
        (record,) = self.batches.pop(0)
        return record


def fetched(offset: int, value: bytes, headers: Sequence[Header] = ()) -> ConsumerRecord:
    """A record as aiokafka gives it."""
    return ConsumerRecord(*P3, offset, 7, 0, b"k", value, None, 1, len(value), tuple(headers))


def letter(offset: int, uuid: str, number: int) -> ConsumerRecord:
    """One of three chunks of a message of one byte a chunk."""
    return fetched(offset, b"x", Chunk(uuid, number, 3, 3).headers())


def consuming(**options: Any) -> AssemblingConsumer:
    """A consumer of the partition that has not been started."""
    keys = {name: options.pop(name) for name in list(options) if "." in name}
    consumer = AssemblingConsumer({"bootstrap.servers": "127.0.0.1:1", **keys}, **options)
    consumer.assign([P3])
    return consumer


@pytest.mark.parametrize("field", ["key", "value"])
async def test_deserializer_that_fails(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error says which record it was; the record keeps its place."""
    fetches = Fetches(monkeypatch)
    fetches.batches = [[fetched(16, b"1"), fetched(17, b"no json")]]

    def parsed(data: bytes) -> Any:
        return None if data == b"k" else json.loads(data)

    def refused(_: bytes) -> None:
        raise ValueError("not mine")

    consumer = consuming(**{f"{field}_deserializer": parsed if field == "value" else refused})
    if field == "value":
        assert [each.value for each in (await consumer.getmany())[P3]] == [1]
    bad = 17 if field == "value" else 16
    for _ in range(2):
        with pytest.raises(SerializationError) as caught:
            await consumer.getmany()
        error = caught.value
        assert (error.topic, error.field, error.partition, error.offset) == ("t", field, 3, bad)
        assert isinstance(error.__cause__, ValueError)
        assert str(error.__cause__) in error.reason
    await consumer.stop()


async def test_call_without_time_tells_of_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call ends in time, however many messages are discarded; the records behind them come when all are told of."""
    fetches, told = Fetches(monkeypatch), list[Discarded]()
    late = [letter(offset, f"u{offset}", 1) for offset in range(5)]
    fetches.batches = [[*late, fetched(5, b"behind")]]
    consumer = consuming(on_discarded=told.append)
    for number in range(1, 5):
        assert await consumer.getmany() == {}
        assert len(told) == number
        assert consumer.safe_offsets({P3: 6})[P3].offset == number
    assert [each.value for each in (await consumer.getmany())[P3]] == [b"behind"]
    assert [each.first for each in told] == list(range(5))
    await consumer.stop()


async def test_call_does_not_wait_for_what_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that has expired is read again beside the calls, and the next calls tell of it when that is done."""
    fetches, told, may_end = Fetches(monkeypatch), list[Discarded](), asyncio.Event()

    async def read(_: RangeReader, range_: ReadRange, __: object) -> None:
        await may_end.wait()
        range_.begin()

    monkeypatch.setattr(RangeReader, "_read", read)
    # The second message is set aside, and its second chunk is missing.
    fetches.batches = [[letter(0, "u", 0), letter(1, "v", 0), letter(2, "v", 2), fetched(3, b"behind")]]
    consumer = consuming(**{"max.pending.chunked.message": 1}, on_discarded=told.append)
    for _ in range(3):
        assert await asyncio.wait_for(consumer.getmany(), 30) == {}
    assert told == []
    may_end.set()
    found: list[ConsumerRecord] = []
    while not found:
        found = (await consumer.getmany(timeout_ms=100)).get(P3, [])
    assert ([each.value for each in found], [each.uuid for each in told]) == ([b"behind"], ["v"])
    await consumer.stop()


async def test_call_does_not_spin_in_its_last_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that waits asks with the time that is left, rounded up: with none it would ask again and again."""
    asked: list[int] = []

    async def half(*_: TopicPartition, timeout_ms: int, **__: object) -> dict[TopicPartition, Sequence[ConsumerRecord]]:
        asked.append(timeout_ms)
        await asyncio.sleep(timeout_ms / 2_000)
        return {}

    monkeypatch.setattr(AIOKafkaConsumer, "getmany", half)
    consumer = consuming()
    assert await consumer.getmany(timeout_ms=20) == {}
    assert asked[0] == 20
    assert 0 not in asked[:-1]
    await consumer.stop()


async def test_messages_expire_though_each_call_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """An application that waits with `asyncio.wait_for` cancels a call that gets nothing: its time counts too."""
    batches = [[fetched(0, b"first"), letter(1, "a", 0)]]

    async def wait(*_: TopicPartition, timeout_ms: int, **__: object) -> dict[TopicPartition, Sequence[ConsumerRecord]]:
        if not batches:
            await asyncio.sleep(timeout_ms / 1000)
        return {P3: batches.pop()} if batches else {}

    monkeypatch.setattr(AIOKafkaConsumer, "getmany", wait)
    monkeypatch.setattr(AIOKafkaConsumer, "getone", lambda *_: asyncio.Event().wait())
    monkeypatch.setattr("app.chunks.whole_records._LOOK_S", 0.002)
    told: list[Discarded] = []
    consumer = consuming(on_discarded=told.append, **{"expire.time.of.incomplete.chunked.message.ms": 30})
    assert [each.value for each in (await consumer.getmany(timeout_ms=1_000))[P3]] == [b"first"]
    for _ in range(200):
        if told:
            break
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.getone(), 0.005)
    assert [each.reason for each in told] == ["expired"]
    await consumer.stop()


async def test_plain_records_go_out_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing waits, the application gets what aiokafka gave, also with headers of its own; else in order."""
    fetches = Fetches(monkeypatch)
    batch = [fetched(0, b"a"), fetched(1, b"b", [("trace", b"1")])]
    fetches.batches = [batch, [fetched(2, b"c"), letter(3, "u", 0), fetched(4, b"d")], [fetched(5, b"e")]]
    consumer = consuming()
    assert (await consumer.getmany())[P3] is batch
    assert [each.offset for each in (await consumer.getmany())[P3]] == [2, 4]
    assert [each.offset for each in (await consumer.getmany())[P3]] == [5]
    assert consumer.safe_offsets({P3: 6})[P3].offset == 3
    with pytest.raises(ValueError, match="max_records"):
        await consumer.getmany(max_records=0)
    await consumer.stop()


async def test_call_that_waits_gets_what_another_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits within aiokafka, which knows nothing of what is here; so it is woken."""
    fetches, waiters = Fetches(monkeypatch), set[asyncio.Future[None]]()

    async def wait(*_: object) -> None:
        waiter = asyncio.get_running_loop().create_future()
        waiters.add(waiter)
        await waiter

    monkeypatch.setattr(AIOKafkaConsumer, "getone", wait)
    consumer = consuming()
    consumer._subscription.register_fetch_waiters(waiters)
    waiting = asyncio.create_task(consumer.getone())
    await asyncio.sleep(0)
    fetches.batches = [[letter(0, "u", 0), fetched(1, b"taken"), fetched(2, b"left")]]
    assert [each.value for each in (await consumer.getmany(max_records=1))[P3]] == [b"taken"]
    assert (await asyncio.wait_for(waiting, 30)).value == b"left"
    await consumer.stop()


async def test_stop_begins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that waited for another one's `on_discarded` opens no consumer behind the end of its own."""
    batches, told, may_end, begun = [[letter(0, "u", 0), letter(1, "v", 0)]], asyncio.Event(), asyncio.Event(), [0]
    monkeypatch.setattr(RangeReader, "begin", lambda *_: begun.append(1))

    async def wait(*_: TopicPartition, **__: object) -> dict[TopicPartition, Sequence[ConsumerRecord]]:
        await asyncio.sleep(0.02)
        return {P3: batches.pop()} if batches else {}

    async def waits(_: Discarded) -> None:
        told.set()
        await may_end.wait()

    monkeypatch.setattr(AIOKafkaConsumer, "getmany", wait)
    # Both expire, and the second one, which was set aside, is to be read again.
    keys = {"max.pending.chunked.message": 1, "expire.time.of.incomplete.chunked.message.ms": 10}
    consumer = consuming(**keys, on_discarded=waits)
    calls = [asyncio.create_task(consumer.getmany(timeout_ms=30_000)) for _ in range(2)]
    await asyncio.wait_for(told.wait(), 30)
    await asyncio.sleep(0.1)
    await consumer.stop()
    may_end.set()
    for call in calls:
        with pytest.raises(ConsumerStoppedError):
            await asyncio.wait_for(call, 30)
    assert begun == [0]
