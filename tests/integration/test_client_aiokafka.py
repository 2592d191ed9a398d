"""aiokafka's clients with serializers, against a real broker and a real S3 server."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path

import pytest

from app.chunks.allowance import Allowance
from app.serializers.aiokafka import DeserializingConsumer, SerializingProducer
from tests.integration.aiokafka_records import becomes, many, one, produce
from tests.integration.client_config import (
    LARGE,
    ON_GATE,
    consuming,
    on_s3,
    producing,
    worker_both_ways,
)
from tests.integration.client_stores import GatedStore, delete_payloads, run_example
from tests.integration.topics import committed
from tests.integration.way import MakeTopic
from tests.s3_server import S3Server

_LONG_S = 30.0

# --- round trip -------------------------------------------------------------------------------------------------------


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
