"""confluent-kafka's consumer for whatever a topic holds: chunks are put together, nothing is lost, commits are safe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Message
from confluent_kafka.error import ValueDeserializationError

from app.chunks import Discarded
from app.serializers import LargeMessageDeserializer
from app.serializers.confluent import DeserializingConsumer, SerializingProducer
from tests.integration.chunk_records import pieces, value_of, write
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
