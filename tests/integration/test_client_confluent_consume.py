"""confluent-kafka's `consume` of whole messages, and what is downloaded ahead for it and for `poll`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition
from confluent_kafka.error import ConsumeError, ValueDeserializationError

from app.chunks.allowance import PARALLEL
from app.serializers import LargeMessageDeserializer, LargeMessageSerializer
from app.serializers.confluent import DeserializingConsumer, SerializingProducer
from tests.integration.chunk_records import pieces, value_of, write
from tests.integration.client_config import LARGE, Config, on_s3, producing
from tests.integration.client_stores import GatedStore
from tests.integration.way import MakeTopic
from tests.integration.worker_process import until
from tests.s3_server import S3Server
from transforms.errors import PayloadNotFoundError, RecordDeserializationError
from transforms.record import Record

_LONG_S = 30.0


@contextmanager
def consuming(broker: str, topic: str, **more: Any) -> Iterator[DeserializingConsumer]:
    """A consumer that reads one topic from the beginning."""
    base = {"bootstrap.servers": broker, "group.id": topic, "auto.offset.reset": "earliest"}
    with DeserializingConsumer({**base, "enable.auto.commit": False, **more}) as consumer:
        consumer.subscribe([topic])
        yield consumer


def one(consumer: DeserializingConsumer) -> Message:
    """The next message."""
    message = consumer.poll(_LONG_S)
    assert message is not None
    return message


def values(consumer: DeserializingConsumer, count: int) -> list[Any]:
    """The next values."""
    return [one(consumer).value() for _ in range(count)]


@pytest.mark.parametrize("headers", [None, [("a", b"1!")]])
async def test_batches(broker: str, versitygw: S3Server, make_topic: MakeTopic, headers: Any) -> None:
    """`consume` gives whole messages, waits for as many as it is asked for, and gives what there is when it is late."""
    topic = make_topic()
    store: Config = on_s3(versitygw)
    with SerializingProducer(producing(broker, store)) as producer:
        for value in (LARGE, b"a", b"b", LARGE):
            producer.produce(topic, b"k", value, headers=headers)
        assert producer.flush(_LONG_S) == 0
    chunks = pieces("u", 3_000, 1)
    await write(broker, topic, chunks[:1])
    with consuming(broker, topic, **{"value.deserializer": LargeMessageDeserializer, **store}) as consumer:
        assert [each.value() for each in consumer.consume(3, _LONG_S)] == [LARGE, b"a", b"b"]
        waiting = asyncio.create_task(asyncio.to_thread(consumer.consume, 3, _LONG_S))
        await asyncio.sleep(0.1)
        await write(broker, topic, [*chunks[1:], Record(b"k", b"end"), Record(b"k", b"more")])
        found = await waiting
        assert [each.value() for each in found] == [LARGE, value_of(3_000, 1), b"end"]
        assert [each.offset() for each in found] == [3, 3 + len(chunks), 4 + len(chunks)]
        assert [each.value() for each in consumer.consume(3, 0.5)] == [b"more"]
        consumer.seek(TopicPartition(topic, 0, 1))
        assert [each.value() for each in consumer.consume(2, _LONG_S)] == [b"a", b"b"]
        assert consumer.consume(0, _LONG_S) == []
        with pytest.raises(ValueError, match="num_messages"):
            consumer.consume(1_000_001, 0)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
async def test_a_batch_ends_before_a_failure(broker: str, make_topic: MakeTopic, error: type[BaseException]) -> None:
    """What is before it is given, or after an interrupt given by the next call; each is deserialized once."""
    topic, errors, seen = make_topic(), [error("now")], list[bytes]()
    await write(broker, topic, [Record(b"k", b"%d" % n) for n in range(4)])

    def failing(data: bytes) -> bytes:
        if data == b"2" and errors:
            raise errors.pop()
        seen.append(data)
        return data + b"!"

    place = TopicPartition(topic, 0)
    with consuming(broker, topic, **{"value.deserializers": [failing]}) as consumer:
        if error is KeyboardInterrupt:
            with pytest.raises(KeyboardInterrupt):
                consumer.consume(4, _LONG_S)
            assert consumer.position([place])[0].offset == 0
            expected = [b"0!", b"1!", b"2!", b"3!"]
        else:
            assert [each.value() for each in consumer.consume(4, _LONG_S)] == [b"0!", b"1!"]
            assert consumer.position([place])[0].offset == 2
            with pytest.raises(ValueDeserializationError) as caught:
                consumer.consume(4, _LONG_S)
            assert isinstance(caught.value.exception, RecordDeserializationError)
            assert caught.value.exception.offset == 2
            expected = [b"3!"]
        assert [each.value() for each in consumer.consume(len(expected), _LONG_S)] == expected
        assert [*map(int, seen)] == sorted({*map(int, seen)})
        consumer.commit(asynchronous=False)
        assert consumer.committed([place])[0].offset == 4


async def test_ends_of_partitions(broker: str, make_topic: MakeTopic) -> None:
    """`consume` has them among the messages, behind those of their partition; `poll` raises them."""
    topic = make_topic()
    await write(broker, topic, [Record(b"k", b"a"), *pieces("u", 3_000, 1)])
    with consuming(broker, topic, **{"enable.partition.eof": True}) as consumer:
        found = consumer.consume(3, _LONG_S)
        end = found[-1].error()
        assert [each.value() for each in found[:2]] == [b"a", value_of(3_000, 1)]
        assert end is not None
        assert end.code() == KafkaError._PARTITION_EOF  # a public name
        await write(broker, topic, [Record(b"k", b"b")])
        assert values(consumer, 1) == [b"b"]
        with pytest.raises(ConsumeError, match="_PARTITION_EOF"):
            consumer.poll(_LONG_S)


@pytest.mark.parametrize("way", ["poll", "consume"])
def test_downloads_of_the_next_messages_are_under_way(broker: str, make_topic: MakeTopic, way: str) -> None:
    """Eight at a time, for `poll` too; what is downloaded comes in order, and a failure in its place."""
    topic = make_topic()
    GatedStore.reset()
    store: Config = {"large.message.payload.store.class": GatedStore, "large.message.threshold.bytes": 100}
    expected = [b"%d" % n * 1_000 for n in range(9)]
    with SerializingProducer({"bootstrap.servers": broker, "value.serializer": LargeMessageSerializer, **store}) as to:
        for value in expected:
            to.produce(topic, b"k", value)
        assert to.flush(_LONG_S) == 0
    del GatedStore.payloads[[*GatedStore.payloads][4]]
    GatedStore.open.clear()
    with consuming(broker, topic, **{"value.deserializer": LargeMessageDeserializer, **store}) as consumer:
        with ThreadPoolExecutor(1) as thread:
            most = 1 if way == "poll" else 9
            waiting = thread.submit(lambda: [one(consumer)] if most == 1 else consumer.consume(most, _LONG_S))
            until(lambda: GatedStore.begun == PARALLEL, "eight downloads are under way", _LONG_S)
            GatedStore.open.set()
            found = [each.value() for each in waiting.result(_LONG_S)]
        while len(found) < 4:
            found += values(consumer, 1)
        with pytest.raises(ValueDeserializationError) as caught:
            consumer.poll(_LONG_S)
        assert isinstance(caught.value.exception, RecordDeserializationError)
        assert isinstance(caught.value.exception.__cause__, PayloadNotFoundError)
        assert caught.value.kafka_message is not None
        assert (caught.value.kafka_message.value() or b"").startswith(b"gated://")
        found += values(consumer, 4)
        assert found == [each for number, each in enumerate(expected) if number != 4]
    assert GatedStore.begun == len(expected)
