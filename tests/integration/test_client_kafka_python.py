"""kafka-python's clients with serializers, against a real broker and a real S3 server."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord

from app.serializers.kafka_python import DeserializingConsumer, SerializingProducer
from tests.integration.client_config import (
    LARGE,
    Config,
    consuming,
    on_s3,
    producing,
    worker_both_ways,
)
from tests.integration.client_stores import delete_payloads, run_example
from tests.integration.way import MakeTopic
from tests.s3_server import S3Server

_LONG_S = 30.0


def produce(broker: str, store: Config, topic: str, values: list[bytes | None], partition: int = 0) -> None:
    """Writes values in order."""
    with SerializingProducer(producing(broker, store)) as producer:
        for value in values:
            producer.send(topic, value, b"k", partition=partition)


def many(consumer: KafkaConsumer, count: int = 1) -> dict[TopicPartition, list[ConsumerRecord]]:
    """What the polls give, until it is `count` records at least."""
    found: dict[TopicPartition, list[ConsumerRecord]] = {}
    deadline = time.monotonic() + _LONG_S
    while sum(map(len, found.values())) < count:
        assert time.monotonic() < deadline, f"only {found} came"
        for tp, records in consumer.poll(timeout_ms=500).items():
            found.setdefault(tp, []).extend(records)
    return found


# --- round trip -------------------------------------------------------------------------------------------------------


# --- bounds -----------------------------------------------------------------------------------------------------------


# --- failures ---------------------------------------------------------------------------------------------------------


# --- the example ------------------------------------------------------------------------------------------------------


def test_the_example(broker: str, make_topic: MakeTopic, versitygw: S3Server) -> None:
    """The script of the documentation passes over a payload that is gone, and reads what it has sent."""
    topic = make_topic()
    produce(broker, {**on_s3(versitygw), "s3.prefix": ""}, topic, [LARGE])
    delete_payloads(versitygw, broker, topic, 0)
    printed = run_example("kafka_python_client.py", broker, topic, versitygw)
    gone, sent = printed.splitlines()
    assert f"topic {topic} partition 0 offset 0 " in gone
    assert "there is no payload at" in gone
    assert re.fullmatch(r"offset 1: order \d+, 5,000,000 characters", sent)


# --- workers, configuration -------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_a_worker_reads_what_a_producer_wrote_and_the_reverse(
    broker: str, make_topic: MakeTopic, versitygw: S3Server, tmp_path: Path
) -> None:
    """A worker's `inflate` restores what the serializer offloaded; the deserializer restores what `offload` did."""
    raw, written, inflated, offloaded = (make_topic(**{"max.message.bytes": 4_000_000}) for _ in range(4))
    store = on_s3(versitygw)
    values = [b"small", LARGE, b"x" * 2_000_000, None]
    headers = [("a", b"1"), ("a", b"2")]
    plain = {"bootstrap.servers": broker, "auto.offset.reset": "earliest", "max.partition.fetch.bytes": 8_000_000}
    topics = {"offload": (raw, offloaded), "inflate": (written, inflated)}
    with worker_both_ways(tmp_path, broker, store, **topics) as worker:
        worker.wait_ready()
        compressed = {"large.message.compression.type": "gzip"}
        with SerializingProducer(producing(broker, on_s3(versitygw), **compressed)) as producer:
            for value in values:
                producer.send(written, value, b"k", headers)
        with SerializingProducer({"bootstrap.servers": broker, "max.request.size": 3_000_000}) as producer:
            for value in values:
                producer.send(raw, value, b"k", headers)
        with DeserializingConsumer(plain, inflated) as consumer:
            ((_, whole),) = many(consumer, len(values)).items()
        with DeserializingConsumer(consuming(broker, on_s3(versitygw)), offloaded) as consumer:
            ((_, restored),) = many(consumer, len(values)).items()
    for found in (whole, restored):
        assert [(record.key, record.value, record.headers) for record in found] == [
            (b"k", value, headers) for value in values
        ]
