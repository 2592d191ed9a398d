"""aiokafka's clients with serializers, against a real broker and a real S3 server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import ConsumerStoppedError, IllegalOperation, ProducerClosed, UnknownTopicOrPartitionError

from app.serializers import LargeMessageDeserializer, LargeMessageSerializer
from app.serializers.aiokafka import DeserializingConsumer, SerializingProducer
from app.serializers.threads import PARALLEL
from tests.integration.client_stores import CuttableWay, GatedStore, run_example
from tests.integration.topics import committed, read_all
from tests.integration.way import MakeTopic
from tests.integration.worker_process import WorkerProcess
from tests.s3_server import S3Server, s3_server
from transforms.errors import ConfigurationError, PayloadNotFoundError, PayloadStoreError, SerializationError

THRESHOLD = 1_000
LARGE = b"x" * 5_000
_LONG_S = 30.0

Config = dict[str, Any]


def to_json(value: object) -> bytes:
    """As applications write it."""
    return json.dumps(value).encode()


@pytest.fixture(scope="module")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for the tests of this file."""
    with s3_server("versitygw", tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def gate() -> Iterator[type[GatedStore]]:
    """A store whose downloads wait until the test lets them pass."""
    GatedStore.reset()
    yield GatedStore
    GatedStore.reset()


class HeldStore(GatedStore):
    """One whose uploads wait."""

    def publish(self, topic: str, data: bytes) -> str:
        """See `PayloadStore.publish`."""
        with self._counting:
            GatedStore.begun += 1
        assert self.open.wait(_LONG_S)
        return super().publish(topic, data)


def on_s3(server: S3Server) -> Config:
    """The keys of a store on a server."""
    return {
        "large.message.payload.store.class": "s3",
        "large.message.store.timeout.ms": 10_000,
        "s3.retry.attempts": 1,
        "s3.connection.timeout.ms": 2_000,
        "s3.read.timeout.ms": 5_000,
        **server.config("clients"),
    }


ON_GATE: Config = {"large.message.payload.store.class": GatedStore}


def producing(broker: str, store: Config, **more: Any) -> Config:
    """The configuration of a producer."""
    return {
        "bootstrap.servers": broker,
        "value.serializer": LargeMessageSerializer,
        "large.message.threshold.bytes": THRESHOLD,
        **store,
        **more,
    }


def consuming(broker: str, store: Config, **more: Any) -> Config:
    """The configuration of a consumer that reads from the beginning."""
    return {
        "bootstrap.servers": broker,
        "value.deserializer": LargeMessageDeserializer,
        "auto.offset.reset": "earliest",
        **store,
        **more,
    }


async def produce(broker: str, store: Config, topic: str, values: list[bytes | None], partition: int = 0) -> None:
    """Writes values in order."""
    async with SerializingProducer(producing(broker, store)) as producer:
        for value in values:
            await producer.send_and_wait(topic, value, b"k", partition)


async def one(consumer: AIOKafkaConsumer) -> ConsumerRecord:
    """The next record, within bounded time."""
    return await asyncio.wait_for(consumer.getone(), _LONG_S)


async def many(consumer: AIOKafkaConsumer) -> dict[TopicPartition, list[ConsumerRecord]]:
    """What the next `getmany` that has something gives."""
    async with asyncio.timeout(_LONG_S):
        while True:
            found: dict[TopicPartition, list[ConsumerRecord]] = await consumer.getmany(timeout_ms=500)
            if found:
                return found


async def becomes(condition: Callable[[], bool], what: str) -> None:
    """Waits for a condition, on the loop."""
    try:
        async with asyncio.timeout(_LONG_S):
            while not condition():  # noqa: ASYNC110  # a condition of several threads
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"waited in vain until {what}")


# --- round trip -------------------------------------------------------------------------------------------------------


async def test_records_come_back(broker: str, make_topic: MakeTopic, versitygw: S3Server) -> None:
    """Small, large and null keys and values come back in order, with their headers; the caller's list stays his own."""
    topic = make_topic()
    headers = [("a", b"1"), ("b", None), ("a", b"2")]
    sent = [
        ({"n": 1}, "small"),
        ({"n": 2, "x": "x" * 5_000}, "large"),
        (None, "tombstone"),
        ({"n": 3}, "k" * 5_000),
        ({"n": 4, "x": "x" * 3_000_000}, "k" * 5_000),
        ({"n": 5}, None),
    ]
    there: Config = {
        "value.serializer": None,
        "value.serializers": [to_json, LargeMessageSerializer],
        "key.serializers": [str.encode, LargeMessageSerializer],
    }
    async with SerializingProducer(producing(broker, on_s3(versitygw), **there), linger_ms=5) as producer:
        for value, key in sent:
            await producer.send_and_wait(topic, value, key, headers=headers)
    assert headers == [("a", b"1"), ("b", None), ("a", b"2")]
    back: Config = {
        "value.deserializer": None,
        "value.deserializers": [LargeMessageDeserializer, json.loads],
        "key.deserializers": [LargeMessageDeserializer, bytes.decode],
    }
    async with DeserializingConsumer(consuming(broker, on_s3(versitygw), **back), topic) as consumer:
        found = [await one(consumer) for _ in sent]
    assert [(record.value, record.key) for record in found] == sent
    assert [record.headers for record in found] == [tuple(headers)] * len(sent)
    assert [record.offset for record in found] == list(range(len(sent)))
    raw = (await asyncio.to_thread(read_all, broker, topic))[0]
    paths = [(record.value or b"").startswith(b"s3://payloads/clients/") for record in raw]
    assert paths == [False, True, False, False, True, False]
    assert raw[3].key == raw[4].key != b"k" * 5_000  # equal keys have equal references


async def test_iteration_and_batches_give_the_same(broker: str, make_topic: MakeTopic, gate: type[GatedStore]) -> None:
    """`async for` and `getmany` give what `getone` gives, and commits end behind it."""
    topic = make_topic()
    values = [b"1", LARGE, b"3", None, LARGE * 2]
    await produce(broker, ON_GATE, topic, values)
    found = []
    async with DeserializingConsumer(consuming(broker, ON_GATE, **{"group.id": f"{topic}-g"}), topic) as consumer:
        async for record in consumer:
            found.append(record.value)
            if len(found) == len(values):
                break
        await consumer.commit()
        assert found == values
        await consumer.seek_to_beginning()
        ((_, records),) = (await many(consumer)).items()
        assert [record.value for record in records] == values
    assert await asyncio.to_thread(committed, broker, f"{topic}-g", topic) == {0: 5}


async def test_what_the_client_would_refuse_is_offloaded(
    broker: str, make_topic: MakeTopic, gate: type[GatedStore]
) -> None:
    """A value below the threshold but over `max.request.size`, aiokafka's default included, does not fail."""
    topic = make_topic()
    config = producing(broker, ON_GATE, **{"large.message.threshold.bytes": 2_000_000})
    async with SerializingProducer(config) as producer:
        await producer.send_and_wait(topic, b"x" * 1_048_576)
    async with SerializingProducer(config, max_request_size=10_000) as producer:
        await producer.send_and_wait(topic, b"x" * 10_000)
    assert sorted(map(len, gate.payloads.values())) == [10_000, 1_048_576]


async def test_null_key_and_null_value_are_refused_as_ever(broker: str, make_topic: MakeTopic) -> None:
    """A record without key and value is aiokafka's own error."""
    async with SerializingProducer(producing(broker, ON_GATE)) as producer:
        with pytest.raises(AssertionError, match="Need at least one"):
            await producer.send(make_topic())


async def test_no_payload_for_a_topic_that_is_not_there(broker: str, gate: type[GatedStore]) -> None:
    """The topic is asked for before anything is stored."""
    async with SerializingProducer(producing(broker, ON_GATE), request_timeout_ms=2_000) as producer:
        with pytest.raises(UnknownTopicOrPartitionError):
            await producer.send("not there", LARGE)  # a name that no broker creates by itself
    assert not gate.payloads


# --- transactions, batches, order -------------------------------------------------------------------------------------


async def test_transactions(broker: str, make_topic: MakeTopic, gate: type[GatedStore]) -> None:
    """Large values of a committed transaction are read, those of an aborted one are not."""
    topic = make_topic()
    async with SerializingProducer(producing(broker, ON_GATE, **{"transactional.id": topic})) as producer:
        with pytest.raises(IllegalOperation):
            await producer.send(topic, b"outside")
        await producer.begin_transaction()
        await producer.send_and_wait(topic, LARGE + b"aborted")
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send(topic, LARGE + b"committed")
    config = consuming(broker, ON_GATE, **{"isolation.level": "read_committed"})
    async with DeserializingConsumer(config, topic) as consumer:
        assert (await one(consumer)).value == LARGE + b"committed"
    assert gate.begun == 1


async def test_batches_take_bytes(broker: str, make_topic: MakeTopic) -> None:
    """aiokafka's batches go out as they are made."""
    topic = make_topic()
    async with SerializingProducer(producing(broker, ON_GATE)) as producer:
        batch = producer.create_batch()
        batch.append(key=None, value=b"as it is", timestamp=None)
        await (await producer.send_batch(batch, topic, partition=0))
    async with DeserializingConsumer(consuming(broker, ON_GATE), topic) as consumer:
        assert (await one(consumer)).value == b"as it is"


async def test_the_loop_goes_on_during_store_calls(broker: str, make_topic: MakeTopic, gate: type[GatedStore]) -> None:
    """While a download hangs, the loop runs, and the downloads of one call go on together."""
    topic = make_topic()
    await produce(broker, ON_GATE, topic, [LARGE + b"%d" % number for number in range(4)])
    async with DeserializingConsumer(consuming(broker, ON_GATE), topic) as consumer:
        gate.open.clear()
        reading = asyncio.create_task(many(consumer))
        await becomes(lambda: gate.begun == 4, "four downloads are under way")
        gate.open.set()
        ((_, records),) = (await reading).items()
    assert [record.value for record in records] == [LARGE + b"%d" % number for number in range(4)]


# --- bounds -----------------------------------------------------------------------------------------------------------


async def test_a_call_is_bounded_in_bytes(broker: str, make_topic: MakeTopic, gate: type[GatedStore]) -> None:
    """`getmany` downloads no more than `fetch.max.bytes`; what is left comes with the next calls, and nothing twice."""
    topic = make_topic(2)
    for partition in (0, 1):
        await produce(broker, ON_GATE, topic, [b"%d" % number + LARGE for number in range(6)], partition)
    config = consuming(broker, ON_GATE, **{"fetch.max.bytes": "11000"})
    found: dict[int, list[int]] = {0: [], 1: []}
    async with DeserializingConsumer(config, topic) as consumer:
        while sum(map(len, found.values())) < 12:
            batch = await many(consumer)
            assert sum(len(records) for records in batch.values()) <= 2
            for tp, records in batch.items():
                found[tp.partition] += [record.offset for record in records]
    assert found == {0: list(range(6)), 1: list(range(6))}
    assert gate.begun == 12


async def test_a_payload_over_the_bound_comes_alone(broker: str, make_topic: MakeTopic, gate: type[GatedStore]) -> None:
    """The first payload of a call is downloaded however large it is."""
    topic = make_topic()
    await produce(broker, ON_GATE, topic, [b"first", LARGE, b"small", LARGE])
    async with DeserializingConsumer(consuming(broker, ON_GATE, **{"fetch.max.bytes": 4_000}), topic) as consumer:
        ((_, records),) = (await many(consumer)).items()
        assert [record.value for record in records] == [b"first", LARGE, b"small"]
        ((_, records),) = (await many(consumer)).items()
        assert [record.value for record in records] == [LARGE]


async def test_a_call_is_bounded_in_time(broker: str, make_topic: MakeTopic, gate: type[GatedStore]) -> None:
    """No download is begun that might end after `max.poll.interval.ms`; the next call has it."""
    topic = make_topic()
    await produce(broker, ON_GATE, topic, [LARGE] * 9)  # one more than run at once
    times = {"max.poll.interval.ms": 10_100, "large.message.store.timeout.ms": 10_000}
    async with DeserializingConsumer(consuming(broker, ON_GATE, **times), topic) as consumer:
        gate.open.clear()
        reading = asyncio.create_task(many(consumer))
        await becomes(lambda: gate.begun == 8, "eight downloads are under way")
        await asyncio.sleep(0.2)  # the time itself is what this is about
        gate.open.set()
        ((_, records),) = (await reading).items()
        assert len(records) == 8
        assert (await one(consumer)).offset == 8
    assert gate.begun == 9


# --- failures ---------------------------------------------------------------------------------------------------------


async def test_a_missing_payload_is_told_and_passed(broker: str, make_topic: MakeTopic, versitygw: S3Server) -> None:
    """What is before it is delivered first; the error has its place, comes again, and a seek goes on behind it."""
    topic = make_topic()
    await produce(broker, on_s3(versitygw), topic, [b"0", LARGE, LARGE + b"gone", b"3"])
    path = (await asyncio.to_thread(read_all, broker, topic))[0][2].value
    assert path is not None
    delete(versitygw, path.decode())
    async with DeserializingConsumer(consuming(broker, on_s3(versitygw)), topic) as consumer:
        ((tp, records),) = (await many(consumer)).items()
        assert [record.value for record in records] == [b"0", LARGE]
        for read in (many, many, one):
            with pytest.raises(SerializationError, match=f"topic {topic} partition 0 offset 2 ") as caught:
                await read(consumer)
            assert isinstance(caught.value.__cause__, PayloadNotFoundError)
            assert (caught.value.partition, caught.value.offset, caught.value.retriable) == (0, 2, False)
            assert await consumer.position(tp) == 2
        consumer.seek(tp, 3)
        assert (await one(consumer)).value == b"3"


def delete(server: S3Server, path: str) -> None:
    """As a lifecycle rule does."""
    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name=server.region,
    )
    bucket, _, key = path.removeprefix("s3://").partition("/")
    client.delete_object(Bucket=bucket, Key=key)
    client.close()


async def test_a_store_that_is_down_comes_back(broker: str, make_topic: MakeTopic, versitygw: S3Server) -> None:
    """A producer and a consumer say that another try may do, and it does; nothing is lost or twice."""
    topic = make_topic()
    way = CuttableWay(versitygw)
    store = on_s3(way.server)
    try:
        async with SerializingProducer(producing(broker, store)) as producer:
            await producer.send_and_wait(topic, LARGE + b"0")
            way.cut()
            with pytest.raises(SerializationError) as caught:
                await producer.send(topic, LARGE + b"1")
            assert isinstance(caught.value.__cause__, PayloadStoreError)
            assert caught.value.retriable
            await producer.send_and_wait(topic, b"small values still go")
            way.mend()
            await producer.send_and_wait(topic, LARGE + b"1")
        way.cut()
        async with DeserializingConsumer(consuming(broker, store), topic) as consumer:
            for _ in range(2):
                with pytest.raises(SerializationError) as caught:
                    await many(consumer)
                assert (caught.value.offset, caught.value.retriable) == (0, True)
            way.mend()
            found = [(await one(consumer)).value for _ in range(3)]
    finally:
        way.cut()
    assert found == [LARGE + b"0", b"small values still go", LARGE + b"1"]


async def test_a_failure_does_not_hide_behind_other_partitions(
    broker: str, make_topic: MakeTopic, gate: type[GatedStore]
) -> None:
    """Where other partitions deliver, the failure is raised by the next call, and only for who reads that partition."""
    topic = make_topic(2)
    bad, good = (TopicPartition(topic, number) for number in (0, 1))
    await produce(broker, ON_GATE, topic, [LARGE], 0)
    gate.payloads.clear()
    gate.fails = PayloadNotFoundError("gated://gone")
    await produce(broker, ON_GATE, topic, [b"%d" % number for number in range(3)], 1)
    async with DeserializingConsumer(consuming(broker, ON_GATE)) as consumer:
        consumer.assign([bad, good])
        await consumer.seek_to_beginning(bad, good)
        found: list[bytes] = []
        failed = 0
        async with asyncio.timeout(_LONG_S):
            while len(found) < 3 or not failed:
                try:
                    for records in (await consumer.getmany(timeout_ms=500, max_records=1)).values():
                        found += [record.value for record in records]
                except SerializationError as error:
                    assert (error.partition, error.offset) == (0, 0)  # noqa: PT017  # beside what is delivered
                    failed += 1
        assert found == [b"0", b"1", b"2"]
        await produce(broker, ON_GATE, topic, [b"3"], 1)
        assert (await asyncio.wait_for(consumer.getone(good), _LONG_S)).value == b"3"


async def test_a_stage_that_fails_keeps_the_place(broker: str, make_topic: MakeTopic) -> None:
    """What the application's own deserializer refuses is no different."""
    topic = make_topic()
    await produce(broker, ON_GATE, topic, [b"1", b"not JSON", b"3"])
    stages = {"value.deserializer": None, "value.deserializers": [LargeMessageDeserializer, json.loads]}
    async with DeserializingConsumer(consuming(broker, ON_GATE, **stages), topic) as consumer:
        assert (await one(consumer)).value == 1
        with pytest.raises(SerializationError, match=r"partition 0 offset 1 .*stage 2, loads") as caught:
            await one(consumer)
        assert isinstance(caught.value.__cause__, json.JSONDecodeError)
        consumer.seek(TopicPartition(topic, 0), 2)
        assert (await one(consumer)).value == 3


async def test_an_interrupt_gives_all_back(broker: str, make_topic: MakeTopic) -> None:
    """Ctrl-C within a stage loses nothing of what the call had fetched, of other partitions either."""
    topic = make_topic(2)
    for partition in (0, 1):
        await produce(broker, ON_GATE, topic, [b"%d" % partition], partition)
    interrupts = iter([asyncio.CancelledError()])  # as Ctrl-C is, for a loop
    seen: list[bytes] = []

    def interrupted(value: bytes) -> bytes:
        seen.append(value)
        if len(seen) == 2:
            for interrupt in interrupts:
                raise interrupt
        return value

    stages = {"value.deserializer": None, "value.deserializers": [LargeMessageDeserializer, interrupted]}
    async with DeserializingConsumer(consuming(broker, ON_GATE, **stages)) as consumer:
        partitions = [TopicPartition(topic, number) for number in (0, 1)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        await becomes(lambda: len(consumer._fetcher._records) == 2, "both partitions are fetched")
        with pytest.raises(asyncio.CancelledError):
            await consumer.getmany()
        assert [await consumer.position(partition) for partition in partitions] == [0, 0]
        assert {(await one(consumer)).value for _ in partitions} == {b"0", b"1"}


# --- cancelled calls, commits, rebalances -----------------------------------------------------------------------------


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
            await becomes(lambda: gate.begun > 0 and bool(consumer._holds), "the download is under way")
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
        first = asyncio.create_task(consumer.getmany(timeout_ms=1_000))
        await becomes(lambda: gate.begun == 1, "the download is under way")
        if moved == "seek":
            consumer.seek(partition, 2)
        else:
            consumer.assign([partition])
        second = asyncio.create_task(one(consumer))
        if moved == "assign":
            await becomes(lambda: consumer._holds[partition].covers(0), "the second task has read the same record")
            gate.open.set()
        found = await second
        gate.open.set()
        assert await first == {}
        assert found.offset == (2 if moved == "seek" else 0)
        assert await consumer.position(partition) == found.offset + 1


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
    await becomes(lambda: producer._threads._closed, "the producer is stopping")
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


# --- the example ------------------------------------------------------------------------------------------------------


async def test_the_example(broker: str, make_topic: MakeTopic, versitygw: S3Server) -> None:
    """The script of the documentation passes over a payload that is gone, and reads what it has sent."""
    topic = make_topic()
    await produce(broker, {**on_s3(versitygw), "s3.prefix": ""}, topic, [LARGE])
    path = (await asyncio.to_thread(read_all, broker, topic))[0][0].value
    assert path is not None
    delete(versitygw, path.decode())
    printed = await asyncio.to_thread(run_example, "aiokafka_client.py", broker, topic, versitygw)
    gone, sent = printed.splitlines()
    assert f"topic {topic} partition 0 offset 0 " in gone
    assert "there is no payload at" in gone
    assert re.fullmatch(r"offset 1: order \d+, 5,000,000 characters", sent)


# --- workers, configuration -------------------------------------------------------------------------------------------


async def test_a_worker_reads_what_a_producer_wrote_and_the_reverse(
    broker: str, make_topic: MakeTopic, versitygw: S3Server, tmp_path: Path, least_session_ms: int
) -> None:
    """A worker's `inflate` restores what the serializer offloaded; the deserializer restores what `offload` did."""
    raw, written, inflated, offloaded = (make_topic(**{"max.message.bytes": 4_000_000}) for _ in range(4))
    store = {**on_s3(versitygw), "large.message.threshold.bytes": THRESHOLD}
    values = [b"small", LARGE, b"x" * 2_000_000, None]
    headers = [("a", b"1"), ("a", None)]
    pipelines: dict[str, dict[str, object]] = {
        "in": {"topics": [written], "output.topic": inflated, "transforms": ["inflate"], **store},
        "out": {"topics": [raw], "output.topic": offloaded, "transforms": ["offload"], **store},
    }
    settings = {
        "bootstrap.servers": broker,
        "consumer.session.timeout.ms": least_session_ms,
        "consumer.heartbeat.interval.ms": 300,
    }
    plain = {"bootstrap.servers": broker, "auto.offset.reset": "earliest", "max.partition.fetch.bytes": 8_000_000}
    with WorkerProcess(tmp_path, settings, pipelines) as worker:
        await asyncio.to_thread(worker.wait_ready)
        compressed = {"large.message.compression.type": "zstd"}
        async with SerializingProducer(producing(broker, on_s3(versitygw), **compressed)) as producer:
            for value in values:
                await producer.send_and_wait(written, value, b"k", headers=headers)
        async with SerializingProducer({"bootstrap.servers": broker, "max.request.size": 3_000_000}) as producer:
            for value in values:
                await producer.send_and_wait(raw, value, b"k", headers=headers)
        async with DeserializingConsumer(plain, inflated) as consumer:
            whole = [await one(consumer) for _ in values]
        async with DeserializingConsumer(consuming(broker, on_s3(versitygw)), offloaded) as consumer:
            restored = [await one(consumer) for _ in values]
    for found in (whole, restored):
        assert [(record.key, record.value, record.headers) for record in found] == [
            (b"k", value, tuple(headers)) for value in values
        ]


async def test_a_wrong_configuration_leaves_nothing_open(broker: str) -> None:
    """A mistake is told when the client is made, with the key; what was opened for it is closed."""
    with pytest.raises(ConfigurationError, match=r"^bootstrap\.server: .*did you mean bootstrap\.servers\?"):
        SerializingProducer(
            producing(broker, {"large.message.payload.store.class": "memory"}, **{"bootstrap.server": "x"})
        )
    with pytest.raises(ConfigurationError, match=r"^large\.message\.store\.timeout\.ms: .*30,000 ms.*which is 20,000"):
        DeserializingConsumer(
            consuming(broker, ON_GATE, **{"large.message.store.timeout.ms": 30_000}), max_poll_interval_ms=20_000
        )
    with pytest.raises(ValueError, match="Invalid ACKS"):
        SerializingProducer(producing(broker, ON_GATE, acks=7))
