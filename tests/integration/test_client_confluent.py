"""confluent-kafka's own clients with our serializers, against a real broker and a real S3 server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import DeserializingConsumer, Message, SerializingProducer, TopicPartition
from confluent_kafka.aio import AsyncDeserializingConsumer
from confluent_kafka.error import KeyDeserializationError, ValueDeserializationError, ValueSerializationError
from confluent_kafka.serialization import StringDeserializer, StringSerializer

from app.serializers import LargeMessageDeserializer, LargeMessageSerializer
from app.serializers.confluent import async_consumer_config, consumer_config, producer_config
from tests.integration.client_config import LARGE, MIXED, Config, on_s3, to_json, worker_both_ways
from tests.integration.client_stores import CuttableWay, delete_payload, delete_payloads, run_example
from tests.integration.topics import committed, end_offsets, read_all
from tests.integration.way import MakeTopic
from tests.integration.worker_process import until
from tests.s3_server import S3Server
from transforms.errors import PayloadNotFoundError, PayloadStoreError, SerializationError

_LONG_S = 30.0


@contextmanager
def producing(broker: str, store: Config, **more: Any) -> Iterator[SerializingProducer[Any, Any]]:
    """A producer, whose records are all delivered at the end."""
    stages = {} if "value.serializers" in more else {"value.serializer": LargeMessageSerializer}
    config = producer_config({"bootstrap.servers": broker, **stages, **store, **more})
    try:
        with SerializingProducer(config) as producer:
            yield producer
            assert producer.flush(_LONG_S) == 0
    finally:
        for side in ("key.serializer", "value.serializer"):
            if side in config:
                config[side].close()


@contextmanager
def consuming(broker: str, store: Config, topic: str, **more: Any) -> Iterator[DeserializingConsumer[Any, Any]]:
    """A consumer that reads one topic from the beginning."""
    stages = {} if "value.deserializers" in more else {"value.deserializer": LargeMessageDeserializer}
    base = {"bootstrap.servers": broker, "group.id": f"{topic}-g", "auto.offset.reset": "earliest"}
    config = consumer_config({**base, **stages, **store, **more})
    try:
        with DeserializingConsumer(config) as consumer:
            consumer.subscribe([topic])
            yield consumer
    finally:
        for side in ("key.deserializer", "value.deserializer"):
            if side in config:
                config[side].close()


def one(consumer: DeserializingConsumer[Any, Any]) -> Message[Any, Any]:
    """The next record, within bounded time."""
    deadline = time.monotonic() + _LONG_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None:  # one with a null value has no length, and counts as false
            return message
    pytest.fail("waited in vain for a record")


def failure(consumer: DeserializingConsumer[Any, Any]) -> ValueDeserializationError:
    """The error of the next record."""
    with pytest.raises(ValueDeserializationError) as caught:
        one(consumer)
    return caught.value


def produce(broker: str, store: Config, topic: str, values: list[bytes | None], **more: Any) -> None:
    """Writes values in order."""
    with producing(broker, store, **more) as producer:
        for value in values:
            producer.produce(topic, value=value, key=b"k", headers=[])


# --- round trip -------------------------------------------------------------------------------------------------------


def test_records_come_back(broker: str, make_topic: MakeTopic, versitygw: S3Server) -> None:
    """Small, large and null keys and values come back in order, with their headers; a dict of headers serves too."""
    topic = make_topic()
    headers: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("b", None), ("a", b"2")]
    there: Config = {
        "value.serializers": [to_json, LargeMessageSerializer],
        "key.serializers": [StringSerializer(), LargeMessageSerializer],
    }
    with producing(broker, on_s3(versitygw), **there) as producer:
        for value, key in MIXED:
            producer.produce(topic, key=key, value=value, headers=list(headers))
        producer.produce(topic, value={"x": "x" * 5_000}, headers={"a": b"1"})
    back: Config = {
        "value.deserializers": [LargeMessageDeserializer, json.loads],
        "key.deserializers": [LargeMessageDeserializer, StringDeserializer],
    }
    with consuming(broker, on_s3(versitygw), topic, **back) as consumer:
        found = [one(consumer) for _ in MIXED]
        last = one(consumer)
    assert [(message.deserialized_value(), message.deserialized_key()) for message in found] == MIXED
    assert [message.headers() for message in found] == [headers] * len(MIXED)
    assert [message.offset() for message in found] == list(range(len(MIXED)))
    assert last.deserialized_value() == {"x": "x" * 5_000}
    assert last.headers() == [("a", b"1")]
    raw = read_all(broker, topic)[0]
    paths = [(record.value or b"").startswith(b"s3://payloads/clients/") for record in raw]
    assert paths == [False, True, False, False, True, False, True]
    assert raw[3].key == raw[4].key != b"k" * 5_000  # equal keys have equal references


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_missing_payload_is_passed_over(broker: str, make_topic: MakeTopic, versitygw: S3Server) -> None:
    """`exception.__cause__` says that it is gone, `kafka_message` which record it was; the next poll goes on."""
    topic = make_topic()
    produce(broker, on_s3(versitygw), topic, [b"1", LARGE, LARGE + b"3"])
    delete_payloads(versitygw, broker, topic, 1)
    with consuming(broker, on_s3(versitygw), topic) as consumer:
        assert one(consumer).value() == b"1"
        error = failure(consumer)
        assert isinstance(error.exception, SerializationError)
        assert isinstance(error.exception.__cause__, PayloadNotFoundError)
        assert not error.exception.retriable
        assert error.kafka_message is not None
        assert error.kafka_message.offset() == 1
        assert (error.kafka_message.value() or b"").startswith(b"s3://")
        assert ("large-message", b"true") in (error.kafka_message.headers() or [])
        assert one(consumer).value() == LARGE + b"3"


def test_a_missing_key_is_an_error_of_the_key(broker: str, make_topic: MakeTopic, versitygw: S3Server) -> None:
    """confluent-kafka's own class for keys has ours within too."""
    topic = make_topic()
    with producing(broker, on_s3(versitygw), **{"key.serializer": LargeMessageSerializer}) as producer:
        producer.produce(topic, key=b"gone" * 1_000, value=b"v", headers=[])
    (record,) = read_all(broker, topic)[0]
    delete_payload(versitygw, record.key)
    with (
        consuming(broker, on_s3(versitygw), topic, **{"key.deserializer": LargeMessageDeserializer}) as consumer,
        pytest.raises(KeyDeserializationError) as caught,
    ):
        one(consumer)
    assert caught.value.exception is not None
    assert isinstance(caught.value.exception.__cause__, PayloadNotFoundError)


def test_a_store_that_is_down_and_up_again(broker: str, make_topic: MakeTopic, cuttable: CuttableWay) -> None:
    """A record that failed is had again by a seek to its offset; the producer's record fails, and nothing is sent."""
    topic = make_topic()
    store = on_s3(cuttable.server)
    produce(broker, store, topic, [b"1", LARGE, b"3"])
    with consuming(broker, store, topic) as consumer:
        assert one(consumer).value() == b"1"
        cuttable.cut()
        error = failure(consumer)
        assert isinstance(error.exception, SerializationError)
        assert isinstance(error.exception.__cause__, PayloadStoreError)
        assert not isinstance(error.exception.__cause__, PayloadNotFoundError)
        assert error.exception.retriable
        with producing(broker, store) as producer, pytest.raises(ValueSerializationError) as caught:
            producer.produce(topic, value=LARGE, headers=[])
        assert isinstance(caught.value.exception, SerializationError)
        assert caught.value.exception.retriable
        assert end_offsets(broker, topic) == {0: 3}
        cuttable.mend()
        failed = error.kafka_message
        assert failed is not None
        consumer.seek(TopicPartition(failed.topic() or "", failed.partition() or 0, failed.offset() or 0))
        assert [one(consumer).value() for _ in range(2)] == [LARGE, b"3"]
    produce(broker, store, topic, [LARGE + b"4"])
    assert end_offsets(broker, topic) == {0: 4}


def test_commits_pass_a_failed_record_unless_offsets_are_stored_by_the_application(
    broker: str, make_topic: MakeTopic, versitygw: S3Server
) -> None:
    """librdkafka stores an offset before the record is deserialized, and a seek does not take it back.

    With enable.auto.offset.store=false the failed record stays.
    """
    topic = make_topic()
    produce(broker, on_s3(versitygw), topic, [b"1", LARGE, b"3"])
    delete_payloads(versitygw, broker, topic, 1)

    def committed_after(stored: bool, sought: bool) -> dict[int, int]:  # noqa: FBT001  # `map` gives them so
        keys = {"enable.auto.offset.store": stored, "group.id": f"{topic}-{stored}-{sought}"}
        with consuming(broker, on_s3(versitygw), topic, **keys) as consumer:
            message = one(consumer)
            if not stored:
                consumer.store_offsets(message)
            failure(consumer)
            if sought:
                consumer.seek(TopicPartition(topic, 0, 1))
        return committed(broker, str(keys["group.id"]), topic)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(committed_after, (True, True, False, False), (False, True, False, True)))
    assert found == [{0: 2}, {0: 2}, {0: 1}, {0: 1}]


# --- asyncio ----------------------------------------------------------------------------------------------------------


async def test_the_asyncio_consumer(broker: str, make_topic: MakeTopic, versitygw: S3Server) -> None:
    """`confluent_kafka.aio` awaits our deserializers; a missing payload is the same error there."""
    topic = make_topic()
    await asyncio.to_thread(produce, broker, on_s3(versitygw), topic, [b"1", LARGE, LARGE + b"3", None])
    await asyncio.to_thread(delete_payloads, versitygw, broker, topic, 2)
    base = {"bootstrap.servers": broker, "group.id": f"{topic}-g", "auto.offset.reset": "earliest"}
    config = async_consumer_config({**base, "value.deserializer": LargeMessageDeserializer, **on_s3(versitygw)})
    consumer = await AsyncDeserializingConsumer(config)
    try:
        await consumer.subscribe([topic])
        found: list[object] = []
        async with asyncio.timeout(_LONG_S):
            while len(found) < 4:
                try:
                    message = await consumer.poll(0.5)
                except ValueDeserializationError as error:
                    found.append(type(getattr(error.exception, "__cause__", None)))
                else:
                    found += [] if message is None else [message.value()]
        assert found == [b"1", LARGE, PayloadNotFoundError, None]
    finally:
        await consumer.close()
        await config["value.deserializer"].aclose()


# --- workers, example -------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_a_worker_reads_what_a_producer_wrote_and_the_reverse(
    broker: str, make_topic: MakeTopic, versitygw: S3Server, tmp_path: Path
) -> None:
    """A worker's `inflate` restores what serializers offloaded, keys too; deserializers, what `offload` did."""
    raw, written, inflated, offloaded = (make_topic(**{"max.message.bytes": 4_000_000}) for _ in range(4))
    store = on_s3(versitygw)
    values = [b"small", LARGE, b"x" * 2_000_000, None]
    headers: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("a", None)]
    topics = {"offload": (raw, offloaded), "inflate": (written, inflated)}
    with worker_both_ways(tmp_path, broker, store, **topics) as worker:
        worker.wait_ready()
        with producing(broker, store, **{"large.message.compression.type": "zstd"}) as producer:
            for value in values:
                producer.produce(written, value=value, key=b"k", headers=list(headers))
        large_key = b"k" * 2_000
        with producing(broker, store, **{"key.serializer": LargeMessageSerializer}) as producer:
            for value in values:
                producer.produce(written, value=value, key=large_key, headers=list(headers))
        with SerializingProducer({"bootstrap.servers": broker, "message.max.bytes": 3_000_000}) as plain:
            for value in values:
                plain.produce(raw, value=value, key=b"k", headers=list(headers))
            assert plain.flush(_LONG_S) == 0
        whole = until(lambda: _all(broker, inflated, 2 * len(values)), "the worker has inflated all")
        with consuming(broker, store, offloaded) as consumer:
            restored = [one(consumer) for _ in values]
    assert whole == [(key, value, tuple(headers)) for key in (b"k", large_key) for value in values]
    assert [(each.key(), each.value(), each.headers()) for each in restored] == [
        (b"k", value, headers) for value in values
    ]


def _all(broker: str, topic: str, count: int) -> list[tuple[object, object, object]]:
    records = read_all(broker, topic).get(0, [])
    return [(record.key, record.value, record.headers) for record in records] if len(records) == count else []


def test_the_example_runs(broker: str, make_topic: MakeTopic, versitygw: S3Server) -> None:
    """docs/examples/confluent_client.py sends and reads a large value, and passes over one that is gone."""
    topic = make_topic()
    produce(broker, {**on_s3(versitygw), "s3.prefix": ""}, topic, [to_json({"id": 0, "scan": "y" * 5_000})])
    delete_payloads(versitygw, broker, topic, 0)
    out = run_example("confluent_client.py", broker, topic, versitygw)
    assert "partition 0 offset 0 cannot be deserialized" in out
    assert "there is no payload at" in out
    assert "5,000,000 characters" in out
