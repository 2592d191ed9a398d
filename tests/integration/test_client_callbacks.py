"""What an application may do in a delivery callback of the producers of confluent-kafka and kafka-python."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka.partitioner import Partitioner

from app.serializers import confluent as by_confluent
from app.serializers import kafka_python as by_kafka_python
from app.serializers.confluent_callbacks import _CALLS, CallbackProducer
from tests.integration.chunk_records import value_of
from tests.integration.client_config import LARGE, ON_GATE, producing
from tests.integration.client_stores import GatedStore
from tests.integration.test_client_writes import SMALL_TOPIC, forms
from tests.integration.topics import end_offsets
from tests.integration.way import MakeTopic
from tests.integration.worker_process import until

_LONG_S = 60.0
_SMALL = 10


@pytest.mark.parametrize(
    ("queue", "room", "found"),
    [
        ("queue.buffering.max.messages", 30, "Queue full: .* has 40 chunks, and .* of 30 messages .* once poll or"),
        ("queue.buffering.max.kbytes", 400, "Queue full"),
    ],
)
async def test_values_in_chunks_are_sent_in_a_callback(
    broker: str, make_topic: MakeTopic, queue: str, room: int, found: str
) -> None:
    """`produce` neither polls nor lists topics on the thread of a callback, which would end the process.

    What would have to wait for room is refused there, and can be sent later.
    """
    topic = make_topic(**SMALL_TOPIC)
    told: list[Any] = []
    config = {"bootstrap.servers": broker, "large.message.strategy": "chunk", "batch.size": 5_000, queue: room}
    large = value_of(775_000)

    def done(error: KafkaError | None, _: object) -> None:
        told.append(error)
        if len(told) == 1:
            for key in (None, b"k"):  # without a key, the partitions are asked for
                producer.produce(topic, key, value_of(50_000), on_delivery=lambda error, _: told.append(error))
            with pytest.raises(BufferError, match=found):
                producer.produce(topic, b"k", large, on_delivery=done)

    with by_confluent.SerializingProducer(config) as producer:
        for _ in range(_SMALL):
            producer.produce(topic, b"k", b"small", on_delivery=done)
        until(lambda: sum(end_offsets(broker, topic).values()) == _SMALL, "all callbacks wait for one poll")
        assert producer.flush(_LONG_S) == 0
        assert told == [None] * (_SMALL + 2)
        producer.produce(topic, b"k", large, on_delivery=done)
    assert told == [None] * (_SMALL + 3)
    assert (await forms(broker, topic))[: _SMALL + 6] == ["plain"] * _SMALL + ["chunk"] * 6


def test_what_waits_for_callbacks_is_an_error_in_one(
    broker: str, make_topic: MakeTopic, gate: type[GatedStore]
) -> None:
    """`poll`, `flush` and what else would end the process there is refused, and the producer goes on."""
    topic = make_topic()
    found: list[str] = []

    def done(*_: object) -> None:
        for call in (producer.flush, producer.list_topics, producer.close, lambda: producer.poll(0)):
            with pytest.raises(KafkaException) as caught:
                call()
            assert caught.value.args[0].code() == KafkaError._STATE
            found.append(caught.value.args[0].str())

    with by_confluent.SerializingProducer(producing(broker, ON_GATE)) as producer:
        for _ in range(_SMALL):
            producer.produce(topic, b"k", b"small", on_delivery=done)
        until(lambda: sum(end_offsets(broker, topic).values()) == _SMALL, "all callbacks wait for one poll")
        assert producer.flush(_LONG_S) == 0
        producer.produce(topic, b"k", LARGE)  # no store was closed
    assert len(gate.payloads) == 1
    assert [text.partition(" ")[0] for text in found] == ["flush", "list_topics", "close", "poll"] * _SMALL
    assert "was called in a callback of the same producer" in found[0]


@pytest.mark.parametrize("name", _CALLS)
def test_no_call_is_forgotten(name: str) -> None:
    """Each call of confluent-kafka's that keeps a state by thread is guarded, and has its own text of help."""
    assert name in vars(CallbackProducer)
    assert getattr(CallbackProducer, name).__doc__


def test_a_partitioner_of_the_application_in_a_callback(broker: str, make_topic: MakeTopic) -> None:
    """kafka-python's own thread, which runs the callbacks, does not wait for itself to learn of the partition."""
    topic = make_topic(4, **SMALL_TOPIC)
    sent: list[Any] = []

    class Turns(Partitioner):  # type: ignore[misc]  # kafka-python has no types
        def partition(self, *_: Any) -> int:
            return len(sent) % 4

    config = {"bootstrap.servers": broker, "large.message.strategy": "chunk"}
    with by_kafka_python.SerializingProducer(config, partitioner=Turns()) as producer:
        producer.send(topic, value_of(2_000), b"k").get(_LONG_S)  # the topic is known
        first = producer.send(topic, b"small", b"k")
        first.add_callback(lambda _: sent.append(producer.send(topic, value_of(50_000), b"k")))
        until(lambda: sent, "the callback is done")
        assert sent[0].get(_LONG_S).offset >= 2
