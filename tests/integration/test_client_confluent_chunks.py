"""confluent-kafka's consumer for whatever a topic holds: chunks are put together, nothing is lost, commits are safe."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from confluent_kafka import KafkaException, Message, TopicPartition
from confluent_kafka.error import ValueDeserializationError

from app.chunks import Discarded
from app.serializers import ConfigurationError, LargeMessageDeserializer, LargeMessageSerializer
from app.serializers.confluent import DeserializingConsumer, SerializingProducer
from tests.integration.chunk_records import interleaved, pieces, value_of, write
from tests.integration.client_config import LARGE, Config, on_s3, producing
from tests.integration.way import MakeTopic
from tests.s3_server import S3Server
from transforms.errors import RecordDeserializationError, ReferenceRefusedError
from transforms.record import Record

TIGHT = {"max.pending.chunked.message": 1}
_LONG_S = 30.0


@contextmanager
def consuming(
    broker: str, topic: str, found: list[Discarded] | None = None, **more: Any
) -> Iterator[DeserializingConsumer]:
    """A consumer that reads one topic from the beginning, or from where its group is."""
    base = {"bootstrap.servers": broker, "group.id": f"{topic}-g", "auto.offset.reset": "earliest"}
    config = {**base, "enable.auto.commit": False, **more}
    on_discarded = (lambda _: None) if found is None else found.append
    with DeserializingConsumer(config, on_discarded) as consumer:
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


async def test_plain_references_and_chunks(broker: str, versitygw: S3Server, make_topic: MakeTopic) -> None:
    """Every value comes whole and in order, with its own headers; a message of chunks has the last one's offset."""
    topic = make_topic()
    store: Config = on_s3(versitygw)
    with SerializingProducer(producing(broker, store)) as producer:
        producer.produce(topic, b"k", LARGE)
        assert producer.flush(_LONG_S) == 0
    chunks = pieces("u", 3_000, 1)
    await write(broker, topic, [Record(b"k", b"plain"), *chunks, Record(b"k", None)])
    with consuming(broker, topic, [], **{"value.deserializer": LargeMessageDeserializer, **store}) as consumer:
        messages = [one(consumer) for _ in range(4)]
        assert [each.value() for each in messages] == [LARGE, b"plain", value_of(3_000, 1), None]
        assert (messages[2].offset(), messages[2].headers(), messages[2].key()) == (1 + len(chunks), [], b"k")
        assert consumer.counts.assembled == 1
        assert consumer.poll(0.1) is None


def test_an_interrupt_during_a_download(broker: str, make_topic: MakeTopic) -> None:
    """The next call gives the record that Ctrl-C has taken from the application, and no commit passes it before."""
    topic = make_topic()
    with SerializingProducer({"bootstrap.servers": broker}) as producer:
        for value in (b"1", b"2", b"3"):
            producer.produce(topic, b"k", value)
        assert producer.flush(_LONG_S) == 0
    interrupts = [KeyboardInterrupt("now")]

    def slow(data: bytes) -> bytes:
        if data == b"2" and interrupts:
            raise interrupts.pop()
        return data

    with consuming(broker, topic, [], **{"value.deserializers": [slow], "enable.auto.commit": True}) as consumer:
        assert values(consumer, 1) == [b"1"]
        with pytest.raises(KeyboardInterrupt):
            one(consumer)
    interrupts.append(KeyboardInterrupt("now"))
    with consuming(broker, topic, [], **{"value.deserializers": [slow]}) as consumer:
        with pytest.raises(KeyboardInterrupt):
            one(consumer)
        assert values(consumer, 2) == [b"2", b"3"]


def test_key_and_value_are_large(broker: str, versitygw: S3Server, make_topic: MakeTopic) -> None:
    """An interrupt, or an error, behind the restored key leaves both references as they are."""
    topic, key = make_topic(), b"k" * 3_000
    store: Config = on_s3(versitygw)
    with SerializingProducer({**producing(broker, store), "key.serializer": LargeMessageSerializer}) as producer:
        producer.produce(topic, key, LARGE, headers=[("a", b"1")])
        assert producer.flush(_LONG_S) == 0
    errors: list[BaseException] = [ValueError("no such value"), KeyboardInterrupt("now")]

    def failing(data: bytes) -> bytes:
        if errors:
            raise errors.pop()
        return data

    large = {"key.deserializer": LargeMessageDeserializer, "value.deserializers": [LargeMessageDeserializer, failing]}
    with consuming(broker, topic, [], **large, **store) as consumer:
        with pytest.raises(KeyboardInterrupt):
            one(consumer)
        with pytest.raises(ValueDeserializationError) as caught:
            one(consumer)
        message = caught.value.kafka_message
        assert message is not None
        assert {"a", "large-message", "large-message-key"} <= dict(message.headers() or []).keys()
        assert (message.key() or b"").startswith(b"s3://")
        consumer.seek(TopicPartition(topic, 0, 0))
        found = one(consumer)
    assert (found.key(), found.value(), found.headers()) == (key, LARGE, [("a", b"1")])


def test_a_stage_that_fails_leaves_the_record_as_it_was(
    broker: str, versitygw: S3Server, make_topic: MakeTopic
) -> None:
    """`kafka_message` has the whole reference, so that a dead-letter topic gets one that can be restored."""
    topic = make_topic()
    store: Config = on_s3(versitygw)
    with SerializingProducer(producing(broker, store)) as producer:
        producer.produce(topic, b"k", LARGE)
        assert producer.flush(_LONG_S) == 0
    stages: Config = {"value.deserializers": [LargeMessageDeserializer, json.loads]}
    with (
        consuming(broker, topic, [], **stages, **store) as consumer,
        pytest.raises(ValueDeserializationError) as caught,
    ):
        one(consumer)
    message = caught.value.kafka_message
    assert message is not None
    assert (message.value() or b"").startswith(b"s3://")
    assert "large-message" in dict(message.headers() or [])


async def test_callbacks_of_a_subscription(broker: str, make_topic: MakeTopic) -> None:
    """They may be given by position, as with confluent-kafka's own class, and are called with the consumer."""
    topic = make_topic()
    await write(broker, topic, [Record(b"k", b"x")])
    called: list[tuple[bool, list[int]]] = []
    config = {"bootstrap.servers": broker, "group.id": topic, "auto.offset.reset": "earliest"}
    with DeserializingConsumer(config) as consumer:
        consumer.subscribe([topic], lambda who, found: called.append((who is consumer, [p.partition for p in found])))
        assert one(consumer).value() == b"x"
    assert called == [(True, [0])]


async def test_a_record_that_cannot_be_deserialized(broker: str, versitygw: S3Server, make_topic: MakeTopic) -> None:
    """It is confluent-kafka's own error, with the record; the next poll goes on."""
    topic = make_topic()
    wrong = Record(b"k", b"s3://elsewhere/x/y", [("large-message", b"true")])
    await write(broker, topic, [wrong, *pieces("u", 1_000, 1)])
    store: Config = on_s3(versitygw)
    with consuming(broker, topic, [], **{"value.deserializer": LargeMessageDeserializer, **store}) as consumer:
        with pytest.raises(ValueDeserializationError) as caught:
            consumer.poll(_LONG_S)
        failed = caught.value.kafka_message
        assert failed is not None
        assert failed.offset() == 0
        reason = caught.value.exception
        assert isinstance(reason, RecordDeserializationError)
        assert (reason.topic, reason.partition, reason.offset) == (topic, 0, 0)
        assert isinstance(reason.__cause__, ReferenceRefusedError)
        assert values(consumer, 1) == [value_of(1_000, 1)]


async def test_consumers_come_and_go(broker: str, make_topic: MakeTopic, least_session_ms: int) -> None:
    """Rebalanced and stopped at any time, with room for one message: every value comes, nothing is discarded."""
    topic = make_topic(2)
    expected: set[bytes] = set()
    for partition in range(2):
        messages = [pieces(f"p{partition}-{n}", 3_000, 100 * partition + n) for n in range(8)]
        expected |= {value_of(3_000, 100 * partition + n) for n in range(8)}
        await write(broker, topic, list(interleaved(messages, partition)), partition)
    rng = random.Random(6)
    found: list[Discarded] = []
    got: set[Any] = set()
    more = {**TIGHT, "session.timeout.ms": least_session_ms, "heartbeat.interval.ms": 300, "enable.auto.commit": True}
    until_s = time.monotonic() + 90
    while got != expected:
        assert time.monotonic() < until_s
        with consuming(broker, topic, found, **more) as first, consuming(broker, topic, found, **more) as second:
            for _ in range(rng.randint(4, 12)):
                for consumer in (first, second):
                    message = consumer.poll(0.3)
                    got |= set() if message is None else {message.value()}
                    if rng.random() < 0.2:
                        with suppress(KafkaException):  # of a rebalance, or nothing to commit
                            consumer.commit(asynchronous=False)
    assert found == []


def test_keys_are_known() -> None:
    """The keys of chunks stand beside librdkafka's; a wrong one is told with the nearest."""
    base = {"bootstrap.servers": "-", "group.id": "g"}
    with pytest.raises(ConfigurationError, match=r"did you mean chunk\.lookback\?"):
        DeserializingConsumer({**base, "chunk.lookbak": 1})
    with pytest.raises(ConfigurationError, match="allowed is 0 or more"):
        DeserializingConsumer({**base, "chunk.lookback": -1})
