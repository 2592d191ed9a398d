"""What aiokafka's producer writes: by its strategy, by what the topic takes, and while the store is down."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from aiokafka import ConsumerRecord
from aiokafka.errors import MessageSizeTooLargeError

from app.chunks import AssembledRecord, ChunkError, ChunkingProducer
from app.kafka.configured_batches import ConfiguredBatchingProducer
from app.serializers import MessageWrapper, SerializationError, WrapperSerializer
from app.serializers.aiokafka import DeserializingConsumer, SerializingProducer
from tests.integration.aiokafka_records import one
from tests.integration.chunk_records import value_of
from tests.integration.client_config import ON_GATE, Config, consuming, on_s3, producing, to_json
from tests.integration.client_stores import CuttableWay, GatedStore
from tests.integration.limits import alter_configs
from tests.integration.topics import read_all
from tests.integration.way import MakeTopic
from tests.s3_server import S3Server
from transforms.chunk import is_chunk
from transforms.errors import ConfigurationError
from transforms.record import Record
from transforms.reference import VALUE, is_reference

LIMIT = 20_000
SMALL_TOPIC: dict[str, Any] = {"max.message.bytes": LIMIT}


async def forms(broker: str, topic: str) -> list[str]:
    """How each record stands in the log."""
    records = (await asyncio.to_thread(read_all, broker, topic))[0]
    return [
        "chunk" if is_chunk(record.headers) else "reference" if is_reference(record.headers, VALUE) else "plain"
        for record in records
    ]


async def values(broker: str, store: Config, topic: str, count: int) -> list[ConsumerRecord]:
    """What a consumer gets."""
    async with DeserializingConsumer(consuming(broker, store), topic) as consumer:
        return [await one(consumer) for _ in range(count)]


async def test_chunks_without_a_store(broker: str, make_topic: MakeTopic) -> None:
    """With `chunk`, what the topic would refuse goes as chunks, behind the application's own serializer."""
    topic = make_topic(**SMALL_TOPIC)
    config = {"bootstrap.servers": broker, "value.serializer": to_json, "large.message.strategy": "chunk"}
    async with SerializingProducer(config) as producer:
        sent = await producer.send_and_wait(topic, {"x": "y" * 50_000}, b"k", headers=[("own", b"1")])
        await producer.send_and_wait(topic, {"x": 1}, b"k")
        assert producer.stats()[topic]["msgChunkPublished"] is True
    assert await forms(broker, topic) == ["chunk"] * 3 + ["plain"]
    async with DeserializingConsumer({"bootstrap.servers": broker, "auto.offset.reset": "earliest"}, topic) as consumer:
        first, second = await one(consumer), await one(consumer)
    assert (first.value, second.value) == (to_json({"x": "y" * 50_000}), to_json({"x": 1}))
    assert (first.headers, first.chunk_message_id) == ((("own", b"1"),), sent.chunk_message_id)


async def test_what_the_topic_would_refuse_is_offloaded(
    broker: str, make_topic: MakeTopic, gate: type[GatedStore]
) -> None:
    """A value below the threshold that its topic does not take, with its key and headers, goes to the store."""
    topic = make_topic(**SMALL_TOPIC)
    config = producing(broker, ON_GATE, **{"large.message.threshold.bytes": 1_000_000})
    async with SerializingProducer(config) as producer:
        for value, key, headers in (
            (value_of(19_000), b"k", []),
            (value_of(30_000), b"k", []),
            (value_of(15_000), b"k" * 6_000, []),
            (value_of(15_000), b"k", [("h", bytes(6_000))]),
        ):
            await producer.send_and_wait(topic, value, key, headers=headers)
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
    broker: str, make_topic: MakeTopic, gate: type[GatedStore], strategy: str
) -> None:
    """What the topic begins to refuse fails once with Kafka's error; the next record goes by the new limit."""
    topic = make_topic(**SMALL_TOPIC)
    more = {"large.message.threshold.bytes": 1_000_000, "enable.idempotence": True, "large.message.strategy": strategy}
    async with SerializingProducer(producing(broker, ON_GATE, **more)) as producer:
        await producer.send_and_wait(topic, value_of(9_000, 1), b"k")
        assert not gate.payloads
        await alter_configs(broker, topic, {"max.message.bytes": "5000"})
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(topic, value_of(9_000, 2), b"k")
        for seed in (3, 4):
            await producer.send_and_wait(topic, value_of(9_000, seed), b"k")
        await producer.send_and_wait(topic, b"end", b"k")
    assert (await forms(broker, topic))[-3:] == ["reference", "reference", "plain"]
    assert len(gate.payloads) == 2


async def test_auto_while_the_store_is_down(
    broker: str, versitygw: S3Server, cuttable: CuttableWay, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """Large values go as chunks while the store is down, and to the store again when it answers; all are read."""
    topic = make_topic(**SMALL_TOPIC)
    store = on_s3(cuttable.server)
    more = {"large.message.strategy": "auto", "chunk.max.message.bytes": 100_000}
    with caplog.at_level(logging.INFO, "wideload.serializers.fallback"):
        async with SerializingProducer(producing(broker, store, **more)) as producer:
            await producer.send_and_wait(topic, value_of(50_000, 1), b"k")
            cuttable.cut()
            for seed in (2, 3):
                await producer.send_and_wait(topic, value_of(50_000, seed), b"k")
            with pytest.raises(SerializationError) as caught:  # longer than what goes as chunks
                await producer.send_and_wait(topic, value_of(100_001), b"k")
            assert caught.value.retriable
            await producer.send_and_wait(topic, value_of(2_000, 4), b"k")  # over the threshold; the topic takes it
            cuttable.mend()
            async with asyncio.timeout(30):
                while "answers again" not in caplog.text:
                    await producer.send_and_wait(topic, value_of(3_000, 5), b"k")
                    await asyncio.sleep(0.1)  # the store is asked again every five seconds
            await producer.send_and_wait(topic, value_of(50_000, 6), b"k")
    found = await forms(broker, topic)
    assert found[:8] == ["reference"] + ["chunk"] * 6 + ["plain"]
    assert found[-2:] == ["reference"] * 2
    assert caplog.text.count("the payload store is down") == 1
    count = len(found) - 4
    read = await values(broker, on_s3(versitygw), topic, count)
    assert [record.value for record in read[:4]] == [
        *(value_of(50_000, seed) for seed in (1, 2, 3)),
        value_of(2_000, 4),
    ]
    assert read[-1].value == value_of(50_000, 6)
    assert [isinstance(record, AssembledRecord) for record in read[:4]] == [False, True, True, False]


async def test_compacted_topics(broker: str, make_topic: MakeTopic) -> None:
    """Chunks and wrapped nulls are refused with the reason; a reference and a true null are not."""
    topic = make_topic(**{**SMALL_TOPIC, "cleanup.policy": "compact"})
    config: Config = {"bootstrap.servers": broker, "large.message.strategy": "chunk"}
    async with SerializingProducer(config) as producer:
        with pytest.raises(ChunkError, match="compacted away"):
            await producer.send_and_wait(topic, value_of(50_000), b"k")
    config = {"bootstrap.servers": broker, "value.serializer": WrapperSerializer}
    async with SerializingProducer(config) as producer:
        with pytest.raises(SerializationError, match=r"without a value.*cleanup\.policy=compact.*send None"):
            await producer.send_and_wait(topic, MessageWrapper({}, None), b"k")
        await producer.send_and_wait(topic, MessageWrapper({}, b"x"), b"k")
        await producer.send_and_wait(topic, None, b"k")
    records = (await asyncio.to_thread(read_all, broker, topic))[0]
    assert [record.value for record in records] == [MessageWrapper({}, b"x").serialize(), None]


async def test_weaker_acknowledgements(broker: str, make_topic: MakeTopic) -> None:
    """`acks` is the application's choice: no producer is made idempotent against it."""
    topic = make_topic(**SMALL_TOPIC)
    config = {"bootstrap.servers": broker, "acks": "1"}
    async with SerializingProducer({**config, "large.message.strategy": "chunk"}) as serializing:
        await serializing.send_and_wait(topic, value_of(50_000), b"k")
    async with ChunkingProducer(config) as chunking:
        await chunking.send_and_wait(topic, value_of(50_000), b"k")
    async with ConfiguredBatchingProducer(config) as batching:
        await (await batching.send(topic, Record(b"k", b"plain")))
    assert await forms(broker, topic) == ["chunk"] * 6 + ["plain"]


async def test_transactions(broker: str, make_topic: MakeTopic) -> None:
    """Chunks are of the producer's transaction: aborted ones are not seen."""
    topic = make_topic(**SMALL_TOPIC)
    config = {"bootstrap.servers": broker, "large.message.strategy": "chunk", "transactional.id": topic}
    async with SerializingProducer(config) as producer:
        await producer.begin_transaction()
        _ = await producer.send(topic, value_of(50_000, 1), b"k")
        await producer.abort_transaction()
        async with producer.transaction():
            _ = await producer.send(topic, value_of(50_000, 2), b"k")
    reading = {"bootstrap.servers": broker, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    async with DeserializingConsumer(reading, topic) as consumer:
        assert (await one(consumer)).value == value_of(50_000, 2)
        assert consumer.counts.discarded == {}


@pytest.mark.parametrize(
    ("strategy", "more", "found"),
    [
        ("chunk", ON_GATE, "found 'chunk' beside a LargeMessageSerializer"),
        ("auto", None, "found 'auto' without a LargeMessageSerializer"),
        ("both", None, "found 'both', allowed"),
    ],
)
def test_strategies_that_do_not_fit(strategy: str, more: Config | None, found: str) -> None:
    """A strategy that the stages cannot do is refused at once, with what is allowed."""
    base: Config = {"bootstrap.servers": "-"} if more is None else producing("-", more)
    with pytest.raises(ConfigurationError, match=f"^large.message.strategy: {found}"):
        SerializingProducer({**base, "large.message.strategy": strategy})
