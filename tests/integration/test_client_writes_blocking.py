"""What the producers of confluent-kafka and kafka-python write: by strategy, by topic, and while the store is down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka.errors import MessageSizeTooLargeError
from kafka.partitioner import Partitioner

from app.chunks import ChunkError
from app.serializers import ConfigurationError, MessageWrapper, SerializationError, WrapperSerializer
from app.serializers import confluent as by_confluent
from app.serializers import kafka_python as by_kafka_python
from app.serializers.aiokafka import DeserializingConsumer
from tests.integration.aiokafka_records import one
from tests.integration.chunk_records import value_of
from tests.integration.client_config import ON_GATE, Config, on_s3, producing, to_json
from tests.integration.client_stores import CuttableWay, GatedStore
from tests.integration.limits import alter_configs
from tests.integration.test_client_writes import LIMIT, SMALL_TOPIC, forms, values
from tests.integration.topics import end_offsets, read_all
from tests.integration.way import MakeTopic
from tests.integration.worker_process import until
from tests.s3_server import S3Server

_LONG_S = 30.0


class RefusedError(Exception):
    """The topic refused a record as too large."""


class Client(Protocol):
    """A producer that waits for each record."""

    def sent(
        self,
        topic: str,
        value: Any,
        key: bytes | None = b"k",
        headers: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> tuple[int, int]:
        """The partition and the offset that the producer is told."""


class Confluent:
    """confluent-kafka's."""

    def __init__(self, config: Config) -> None:
        # Several chunks must fit into the smallest topic here, or be refused together.
        self.own = by_confluent.SerializingProducer({"batch.size": 5_000, "linger.ms": 0, **config})

    def sent(
        self,
        topic: str,
        value: Any,
        key: bytes | None = b"k",
        headers: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> tuple[int, int]:
        told: list[tuple[Any, Any]] = []
        place = -1 if partition is None else partition
        called: Callable[..., None] = lambda error, message: told.append((error, message))  # noqa: E731
        self.own.produce(topic, key, value, place, called, timestamp or 0, headers)
        assert self.own.flush(_LONG_S) == 0
        ((error, message),) = told
        if error is not None:
            assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
            raise RefusedError
        return message.partition(), message.offset()


class KafkaPython:
    """kafka-python's."""

    def __init__(self, config: Config) -> None:
        self.own = by_kafka_python.SerializingProducer(config)

    def sent(
        self,
        topic: str,
        value: Any,
        key: bytes | None = b"k",
        headers: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> tuple[int, int]:
        try:
            found = self.own.send(topic, value, key, headers, partition, timestamp).get(_LONG_S)
        except MessageSizeTooLargeError:
            raise RefusedError from None
        return found.partition, found.offset


Make = Callable[[Config], Any]


@pytest.fixture(params=[Confluent, KafkaPython])
def client(request: pytest.FixtureRequest) -> Make:
    """Makes a producer that closes at the end of a `with`."""

    @contextmanager
    def made(config: Config) -> Iterator[Client]:
        found = request.param(config)
        with found.own:
            yield found

    return made


async def test_chunks_without_a_store(broker: str, make_topic: MakeTopic, client: Make) -> None:
    """With `chunk`, what the topic would refuse goes as chunks, behind the application's own serializer."""
    topic = make_topic(**SMALL_TOPIC)
    config = {"bootstrap.servers": broker, "value.serializer": to_json, "large.message.strategy": "chunk"}
    with client(config) as producer:
        place = producer.sent(topic, {"x": "y" * 50_000}, headers=[("own", b"1")], timestamp=1_700_000_000_000)
        assert place == (0, 2)
        assert producer.sent(topic, {"x": 1}) == (0, 3)
    assert await forms(broker, topic) == ["chunk"] * 3 + ["plain"]
    async with DeserializingConsumer({"bootstrap.servers": broker, "auto.offset.reset": "earliest"}, topic) as consumer:
        first, second = await one(consumer), await one(consumer)
    assert (first.value, second.value) == (to_json({"x": "y" * 50_000}), to_json({"x": 1}))
    assert (first.headers, first.timestamp) == ((("own", b"1"),), 1_700_000_000_000)


async def test_headers_count(broker: str, make_topic: MakeTopic, client: Make) -> None:
    """If headers put a record over the topic's limit, its value is chunked, even a small one. Text counts in bytes."""
    topic = make_topic(**SMALL_TOPIC)
    with client({"bootstrap.servers": broker, "large.message.strategy": "chunk"}) as producer:
        producer.sent(topic, b"v" * 900, headers=[("h", bytes(LIMIT - 800))])
        if isinstance(producer, Confluent):  # kafka-python takes no text
            producer.sent(topic, b"v" * 9_000, headers=[("h", "\u4e2d" * 6_000)])
            producer.sent(topic, b"v" * 900, headers={"h": "\u4e2d" * 6_400})
    found = await forms(broker, topic)
    assert len(found) >= 2
    assert set(found) == {"chunk"}


async def test_chunks_stay_together(broker: str, make_topic: MakeTopic, client: Make) -> None:
    """With and without a key, and where a partition is told, all chunks of a value go to one partition."""
    topic = make_topic(4, **SMALL_TOPIC)
    with client({"bootstrap.servers": broker, "large.message.strategy": "chunk"}) as producer:
        places = [producer.sent(topic, value_of(50_000, n), None) for n in range(8)]
        assert len({place for place, _ in places}) > 1
        keyed = [producer.sent(topic, value_of(50_000, 10 + n), b"key") for n in range(3)]
        assert len({place for place, _ in keyed}) == 1
        assert producer.sent(topic, b"small", b"key")[0] == keyed[0][0]
        assert producer.sent(topic, value_of(50_000, 20), b"key", partition=3)[0] == 3
    async with DeserializingConsumer({"bootstrap.servers": broker, "auto.offset.reset": "earliest"}, topic) as consumer:
        found = {(await one(consumer)).value for _ in range(13)}
    assert found == {b"small", *(value_of(50_000, n) for n in (*range(8), 10, 11, 12, 20))}


async def test_a_partitioner_of_the_application(broker: str, make_topic: MakeTopic) -> None:
    """It is asked once for a value, with the application's own key, and may answer as it likes."""
    topic = make_topic(4, **SMALL_TOPIC)
    seen: list[tuple[object, object]] = []

    class Turns(Partitioner):  # type: ignore[misc]  # kafka-python has no types
        def partition(self, topic: str, key: Any, serialized_key: Any, *_: Any) -> int:  # as there
            seen.append((key, serialized_key))
            return len(seen) % 4

    config: Config = {"bootstrap.servers": broker, "large.message.strategy": "chunk", "key.serializer": str.encode}
    with by_kafka_python.SerializingProducer(config, partitioner=Turns()) as producer:
        places = [producer.send(topic, value_of(50_000, n), "k").get(_LONG_S).partition for n in range(3)]
        producer.send(topic, b"small", "k").get(_LONG_S)
    assert len(set(places)) == 3
    assert seen == [("k", b"k")] * 4
    async with DeserializingConsumer({"bootstrap.servers": broker, "auto.offset.reset": "earliest"}, topic) as consumer:
        assert {(await one(consumer)).value for _ in range(4)} == {b"small", *(value_of(50_000, n) for n in range(3))}


async def test_what_the_topic_would_refuse_is_offloaded(
    broker: str, make_topic: MakeTopic, client: Make, gate: type[GatedStore]
) -> None:
    """A value below the threshold that its topic does not take, with its key and headers, goes to the store."""
    topic = make_topic(**SMALL_TOPIC)
    with client(producing(broker, ON_GATE, **{"large.message.threshold.bytes": 1_000_000})) as producer:
        producer.sent(topic, value_of(19_000))
        producer.sent(topic, value_of(30_000))
        producer.sent(topic, value_of(15_000), b"k" * 6_000)
        producer.sent(topic, value_of(15_000), headers=[("h", bytes(6_000))])
    assert await forms(broker, topic) == ["plain"] + ["reference"] * 3
    assert [r.value for r in await values(broker, ON_GATE, topic, 4)] == [
        value_of(19_000),
        value_of(30_000),
        value_of(15_000),
        value_of(15_000),
    ]
    assert len(gate.payloads) == 3


@pytest.mark.parametrize("strategy", ["offload", "auto"])
async def test_a_limit_that_falls_is_followed(
    broker: str, make_topic: MakeTopic, client: Make, gate: type[GatedStore], strategy: str
) -> None:
    """What the topic begins to refuse fails once with Kafka's error; the next record goes by the new limit."""
    topic = make_topic(**SMALL_TOPIC)
    # With `enable.idempotence` a refused record is fatal for kafka-python 3.0.12: each later one fails, too.
    more: Config = {"enable.idempotence": False, "large.message.threshold.bytes": 1_000_000}
    more["large.message.strategy"] = strategy
    with client(producing(broker, ON_GATE, **more)) as producer:
        producer.sent(topic, value_of(9_000, 1))
        assert not gate.payloads
        await alter_configs(broker, topic, {"max.message.bytes": "6000"})
        with pytest.raises(RefusedError):
            producer.sent(topic, value_of(9_000, 2))
        for seed in (3, 4):
            producer.sent(topic, value_of(9_000, seed))
        producer.sent(topic, b"end")
    assert (await forms(broker, topic))[-3:] == ["reference", "reference", "plain"]
    assert len(gate.payloads) == 2


async def test_auto_while_the_store_is_down(
    broker: str,
    versitygw: S3Server,
    cuttable: CuttableWay,
    make_topic: MakeTopic,
    client: Make,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Large values go as chunks while the store is down, and to the store again when it answers; all are read."""
    topic = make_topic(**SMALL_TOPIC)
    more = {"large.message.strategy": "auto", "chunk.max.message.bytes": 100_000}
    with (
        caplog.at_level(logging.INFO, "wideload.serializers.fallback"),
        client(producing(broker, on_s3(cuttable.server), **more)) as producer,
    ):
        producer.sent(topic, value_of(50_000, 1))
        cuttable.cut()
        for seed in (2, 3):
            producer.sent(topic, value_of(50_000, seed))
        with pytest.raises((SerializationError, KafkaException), match="LargeMessageSerializer"):
            producer.sent(topic, value_of(100_001))  # longer than what goes as chunks
        producer.sent(topic, value_of(2_000, 4))  # over the threshold; the topic takes it
        cuttable.mend()

        def answers() -> bool:
            producer.sent(topic, value_of(3_000, 5))
            return "answers again" in caplog.text

        until(answers, "the store is asked again")
        producer.sent(topic, value_of(50_000, 6))
    found = await forms(broker, topic)
    assert found[:8] == ["reference"] + ["chunk"] * 6 + ["plain"]
    assert found[-2:] == ["reference"] * 2
    read = await values(broker, on_s3(versitygw), topic, len(found) - 4)
    assert [record.value for record in read[:4]] == [
        *(value_of(50_000, seed) for seed in (1, 2, 3)),
        value_of(2_000, 4),
    ]
    assert read[-1].value == value_of(50_000, 6)


async def test_compacted_topics(broker: str, make_topic: MakeTopic, client: Make) -> None:
    """Chunks and wrapped nulls are refused with the reason; a wrapped value and a true null are not."""
    topic = make_topic(**{**SMALL_TOPIC, "cleanup.policy": "compact"})
    with (
        client({"bootstrap.servers": broker, "large.message.strategy": "chunk"}) as producer,
        pytest.raises(ChunkError, match="compacted away"),
    ):
        producer.sent(topic, value_of(50_000))
    with client({"bootstrap.servers": broker, "value.serializer": WrapperSerializer}) as producer:
        with pytest.raises(SerializationError, match=r"without a value.*cleanup\.policy=compact.*send None"):
            producer.sent(topic, MessageWrapper({}, None))
        producer.sent(topic, MessageWrapper({}, b"x"))
        producer.sent(topic, None)
    records = (await asyncio.to_thread(read_all, broker, topic))[0]
    assert [record.value for record in records] == [MessageWrapper({}, b"x").serialize(), None]


async def test_transactions(broker: str, make_topic: MakeTopic, client: Make) -> None:
    """Chunks are of the producer's transaction: aborted ones are not seen."""
    topic = make_topic(**SMALL_TOPIC)
    with client(
        {"bootstrap.servers": broker, "large.message.strategy": "chunk", "transactional.id": topic}
    ) as producer:
        producer.own.init_transactions()
        producer.own.begin_transaction()
        producer.sent(topic, value_of(50_000, 1))
        producer.own.abort_transaction()
        producer.own.begin_transaction()
        producer.sent(topic, value_of(50_000, 2))
        producer.own.commit_transaction()
    reading = {"bootstrap.servers": broker, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    async with DeserializingConsumer(reading, topic) as consumer:
        assert (await one(consumer)).value == value_of(50_000, 2)
        assert consumer.counts.discarded == {}


def test_batches_that_the_topic_would_refuse(broker: str, make_topic: MakeTopic) -> None:
    """librdkafka sends no batch again in parts: where several chunks would be too large together, it is told before."""
    topic = make_topic(**SMALL_TOPIC)
    config = {"bootstrap.servers": broker, "large.message.strategy": "chunk"}
    with (
        by_confluent.SerializingProducer(config) as producer,
        pytest.raises(
            ConfigurationError, match=rf"^batch.size: found 1,000,000, and topic {topic} takes .* {LIMIT:,} "
        ),
    ):
        producer.produce(topic, b"k", value_of(50_000))


async def test_the_callback_of_the_configuration(broker: str, make_topic: MakeTopic) -> None:
    """Where a record has none, confluent-kafka calls that of the configuration, once for a value."""
    topic = make_topic(**SMALL_TOPIC)
    told: list[tuple[Any, int]] = []
    config: Config = {"bootstrap.servers": broker, "large.message.strategy": "chunk", "batch.size": 5_000}
    config["on_delivery"] = lambda error, message: told.append((error, message.offset()))
    with by_confluent.SerializingProducer(config) as producer:
        for size in (10, 2_000, 50_000):
            producer.produce(topic, b"k", value_of(size))
    assert told == [(None, 0), (None, 1), (None, 4)]


async def test_only_errors_are_told(broker: str, make_topic: MakeTopic) -> None:
    """With `delivery.report.only.error`, a value in chunks that fails is told once all the same."""
    topic = make_topic(**SMALL_TOPIC)
    told: list[Any] = []
    config: Config = {"bootstrap.servers": broker, "large.message.strategy": "chunk", "batch.size": 5_000}
    with by_confluent.SerializingProducer({**config, "delivery.report.only.error": True}) as producer:
        producer.produce(topic, b"k", value_of(50_000, 1), -1, lambda error, _: told.append(error))
        assert producer.flush(_LONG_S) == 0
        assert told == []
        await alter_configs(broker, topic, {"max.message.bytes": "6000"})
        producer.produce(topic, b"k", value_of(50_000, 2), -1, lambda error, _: told.append(error))
        assert producer.flush(_LONG_S) == 0
    assert [error.code() for error in told] == [KafkaError.MSG_SIZE_TOO_LARGE]


async def test_a_future_in_its_own_callback(broker: str, make_topic: MakeTopic) -> None:
    """`get` in a callback of the future does not wait for itself."""
    topic = make_topic(**SMALL_TOPIC)
    seen: list[int] = []
    with by_kafka_python.SerializingProducer(
        {"bootstrap.servers": broker, "large.message.strategy": "chunk"}
    ) as producer:
        future = producer.send(topic, value_of(50_000), b"k")
        future.add_callback(lambda _: seen.append(future.get(_LONG_S).offset))
        assert future.get(_LONG_S).offset == 2
        until(lambda: seen == [2], "the callback is done")


@pytest.mark.parametrize("acks", [0, 1, "1"])
async def test_weaker_acknowledgements(broker: str, make_topic: MakeTopic, client: Make, acks: object) -> None:
    """`acks` is the application's choice: no producer is made idempotent against it."""
    topic = make_topic(**SMALL_TOPIC)
    with client({"bootstrap.servers": broker, "large.message.strategy": "chunk", "acks": acks}) as producer:
        producer.sent(topic, value_of(50_000))
    until(lambda: sum(end_offsets(broker, topic).values()) == 3, "the chunks are there")


def test_connections_that_the_question_cannot_be_made_of(broker: str, make_topic: MakeTopic) -> None:
    """The names of kafka-python's own arguments serve, too; with others, what may be sent is sent."""
    topic = make_topic()
    config = producing(broker, ON_GATE, **{"large.message.threshold.bytes": 1_000_000})
    config["bootstrap.servers"] = [broker]
    with by_kafka_python.SerializingProducer(config) as producer:
        assert producer.send(topic, value_of(2_000), b"k").get(_LONG_S).offset == 0
    names = by_kafka_python._cluster({"sasl.plain.username": "u", "sasl.plain.password": "p", "ssl.cafile": "f"})
    assert (names["sasl.username"], names["sasl.password"], names["ssl.ca.location"]) == ("u", "p", "f")


def test_a_topic_that_does_not_exist(broker: str, client: Make) -> None:
    """Without a store nobody knows how to split for it; the error names the topic, and the key that helps."""
    with (
        client({"bootstrap.servers": broker, "large.message.strategy": "chunk"}) as producer,
        pytest.raises(ConfigurationError, match=r"^chunk.max.bytes: is not set, and topic no-such .* does not exist"),
    ):
        producer.sent("no-such", value_of(50_000))


@pytest.mark.parametrize("made", [by_confluent.SerializingProducer, by_kafka_python.SerializingProducer])
@pytest.mark.parametrize(
    ("strategy", "more", "found"),
    [
        ("chunk", ON_GATE, "found 'chunk' beside a LargeMessageSerializer"),
        ("auto", None, "found 'auto' without a LargeMessageSerializer"),
        ("both", None, "found 'both', allowed"),
    ],
)
def test_strategies_that_do_not_fit(made: Callable[[Config], object], strategy: str, more: Any, found: str) -> None:
    """A strategy that the stages cannot do is refused at once, with what is allowed."""
    base: Config = {"bootstrap.servers": "-"} if more is None else producing("-", more)
    with pytest.raises(ConfigurationError, match=f"^large.message.strategy: {found}"):
        made({**base, "large.message.strategy": strategy})
