"""What aiokafka's clients with serializers commit and deliver when calls are cancelled, partitions go, or they stop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import ConsumerStoppedError, ProducerClosed

from app.chunks import AssemblingConsumer
from app.chunks.allowance import PARALLEL
from app.serializers.aiokafka import DeserializingConsumer, SerializingProducer
from tests.integration.aiokafka_records import becomes, loop_turns, one, produce
from tests.integration.chunk_records import delete_up_to, pieces, write
from tests.integration.client_config import LARGE, ON_GATE, consuming, producing
from tests.integration.client_stores import GatedStore
from tests.integration.topics import committed, send
from tests.integration.way import MakeTopic
from transforms.errors import SerializationError

_LONG_S = 30.0
PLAIN: dict[str, Any] = {"auto.offset.reset": "earliest", "enable.auto.commit": False}


class HeldStore(GatedStore):
    """One whose uploads wait."""

    def publish(self, topic: str, data: bytes) -> str:
        """See `PayloadStore.publish`."""
        with self._counting:
            GatedStore.begun += 1
        assert self.open.wait(_LONG_S)
        return super().publish(topic, data)


@pytest.mark.parametrize("read", ["getone", "getmany"])
async def test_a_cancelled_call_loses_nothing(
    broker: str, make_topic: MakeTopic, gate: type[GatedStore], read: str
) -> None:
    """The position stays, the record comes with a later call, and its payload is downloaded once."""
    topic = make_topic()
    tp = TopicPartition(topic, 0)
    await produce(broker, ON_GATE, topic, [LARGE, b"2"])
    arguments = {"timeout_ms": 20_000} if read == "getmany" else {}
    async with DeserializingConsumer(consuming(broker, ON_GATE), topic) as consumer:
        gate.open.clear()
        for _ in range(3):
            reading = asyncio.create_task(getattr(consumer, read)(**arguments))
            await becomes(lambda: gate.begun == 1, "the download is under way")
            await loop_turns()  # a later call finds it so
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert await consumer.position(tp) == 0
        gate.open.set()
        assert [(await one(consumer)).value for _ in range(2)] == [LARGE, b"2"]
    assert gate.begun == 1


async def test_a_position_does_not_pass_a_download(broker: str, make_topic: MakeTopic, gate: type[GatedStore]) -> None:
    """A commit during a download, by the timer or by `commit`, is of what was delivered."""
    topic = make_topic()
    await produce(broker, ON_GATE, topic, [b"1", LARGE, b"3"])
    group = {"group.id": f"{topic}-g", "auto.commit.interval.ms": 100}
    async with DeserializingConsumer(consuming(broker, ON_GATE, **group), topic) as consumer:
        assert (await one(consumer)).value == b"1"
        gate.open.clear()
        reading = asyncio.create_task(one(consumer))
        await becomes(lambda: gate.begun == 1, "the download is under way")
        await consumer.commit()
        assert await consumer.committed(TopicPartition(topic, 0)) == 1
        gate.open.set()
        assert (await reading).value == LARGE
        await consumer.commit()
        assert await consumer.committed(TopicPartition(topic, 0)) == 2


async def test_a_rebalance_during_a_download_loses_nothing(
    broker: str, make_topic: MakeTopic, gate: type[GatedStore]
) -> None:
    """A record whose partition goes to another member while it is downloaded is that member's."""
    topic = make_topic(2)
    for partition in (0, 1):
        await produce(broker, ON_GATE, topic, [LARGE + b"%d" % partition], partition)
    group = {"group.id": f"{topic}-g", "auto.commit.interval.ms": 100}
    first = DeserializingConsumer(consuming(broker, ON_GATE, **group), topic)
    second = DeserializingConsumer(consuming(broker, ON_GATE, **group), topic)
    await first.start()
    try:
        gate.open.clear()
        reading = asyncio.create_task(one(first))
        await becomes(lambda: gate.begun == 1, "the download is under way")
        await second.start()
        await becomes(lambda: len(first.assignment()) == len(second.assignment()) == 1, "each has a partition")
        gate.open.set()
        mine, others = await reading, await one(second)
        assert {mine.partition} == {tp.partition for tp in first.assignment()}
        assert {mine.value, others.value} == {LARGE + b"0", LARGE + b"1"}
    finally:
        gate.open.set()
        await first.stop()
        await second.stop()
    assert await asyncio.to_thread(committed, broker, f"{topic}-g", topic) == {0: 1, 1: 1}


async def test_a_seek_during_a_download_counts(broker: str, make_topic: MakeTopic, gate: type[GatedStore]) -> None:
    """What the application has sought is what comes next."""
    topic = make_topic()
    await produce(broker, ON_GATE, topic, [LARGE, b"2", b"3"])
    async with DeserializingConsumer(consuming(broker, ON_GATE), topic) as consumer:
        gate.open.clear()
        reading = asyncio.create_task(one(consumer))
        await becomes(lambda: gate.begun == 1, "the download is under way")
        consumer.seek(TopicPartition(topic, 0), 2)
        gate.open.set()
        assert (await reading).value == b"3"


async def test_tasks_that_share_a_partition_get_each_record_once(
    broker: str, make_topic: MakeTopic, gate: type[GatedStore]
) -> None:
    """Two tasks that read one consumer do not both get the record that is being downloaded."""
    topic = make_topic()
    await produce(broker, ON_GATE, topic, [LARGE, b"2"])
    async with DeserializingConsumer(consuming(broker, ON_GATE), topic) as consumer:
        gate.open.clear()
        reading = [asyncio.create_task(one(consumer)) for _ in range(2)]
        await becomes(lambda: gate.begun == 1, "the download is under way")
        gate.open.set()
        assert {record.value for record in await asyncio.gather(*reading)} == {LARGE, b"2"}
    assert gate.begun == 1


@pytest.mark.parametrize("moved", ["seek", "assign"])
async def test_a_move_counts_for_every_task_that_reads(
    broker: str, make_topic: MakeTopic, gate: type[GatedStore], moved: str
) -> None:
    """Where one task downloads, another reads on from a seek or a new assignment, and loses nothing of it."""
    topic = make_topic()
    partition = TopicPartition(topic, 0)
    await produce(broker, ON_GATE, topic, [LARGE, b"2", b"3"])
    async with DeserializingConsumer(consuming(broker, ON_GATE)) as consumer:
        consumer.assign([partition])
        gate.open.clear()
        await becomes(lambda: bool(consumer._fetcher._records), "the records are fetched")
        first = asyncio.create_task(consumer.getmany(timeout_ms=1_000))
        await becomes(lambda: gate.begun == 1, "the download is under way")
        if moved == "seek":
            consumer.seek(partition, 2)
        else:
            consumer.assign([partition])
        second = asyncio.create_task(one(consumer))
        if moved == "assign":
            await becomes(lambda: gate.begun == 2, "the second task has read the same record")
            gate.open.set()
        found = await second
        gate.open.set()
        later = [record.offset for records in (await first).values() for record in records]
        assert found.offset == (2 if moved == "seek" else 0)
        assert later == [1, 2][found.offset : found.offset + len(later)]
        assert await consumer.position(partition) == found.offset + 1 + len(later)


async def test_sends_that_wait_when_the_producer_stops_say_so(
    broker: str, make_topic: MakeTopic, gate: type[GatedStore]
) -> None:
    """None is cancelled, which a TaskGroup would take for the application's own doing; nor is a send afterwards."""
    topic = make_topic()
    gate.open.clear()
    producer = SerializingProducer(producing(broker, {"large.message.payload.store.class": HeldStore}))
    await producer.start()
    sends = [asyncio.create_task(producer.send(topic, LARGE)) for _ in range(2 * PARALLEL)]
    await becomes(lambda: gate.begun == PARALLEL, "every thread is taken")
    stopping = asyncio.create_task(producer.stop())
    await becomes(lambda: producer._threads.closed, "the producer is stopping")
    gate.open.set()
    await stopping
    errors = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(error) for error in errors] == PARALLEL * [ProducerClosed] + PARALLEL * [SerializationError]
    assert "the client was closed before the store was called" in str(errors[-1])
    with pytest.raises(ProducerClosed):
        await producer.send_and_wait(topic, b"small")


async def test_stop_during_a_download(broker: str, make_topic: MakeTopic, gate: type[GatedStore]) -> None:
    """The call that waits ends as aiokafka's does, and what it did not deliver is not committed."""
    topic = make_topic()
    await produce(broker, ON_GATE, topic, [LARGE])
    group = {"group.id": f"{topic}-g"}
    consumer = DeserializingConsumer(consuming(broker, ON_GATE, **group), topic)
    await consumer.start()
    gate.open.clear()
    reading = asyncio.create_task(one(consumer))
    await becomes(lambda: gate.begun == 1, "the download is under way")
    stopping = asyncio.create_task(consumer.stop())
    await becomes(lambda: bool(consumer._closed), "the consumer is stopping")
    gate.open.set()
    await stopping
    with pytest.raises(ConsumerStoppedError):
        await reading
    assert await asyncio.to_thread(committed, broker, f"{topic}-g", topic) == {0: 0}


async def test_two_tasks_wait_for_one_batch(
    broker: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two calls that wait gets a record as soon as a batch of two has come."""
    topic = make_topic()
    monkeypatch.setattr("app.chunks.whole_records._LOOK_S", 2 * _LONG_S)  # when a call looks again that is not woken
    async with AssemblingConsumer(PLAIN | {"bootstrap.servers": broker}, topic) as consumer:
        await becomes(lambda: bool(consumer.assignment()), "it has the partition")
        waiting = [asyncio.create_task(consumer.getone()) for _ in range(2)]
        await loop_turns()
        await asyncio.to_thread(send, broker, topic, [(0, b"k", value, [], 0) for value in (b"1", b"2")])
        async with asyncio.timeout(_LONG_S):
            assert sorted(record.value for record in await asyncio.gather(*waiting)) == [b"1", b"2"]


async def test_a_position_that_is_out_of_range(broker: str, make_topic: MakeTopic) -> None:
    """What was fetched before the log was cut is delivered, and then what is left of the log; none is skipped."""
    topic = make_topic()
    tp = TopicPartition(topic, 0)
    ten: list[Any] = [(0, b"k", b"%d" % n, [], 0) for n in range(10)]
    await asyncio.to_thread(send, broker, topic, ten)
    async with AssemblingConsumer(PLAIN | {"bootstrap.servers": broker}, topic) as consumer:
        assert [(await consumer.getone()).offset for _ in range(3)] == [0, 1, 2]
        consumer.pause(tp)
        await asyncio.to_thread(send, broker, topic, ten)
        await delete_up_to(broker, topic, 15)
        consumer.resume(tp)
        async with asyncio.timeout(_LONG_S):
            while await AIOKafkaConsumer.position(consumer, tp) != 15:  # the client has found out, and began anew
                await loop_turns()
        assert await consumer.position(tp) == 3
        found = [(await asyncio.wait_for(consumer.getone(), _LONG_S)).offset for _ in range(12)]
        assert found == [*range(3, 10), *range(15, 20)]
        await consumer.seek_to_beginning(tp)
        assert (await consumer.getone()).offset == 15


async def test_what_is_fetched_ahead_is_bounded(broker: str, make_topic: MakeTopic) -> None:
    """While a message is incomplete, too, `getone` takes no more of a partition that has records at hand."""
    topic = make_topic(2)
    for partition, size in ((0, 1_000), (1, 10)):
        await write(broker, topic, pieces(f"u{partition}", 3_000, 1)[:1], partition)
        records: list[Any] = [(partition, b"k", bytes(size), [], 0)] * 3_000
        await asyncio.to_thread(send, broker, topic, records)
    async with AssemblingConsumer(PLAIN | {"bootstrap.servers": broker}, topic) as consumer:
        backlog, most = consumer._pending.backlog, 0
        for _ in range(3_000):
            await consumer.getone()
            most = max(most, sum(len(list(backlog.entries(each))) for each in backlog.partitions))
    assert most <= 200
