"""One aiokafka consumer for whatever a topic holds: plain values, references, chunks, wrappers, mixtures of them."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import TopicPartition

from app.chunks import AssembledRecord, ChunkingProducer, ChunkMessageId, Discarded
from app.serializers import RecordDeserializationError
from app.serializers.aiokafka import DeserializingConsumer, SerializingProducer
from tests.integration.aiokafka_records import come_and_go, one
from tests.integration.chunk_records import pieces, value_of, write
from tests.integration.client_config import consuming, on_s3, producing
from tests.integration.way import MakeTopic
from tests.s3_server import S3Server
from transforms.chunk import Chunking
from transforms.errors import ConfigurationError
from transforms.record import Record
from transforms.wrapper import MessageWrapper

LARGE = value_of(2_000_000, 9)


async def test_plain_references_and_chunks(broker: str, versitygw: S3Server, make_topic: MakeTopic) -> None:
    """A topic as `large.message.strategy` = `auto` makes it: every value comes whole and in order, none as a piece."""
    topic = make_topic()
    async with SerializingProducer(producing(broker, on_s3(versitygw))) as producer:
        await producer.send_and_wait(topic, b"plain", b"k")
        await producer.send_and_wait(topic, LARGE, b"k")
        async with ChunkingProducer({"bootstrap.servers": broker, "chunk.max.bytes": 500_000}) as chunking:
            sent = await chunking.send_and_wait(topic, value_of(1_200_000, 1), b"k", headers=[("own", b"1")])
        await producer.send_and_wait(topic, None, b"k")
    async with DeserializingConsumer(consuming(broker, on_s3(versitygw)), topic) as consumer:
        records = [await one(consumer) for _ in range(4)]
        assert [record.value for record in records] == [b"plain", LARGE, value_of(1_200_000, 1), None]
        assert isinstance(records[2], AssembledRecord)
        assert (records[2].chunk_message_id, records[2].headers) == (sent.chunk_message_id, (("own", b"1"),))
        assert await consumer.position(TopicPartition(topic, 0)) == records[3].offset + 1
        assert consumer.counts.assembled == 1


async def test_a_chunked_wrapper(broker: str, make_topic: MakeTopic) -> None:
    """Chunks come off first, then what the value is in: here a wrapper."""
    topic = make_topic()
    wrapper = MessageWrapper({1_000_001: b"jpeg"}, value_of(5_000))
    await write(broker, topic, list(Chunking(2_000).split(Record(b"k", wrapper.serialize()), "u")))
    config = {
        "bootstrap.servers": broker,
        "auto.offset.reset": "earliest",
        "value.deserializers": ["app.serializers.WrapperDeserializer"],
    }
    async with DeserializingConsumer(config, topic) as consumer:
        record = await one(consumer)
    assert record.value == wrapper


async def test_a_reference_in_chunks_that_are_read_again(
    broker: str, versitygw: S3Server, make_topic: MakeTopic
) -> None:
    """What memory does not hold is read again, and then restored: a reference that came in chunks, too."""
    topic = make_topic()
    async with SerializingProducer(producing(broker, on_s3(versitygw))) as producer:
        await producer.send_and_wait(topic, LARGE, b"k")
    async with DeserializingConsumer({"bootstrap.servers": broker, "auto.offset.reset": "earliest"}, topic) as bare:
        reference = await one(bare)
    limit = 61 + 30 + sum(len(name) + len(value or b"") + 4 for name, value in reference.headers) + 260
    chunks = list(Chunking(limit).split(Record(b"k", reference.value, reference.headers), "u"))
    assert len(chunks) > 1
    first, *rest = pieces("first", 3_000, 1)
    await write(broker, topic, [first, *chunks, *rest])
    found: list[Discarded] = []
    config = {**consuming(broker, on_s3(versitygw)), "max.pending.chunked.message": 1}
    async with DeserializingConsumer(config, topic, on_discarded=found.append) as consumer:
        assert [(await one(consumer)).value for _ in range(3)] == [LARGE, LARGE, value_of(3_000, 1)]
        assert consumer.counts.set_aside == 1
    assert found == []


async def test_a_reference_that_cannot_be_restored(broker: str, versitygw: S3Server, make_topic: MakeTopic) -> None:
    """A payload that is missing is told with the record's place; what is around it comes, in order."""
    topic = make_topic()
    slow = pieces("slow", 2_000, 3)
    async with SerializingProducer(producing(broker, on_s3(versitygw))) as producer:
        await write(broker, topic, slow[:1])
        sent = await producer.send_and_wait(topic, LARGE, b"k")
    async with DeserializingConsumer({"bootstrap.servers": broker, "auto.offset.reset": "earliest"}, topic) as bare:
        reference = await one(bare)
    missing = Record(b"k", reference.value[:-4] + b"0000", reference.headers)
    await write(broker, topic, [missing, *slow[1:]])
    partition = TopicPartition(topic, 0)
    async with DeserializingConsumer({**consuming(broker, on_s3(versitygw)), "group.id": topic}, topic) as consumer:
        assert (await one(consumer)).value == LARGE
        for _ in range(2):
            with pytest.raises(RecordDeserializationError) as caught:
                await one(consumer)
            assert (caught.value.partition, caught.value.offset) == (0, sent.offset + 1)
            assert consumer.safe_offsets()[partition].offset == 0
        consumer.seek(partition, sent.offset + 2)
        message = await one(consumer)
        assert (message.value, message.chunk_message_id) == (value_of(2_000, 3), ChunkMessageId(0, message.offset))


async def test_consumers_come_and_go(
    broker: str, versitygw: S3Server, make_topic: MakeTopic, least_session_ms: int
) -> None:
    """A mixture, read by consumers that are rebalanced and stopped: every value comes, nothing is discarded."""
    topic = make_topic(2)
    expected = {b"%d" % n for n in range(6)}
    async with SerializingProducer(producing(broker, on_s3(versitygw))) as producer:
        for n in range(6):
            await producer.send_and_wait(topic, b"%d" % n, b"k", n % 2)
            await producer.send_and_wait(topic, value_of(1_100_000, n), b"k", n % 2)
            expected.add(value_of(1_100_000, n))
    for partition in range(2):
        queues = [pieces(f"{partition}-{n}", 3_000, 50 * partition + n) for n in range(5)]
        expected |= {value_of(3_000, 50 * partition + n) for n in range(5)}
        await write(broker, topic, [record for turn in zip(*queues, strict=True) for record in turn], partition)
    config: dict[str, Any] = {
        **consuming(broker, on_s3(versitygw)),
        "group.id": topic,
        "session.timeout.ms": least_session_ms,
        "heartbeat.interval.ms": 300,
        "max.pending.chunked.message": 2,
    }
    found: list[Discarded] = []
    await come_and_go(lambda: DeserializingConsumer(config, topic, on_discarded=found.append), expected, 2)
    assert found == []


def test_keys_of_chunks_are_known() -> None:
    """The limits of chunks stand beside the other keys; a wrong one is told as they are."""
    config = {"bootstrap.servers": "-", "auto.offset.reset": "earliest"}
    with pytest.raises(ConfigurationError, match=r"did you mean chunk\.lookback\?"):
        DeserializingConsumer({**config, "chunk.lookbak": 1})
    with pytest.raises(ConfigurationError, match=r"max\.pending\.chunked\.message.*allowed is 1 or more"):
        DeserializingConsumer({**config, "max.pending.chunked.message": 0})
    with pytest.raises(ConfigurationError, match=r"chunk\.max\.message\.bytes: found 2, allowed is no more"):
        DeserializingConsumer({**config, "max.pending.chunked.bytes": 1, "chunk.max.message.bytes": 2})
