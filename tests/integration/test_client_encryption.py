"""Every client writes encrypted payloads, and every client reads what the others and the worker have written."""

from __future__ import annotations

import asyncio
from pathlib import Path

from confluent_kafka import DeserializingConsumer as ConfluentConsumer
from confluent_kafka import SerializingProducer as ConfluentProducer

from app.serializers import LargeMessageDeserializer, LargeMessageSerializer, kafka_python
from app.serializers.aiokafka import DeserializingConsumer, SerializingProducer
from app.serializers.confluent import consumer_config, producer_config
from tests.integration.aiokafka_records import one
from tests.integration.client_config import THRESHOLD, Config, consuming, producing, worker_both_ways
from tests.integration.test_client_faust import FaustProcess, digest
from tests.integration.topics import end_offsets, read_all, send
from tests.integration.way import MakeTopic
from tests.integration.worker_process import until

_LONG_S = 30.0
_KEYS = {name: secret * 32 for name, secret in (("confluent", "1f"), ("aiokafka", "2e"), ("kafka", "3d"), ("w", "4c"))}


def values(count: int) -> list[bytes]:
    return [b"secret %d" % number * 1_000 for number in range(count)]


def writing(store: Config, name: str) -> Config:
    """A key of its own for each writer."""
    return {
        **store,
        "large.message.encryption.type": "aes-256-gcm",
        "large.message.encryption.key.id": name,
        "large.message.encryption.key.secret": _KEYS[name],
    }


def with_confluent(broker: str, store: Config, topic: str, value: bytes) -> None:
    config = {"bootstrap.servers": broker, "value.serializer": LargeMessageSerializer, **writing(store, "confluent")}
    with ConfluentProducer(producer_config(config)) as producer:
        producer.produce(topic, value=value, headers=[("a", b"1")], partition=0)
        assert producer.flush(_LONG_S) == 0


def with_kafka_python(broker: str, store: Config, topic: str, value: bytes) -> None:
    with kafka_python.SerializingProducer(producing(broker, writing(store, "kafka"))) as producer:
        producer.send(topic, value, partition=0, headers=[("a", b"1")]).get(_LONG_S)


def read_by_confluent(broker: str, store: Config, topic: str, count: int) -> list[bytes | None]:
    stages = {"value.deserializer": LargeMessageDeserializer, "group.id": f"{topic}-c", "auto.offset.reset": "earliest"}
    with ConfluentConsumer(consumer_config({"bootstrap.servers": broker, **stages, **store})) as consumer:
        consumer.subscribe([topic])
        polled = [until(lambda: consumer.poll(1.0), "a message") for _ in range(count)]
    messages = [message for message in polled if message is not None]
    assert [message.headers() for message in messages] == [[("a", b"1")]] * count
    return [message.value() for message in messages]


def read_by_kafka_python(broker: str, store: Config, topic: str, count: int) -> list[bytes | None]:
    consumer = kafka_python.DeserializingConsumer(consuming(broker, store), topic)
    try:
        found = [next(consumer) for _ in range(count)]
    finally:
        consumer.close()
    return [record.value for record in found]


async def test_clients_read_each_other(broker: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """Three clients and the worker write, each with a key of its own; all of them, and Faust, read it all."""
    source, topic, inflated = make_topic(), make_topic(), make_topic()
    store: Config = {
        "large.message.payload.store.class": "filesystem",
        "filesystem.root": str(tmp_path / "store"),
        "filesystem.fsync": False,
        "large.message.threshold.bytes": THRESHOLD,
    }
    written = values(4)
    await asyncio.to_thread(with_confluent, broker, store, topic, written[0])
    async with SerializingProducer(producing(broker, writing(store, "aiokafka"))) as producer:
        await producer.send_and_wait(topic, written[1], partition=0, headers=[("a", b"1")])
    await asyncio.to_thread(with_kafka_python, broker, store, topic, written[2])
    await asyncio.to_thread(send, broker, source, [(0, None, written[3], [("a", b"1")], 5)])
    previous = [f"{name}:{secret}" for name, secret in _KEYS.items()]
    with worker_both_ways(
        tmp_path,
        broker,
        writing(store, "w")
        | {"large.message.encryption.previous.keys": previous, "consumer.auto.offset.reset": "earliest"},
        offload=(source, topic),
        inflate=(topic, inflated),
    ):
        await asyncio.to_thread(until, lambda: end_offsets(broker, inflated) == {0: 4}, "the worker is done")
    raw = (await asyncio.to_thread(read_all, broker, topic))[0]
    ids = [dict(record.headers)["large-message.encryption.key"] for record in raw]
    assert ids == [name.encode() for name in _KEYS]
    reading = {
        **{name: value for name, value in store.items() if name != "large.message.threshold.bytes"},
        "large.message.encryption.previous.keys": ",".join(previous),
    }
    found = (await asyncio.to_thread(read_all, broker, inflated))[0]
    assert [record.value for record in found] == written
    assert await asyncio.to_thread(read_by_confluent, broker, reading, topic, 4) == written
    assert await asyncio.to_thread(read_by_kafka_python, broker, reading, topic, 4) == written
    async with DeserializingConsumer(consuming(broker, reading), topic) as consumer:
        assert [(await one(consumer)).value for _ in range(4)] == written
    with FaustProcess(
        tmp_path / "faust", broker, topic, reading | {"large.message.threshold.bytes": THRESHOLD}
    ) as faust:
        events = await asyncio.to_thread(faust.events, 4)
    assert [event["value"] for event in events] == [digest(value) for value in written]
