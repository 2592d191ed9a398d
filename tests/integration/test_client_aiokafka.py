"""aiokafka's clients with serializers, against a real broker and a real S3 server."""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial
from pathlib import Path

import pytest
from aiokafka import TopicPartition

from app.chunks.allowance import Allowance
from app.serializers import LargeMessageDeserializer, LargeMessageSerializer
from app.serializers.aiokafka import DeserializingConsumer, SerializingProducer
from tests.integration.aiokafka_records import becomes, many, one, produce
from tests.integration.client_config import (
    LARGE,
    MIXED,
    ON_GATE,
    Config,
    consuming,
    on_s3,
    producing,
    to_json,
    worker_both_ways,
)
from tests.integration.client_stores import CuttableWay, GatedStore, delete_payloads, run_example
from tests.integration.topics import committed, read_all
from tests.integration.way import MakeTopic
from tests.s3_server import S3Server
from transforms.errors import (
    ConfigurationError,
    PayloadNotFoundError,
    PayloadStoreError,
    RecordDeserializationError,
    SerializationError,
)

_LONG_S = 30.0

# --- round trip -------------------------------------------------------------------------------------------------------


async def test_records_come_back(broker: str, make_topic: MakeTopic, versitygw: S3Server) -> None:
    """Small, large and null keys and values come back in order, with their headers; the caller's list stays his own."""
    topic = make_topic()
    headers = [("a", b"1"), ("b", None), ("a", b"2")]
    there: Config = {
        "value.serializer": None,
        "value.serializers": [to_json, LargeMessageSerializer],
        "key.serializers": [str.encode, LargeMessageSerializer],
    }
    async with SerializingProducer(producing(broker, on_s3(versitygw), **there), linger_ms=5) as producer:
        for value, key in MIXED:
            await producer.send_and_wait(topic, value, key, headers=headers)
    assert headers == [("a", b"1"), ("b", None), ("a", b"2")]
    back: Config = {
        "value.deserializer": None,
        "value.deserializers": [LargeMessageDeserializer, json.loads],
        "key.deserializers": [LargeMessageDeserializer, bytes.decode],
    }
    async with DeserializingConsumer(consuming(broker, on_s3(versitygw), **back), topic) as consumer:
        found = [await one(consumer) for _ in MIXED]
    assert [(record.value, record.key) for record in found] == MIXED
    assert [record.headers for record in found] == [tuple(headers)] * len(MIXED)
    assert [record.offset for record in found] == list(range(len(MIXED)))
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


# --- transactions, batches, order -------------------------------------------------------------------------------------


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


async def test_a_call_is_bounded_in_time(
    broker: str, make_topic: MakeTopic, gate: type[GatedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No download is begun that might end after `max.poll.interval.ms`; the next call has it."""
    topic = make_topic()
    now_s = 0.0
    monkeypatch.setattr("app.chunks.whole_records.Allowance", partial(Allowance, clock=lambda: now_s))
    await produce(broker, ON_GATE, topic, [LARGE] * 9)  # one more than run at once
    times = {"max.poll.interval.ms": 10_100, "large.message.store.timeout.ms": 10_000}
    async with DeserializingConsumer(consuming(broker, ON_GATE, **times), topic) as consumer:
        gate.open.clear()
        reading = asyncio.create_task(many(consumer))
        await becomes(lambda: gate.begun == 8, "eight downloads are under way")
        now_s = 0.2
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
    await asyncio.to_thread(delete_payloads, versitygw, broker, topic, 2)
    async with DeserializingConsumer(consuming(broker, on_s3(versitygw)), topic) as consumer:
        ((tp, records),) = (await many(consumer)).items()
        assert [record.value for record in records] == [b"0", LARGE]
        for read in (many, many, one):
            with pytest.raises(RecordDeserializationError, match=f"topic {topic} partition 0 offset 2 ") as caught:
                await read(consumer)
            assert isinstance(caught.value.__cause__, PayloadNotFoundError)
            assert (caught.value.partition, caught.value.offset, caught.value.retriable) == (0, 2, False)
            assert await consumer.position(tp) == 2
        consumer.seek(tp, 3)
        assert (await one(consumer)).value == b"3"


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


# --- the example ------------------------------------------------------------------------------------------------------


async def test_the_example(broker: str, make_topic: MakeTopic, versitygw: S3Server) -> None:
    """The script of the documentation passes over a payload that is gone, and reads what it has sent."""
    topic = make_topic()
    await produce(broker, {**on_s3(versitygw), "s3.prefix": ""}, topic, [LARGE])
    await asyncio.to_thread(delete_payloads, versitygw, broker, topic, 0)
    printed = await asyncio.to_thread(run_example, "aiokafka_client.py", broker, topic, versitygw)
    gone, sent = printed.splitlines()
    assert f"topic {topic} partition 0 offset 0 " in gone
    assert "there is no payload at" in gone
    assert re.fullmatch(r"offset 1: order \d+, 5,000,000 characters", sent)


# --- workers, configuration -------------------------------------------------------------------------------------------


@pytest.mark.matrix
async def test_a_worker_reads_what_a_producer_wrote_and_the_reverse(
    broker: str, make_topic: MakeTopic, versitygw: S3Server, tmp_path: Path
) -> None:
    """A worker's `inflate` restores what the serializer offloaded; the deserializer restores what `offload` did."""
    raw, written, inflated, offloaded = (make_topic(**{"max.message.bytes": 4_000_000}) for _ in range(4))
    store = on_s3(versitygw)
    values = [b"small", LARGE, b"x" * 2_000_000, None]
    headers = [("a", b"1"), ("a", None)]
    plain = {"bootstrap.servers": broker, "auto.offset.reset": "earliest", "max.partition.fetch.bytes": 8_000_000}
    topics = {"offload": (raw, offloaded), "inflate": (written, inflated)}
    with worker_both_ways(tmp_path, broker, store, **topics) as worker:
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
