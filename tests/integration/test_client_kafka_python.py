"""kafka-python's clients with serializers, against a real broker and a real S3 server."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaConfigurationError

from app.serializers import LargeMessageDeserializer, LargeMessageSerializer
from app.serializers.kafka_python import DeserializingConsumer, SerializingProducer
from tests.integration.client_config import (
    LARGE,
    MIXED,
    ON_GATE,
    THRESHOLD,
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


def test_records_come_back(broker: str, make_topic: MakeTopic, versitygw: S3Server) -> None:
    """Small, large and null keys and values come back in order, with their headers; the caller's list stays his own."""
    topic = make_topic()
    headers = [("a", b"1"), ("b", b""), ("a", b"2")]
    there: Config = {
        "value.serializer": None,
        "value.serializers": [to_json, LargeMessageSerializer],
        "key.serializers": [str.encode, LargeMessageSerializer],
        "linger.ms": "5",
    }
    with SerializingProducer(producing(broker, on_s3(versitygw), **there), acks="all") as producer:
        for value, key in MIXED:
            producer.send(topic, value, key, headers)
    assert headers == [("a", b"1"), ("b", b""), ("a", b"2")]
    back: Config = {
        "value.deserializer": None,
        "value.deserializers": [LargeMessageDeserializer, json.loads],
        "key.deserializers": [LargeMessageDeserializer, bytes.decode],
    }
    with DeserializingConsumer(consuming(broker, on_s3(versitygw), **back), topic) as consumer:
        ((_, found),) = many(consumer, len(MIXED)).items()
    assert [(record.value, record.key) for record in found] == MIXED
    assert [record.headers for record in found] == [headers] * len(MIXED)
    assert [record.offset for record in found] == list(range(len(MIXED)))
    raw = read_all(broker, topic)[0]
    paths = [(record.value or b"").startswith(b"s3://payloads/clients/") for record in raw]
    assert paths == [False, True, False, False, True, False]
    assert raw[3].key == raw[4].key != b"k" * 5_000  # equal keys have equal references


def test_iteration_gives_the_same(broker: str, make_topic: MakeTopic, gate: type[GatedStore]) -> None:
    """Iterating gives what `poll` gives, in its bounds, and commits end behind what was given."""
    topic = make_topic()
    values = [b"1", LARGE, b"3", None, LARGE * 2, b"6"]
    produce(broker, ON_GATE, topic, values)
    group = {"group.id": f"{topic}-g", "fetch.max.bytes": 6_000, "consumer.timeout.ms": 20_000}
    found = []
    with DeserializingConsumer(consuming(broker, ON_GATE, **group), topic) as consumer:
        for record in consumer:
            found.append(record.value)
            if len(found) == 5:
                break
    assert found == values[:5]
    assert committed(broker, f"{topic}-g", topic) == {0: 5}


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_a_poll_is_bounded_in_bytes(broker: str, make_topic: MakeTopic, gate: type[GatedStore]) -> None:
    """`poll` downloads no more than `fetch.max.bytes`; what is left comes with the next ones, and nothing twice."""
    topic = make_topic(2)
    for partition in (0, 1):
        produce(broker, ON_GATE, topic, [b"%d" % number + LARGE for number in range(6)], partition)
    found: dict[int, list[int]] = {0: [], 1: []}
    with DeserializingConsumer(consuming(broker, ON_GATE, **{"fetch.max.bytes": "11000"}), topic) as consumer:
        while sum(map(len, found.values())) < 12:
            batch = many(consumer)
            assert sum(len(records) for records in batch.values()) <= 2
            for tp, records in batch.items():
                found[tp.partition] += [record.offset for record in records]
    assert found == {0: list(range(6)), 1: list(range(6))}
    assert gate.begun == 12


def test_a_payload_over_the_bound_comes_alone(broker: str, make_topic: MakeTopic, gate: type[GatedStore]) -> None:
    """The first payload of a call is downloaded however large it is."""
    topic = make_topic()
    produce(broker, ON_GATE, topic, [b"first", LARGE, b"small", LARGE])
    with DeserializingConsumer(consuming(broker, ON_GATE, **{"fetch.max.bytes": 4_000}), topic) as consumer:
        ((_, records),) = many(consumer).items()
        assert [record.value for record in records] == [b"first", LARGE, b"small"]
        ((_, records),) = many(consumer).items()
        assert [record.value for record in records] == [LARGE]


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_missing_payload_is_told_and_passed(broker: str, make_topic: MakeTopic, versitygw: S3Server) -> None:
    """What is before it is delivered first; the error has its place, comes again, and a seek goes on behind it."""
    topic = make_topic()
    produce(broker, on_s3(versitygw), topic, [b"0", LARGE, LARGE + b"gone", b"3"])
    delete_payloads(versitygw, broker, topic, 2)
    tp = TopicPartition(topic, 0)
    polled: Callable[[KafkaConsumer], object] = many
    with DeserializingConsumer(consuming(broker, on_s3(versitygw)), topic) as consumer:
        for read in (polled, next):
            if read is next:
                consumer.seek(tp, 0)
                assert [next(consumer).value, next(consumer).value] == [b"0", LARGE]
            else:
                assert [record.value for record in many(consumer, 2)[tp]] == [b"0", LARGE]
            for _ in range(3):
                with pytest.raises(RecordDeserializationError, match=f"topic {topic} partition 0 offset 2 ") as caught:
                    read(consumer)
                assert isinstance(caught.value.__cause__, PayloadNotFoundError)
                assert (caught.value.partition, caught.value.offset, caught.value.retriable) == (0, 2, False)
                assert consumer.position(tp) == 2
        consumer.seek(tp, 3)
        assert next(consumer).value == b"3"


def test_a_store_that_is_down_comes_back(broker: str, make_topic: MakeTopic, versitygw: S3Server) -> None:
    """A producer and a consumer say that another try may do, and it does; nothing is lost or twice."""
    topic = make_topic()
    way = CuttableWay(versitygw)
    store = on_s3(way.server)
    try:
        with SerializingProducer(producing(broker, store)) as producer:
            producer.send(topic, LARGE + b"0")
            way.cut()
            with pytest.raises(SerializationError) as caught:
                producer.send(topic, LARGE + b"1")
            assert isinstance(caught.value.__cause__, PayloadStoreError)
            assert caught.value.retriable
            producer.send(topic, b"small values still go")
            way.mend()
            producer.send(topic, LARGE + b"1")
        way.cut()
        group = {"group.id": f"{topic}-g"}
        with DeserializingConsumer(consuming(broker, store, **group), topic) as consumer:
            for _ in range(2):
                with pytest.raises(SerializationError) as caught:
                    many(consumer)
                assert (caught.value.offset, caught.value.retriable) == (0, True)
        assert committed(broker, f"{topic}-g", topic) == {0: 0}
        way.mend()
        with DeserializingConsumer(consuming(broker, store, **group), topic) as consumer:
            ((_, found),) = many(consumer, 3).items()
    finally:
        way.cut()
    assert [record.value for record in found] == [LARGE + b"0", b"small values still go", LARGE + b"1"]


def test_a_failure_does_not_hide_behind_other_partitions(
    broker: str, make_topic: MakeTopic, gate: type[GatedStore]
) -> None:
    """Where other partitions deliver, the failure is raised by the next call, and no more once it is passed over."""
    topic = make_topic(2)
    bad, good = (TopicPartition(topic, number) for number in (0, 1))
    produce(broker, ON_GATE, topic, [LARGE, b"behind"], 0)
    gate.fails = PayloadNotFoundError("gated://gone")
    produce(broker, ON_GATE, topic, [b"%d" % number for number in range(3)], 1)
    with DeserializingConsumer(consuming(broker, ON_GATE)) as consumer:
        consumer.assign([bad, good])
        found: list[bytes] = []
        failed = 0
        deadline = time.monotonic() + _LONG_S
        while (len(found) < 3 or not failed) and time.monotonic() < deadline:
            try:
                for records in consumer.poll(timeout_ms=500, max_records=2).values():
                    found += [record.value for record in records]
            except SerializationError as error:
                assert (error.partition, error.offset) == (0, 0)  # noqa: PT017  # beside what is delivered
                failed += 1
        assert found == [b"0", b"1", b"2"]
        assert failed
        consumer.seek(bad, 1)
        ((_, (record,)),) = many(consumer).items()
        assert record.value == b"behind"


def test_an_interrupt_gives_all_back(broker: str, make_topic: MakeTopic, gate: type[GatedStore]) -> None:
    """Ctrl-C during a download loses nothing of what the call had fetched."""
    topic = make_topic()
    produce(broker, ON_GATE, topic, [b"0", LARGE, b"2"])
    interrupts = iter([KeyboardInterrupt()])

    def interrupted(value: bytes) -> bytes:
        if len(value) > THRESHOLD:
            for interrupt in interrupts:
                raise interrupt
        return value

    stages = {"value.deserializer": None, "value.deserializers": [LargeMessageDeserializer, interrupted]}
    with DeserializingConsumer(consuming(broker, ON_GATE, **stages), topic) as consumer:
        with pytest.raises(KeyboardInterrupt):
            many(consumer)
        ((_, records),) = many(consumer, 3).items()
    assert [record.value for record in records] == [b"0", LARGE, b"2"]


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


def test_a_wrong_configuration_is_told_with_its_key(broker: str) -> None:
    """A mistake is told when the client is made, before it connects."""
    memory = {"large.message.payload.store.class": "memory"}
    with pytest.raises(ConfigurationError, match=r"^bootstrap\.server: .*did you mean bootstrap\.servers\?"):
        SerializingProducer(producing("nowhere:1", memory, **{"bootstrap.server": "x"}))
    with pytest.raises(ConfigurationError, match=r"^large\.message\.store\.timeout\.ms: .*30,000 ms.*which is 20,000"):
        DeserializingConsumer(
            consuming("nowhere:1", ON_GATE, **{"large.message.store.timeout.ms": 30_000}), max_poll_interval_ms=20_000
        )
    with pytest.raises(ConfigurationError, match=r"^linger\.ms: found 'soon', allowed is a number"):
        SerializingProducer(producing("nowhere:1", ON_GATE, **{"linger.ms": "soon"}))
    with pytest.raises(KafkaConfigurationError, match="must be larger"):
        DeserializingConsumer(consuming(broker, ON_GATE, **{"request.timeout.ms": 1}))
