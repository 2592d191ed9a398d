"""What only confluent-kafka's consumers have: errors, stored offsets, callbacks; and its own classes with ours."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.aio import AsyncDeserializingConsumer
from confluent_kafka.error import ConsumeError, KeyDeserializationError, ValueDeserializationError

from app.serializers import LargeMessageDeserializer, LargeMessageSerializer, confluent_reads
from app.serializers.aiokafka import SerializingProducer
from app.serializers.confluent import async_consumer_config
from tests.integration.aiokafka_records import Source
from tests.integration.chunk_records import pieces, plain, value_of
from tests.integration.client_config import LARGE, REFERENCES, Config, on_s3, producing
from tests.integration.client_readers import Confluent, ConfluentBatches, ConfluentsOwn
from tests.integration.client_stores import Gate, delete_payload
from tests.integration.topics import read_all
from tests.s3_server import S3Server
from transforms.errors import PayloadNotFoundError, PayloadStoreError, RecordDeserializationError, SerializationError

_LONG_S = 30.0


def failure(consumer: Any, kind: type[Any] = ValueDeserializationError) -> Any:
    """The error of the next record."""
    with pytest.raises(kind) as caught:
        consumer.poll(_LONG_S)
    return caught.value


# --- our consumer -----------------------------------------------------------------------------------------------------


async def test_errors_are_confluent_kafkas(source: Source, versitygw: S3Server) -> None:
    """`kafka_message` is the record as Kafka has it: a dead-letter topic gets references that can be restored."""
    key = b"k" * 3_000
    config = {**producing(source.broker, on_s3(versitygw)), "key.serializer": LargeMessageSerializer}
    async with SerializingProducer(config) as producer:
        for name in (b"1", b"2"):
            await producer.send_and_wait(source.topic, LARGE, key + name, headers=[("a", name)])
    await asyncio.to_thread(lambda: delete_payload(versitygw, read_all(source.broker, source.topic)[0][1].key))
    large = {"key.deserializer": LargeMessageDeserializer, **on_s3(versitygw)}
    stages = {"value.deserializers": [LargeMessageDeserializer, json.loads]}
    async with Confluent(source, {**large, **stages}) as reader:
        for kind, offset, cause in (
            (ValueDeserializationError, 0, json.JSONDecodeError),
            (KeyDeserializationError, 1, PayloadNotFoundError),
        ):
            error = await reader.call(failure, reader.consumer, kind)
            assert isinstance(error.exception, RecordDeserializationError)
            found = error.exception
            assert (found.topic, found.partition, found.offset) == (source.topic, 0, offset)
            assert isinstance(found.__cause__, cause)
            message = error.kafka_message
            assert message.offset() == offset
            assert (message.value().startswith(b"s3://"), message.key().startswith(b"s3://")) == (True, True)
            assert {"a", "large-message", "large-message-key"} <= dict(message.headers()).keys()


async def test_offsets_that_the_application_stores(source: Source) -> None:
    """With `enable.auto.offset.store` = false, only they are committed; none passes a message that is not whole."""
    slow = pieces("slow", 3_000, 1)
    await source.write([plain(b"a"), plain(b"b"), slow[0], plain(b"c"), plain(b"d")])
    config: Config = {"enable.auto.commit": True, "enable.auto.offset.store": False}
    for stores, offset in ((False, 0), (True, 1)):
        async with Confluent(source, config) as reader:
            message = await reader.call(reader.consumer.poll, _LONG_S)
            assert message.value() == b"a"
            if stores:
                await reader.call(lambda: reader.consumer.store_offsets(message))  # noqa: B023  # of this turn
            assert await reader.values(3) == [b"b", b"c", b"d"]
        assert await reader.committed() == {0: offset}
    async with Confluent(source) as reader:
        assert await reader.values() == [b"b"]
        for expected in (b"c", b"d"):
            message = await reader.call(reader.consumer.poll, _LONG_S)
            assert message.value() == expected
            await reader.call(lambda: reader.consumer.commit(message=message, asynchronous=False))  # noqa: B023
            assert await reader.committed() == {0: 2}
    await source.write(slow[1:])
    async with Confluent(source) as reader:
        assert await reader.values() == [value_of(3_000, 1)]


async def test_batches(source: Source) -> None:
    """`consume` waits for as many whole messages as it is asked for, and gives what there is when its time is over."""
    chunks = pieces("u", 3_000, 1)
    await source.write([plain(b"a"), plain(b"b"), plain(b"c"), chunks[0]])
    async with ConfluentBatches(source) as reader:
        assert [each.value for each in await reader.poll(_LONG_S, 2)] == [b"a", b"b"]
        waiting = asyncio.create_task(reader.poll(_LONG_S, 3))
        await asyncio.sleep(0.1)
        await source.write([*chunks[1:], plain(b"end"), plain(b"more")])
        assert [each.value for each in await waiting] == [b"c", value_of(3_000, 1), b"end"]
        assert [each.value for each in await reader.poll(0.3, 3)] == [b"more"]
        assert await reader.poll(_LONG_S, 0) == []
        with pytest.raises(ValueError, match="num_messages"):
            await reader.poll(0.0, 1_000_001)


async def test_an_interrupt_that_comes_with_messages(wide: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka drops them and is behind them: the next call reads them again, and no commit passes them."""
    interrupts: list[BaseException] = []
    for number in (0, 1):
        await wide.write([plain(b"a"), *pieces("u", 3_000, 1), plain(b"b")], number)

    class Interrupted:
        def __getattr__(self, name: str) -> Any:
            return getattr(confluent_kafka.Consumer, name)

        def consume(self, *arguments: Any) -> Any:
            found = confluent_kafka.Consumer.consume(*arguments)
            if found and interrupts:
                raise interrupts.pop()
            return found

    async with Confluent(wide, {"chunk.lookback": 0}) as reader:
        found = await reader.values(2)
        monkeypatch.setattr(confluent_reads, "_CLIENT", Interrupted())
        while len(found) < 6:
            interrupts[:] = [KeyboardInterrupt("now")] * (len(found) < 5)
            try:
                found += [each.value for each in await reader.poll(1.0)]
            except KeyboardInterrupt:
                await reader.commit()
                found += await reader.values()
        assert sorted(found) == sorted([b"a", b"b", value_of(3_000, 1)] * 2)


async def test_ends_of_partitions(source: Source) -> None:
    """`consume` has them among the messages, behind those of their partition; `poll` raises them."""
    await source.write([plain(b"a"), *pieces("u", 3_000, 1)])
    async with Confluent(source, {"enable.partition.eof": True}) as reader:
        found = await reader.call(reader.consumer.consume, 3, _LONG_S)
        assert [each.value() for each in found[:2]] == [b"a", value_of(3_000, 1)]
        assert found[2].error().code() == KafkaError._PARTITION_EOF  # a public name
        await source.write([plain(b"b")])
        assert await reader.values() == [b"b"]
        with pytest.raises(ConsumeError, match="_PARTITION_EOF"):
            await reader.call(reader.consumer.poll, _LONG_S)


async def test_rebalance_while_messages_wait(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call hears of it though it has a message to give: what waited goes to the other member."""
    monkeypatch.setattr(confluent_reads, "_LOOK_S", 0.1)
    come, gone = list[int](), list[int]()
    await source.write([plain(b"%d" % n) for n in range(200)])

    def note(found: list[int]) -> Any:
        return lambda consumer, places: found.extend(each.partition for each in places if consumer is reader.consumer)

    def failing(data: bytes) -> bytes:
        if data == b"1":
            raise ValueError(data)
        return data

    async with Confluent(source, {"value.deserializers": [failing]}) as reader:
        reader.consumer.subscribe([source.topic], note(come), note(gone))
        assert len(await reader.call(reader.consumer.consume, 150, _LONG_S)) == 1
        with pytest.raises(RecordDeserializationError):
            await reader.poll(0.0)
        async with Confluent(source) as other:
            joining = asyncio.create_task(other.poll(0.1))
            for _ in range(100):
                await reader.poll(0.0)
                await asyncio.sleep(0.1)
                if gone:
                    break
            assert (come[:1], gone) == ([0], [0])
            await joining


# --- confluent-kafka's own classes ------------------------------------------------------------------------------------


async def test_its_own_consumer_and_failures(source: Source, gate: Gate) -> None:
    """A record that failed is passed over, or had again by a seek, which the error says; chunks are an error."""
    await source.produce([b"1", LARGE, b"3", LARGE + b"gone"])
    await source.write(pieces("u", 1_000)[:1])
    gate.payloads.popitem()
    async with ConfluentsOwn(source, REFERENCES) as reader:
        assert await reader.values() == [b"1"]
        gate.fails = PayloadStoreError("it is down", retriable=True)
        error = await reader.call(failure, reader.consumer)
        assert isinstance(error.exception, SerializationError)
        assert (error.exception.__cause__, error.exception.retriable) == (gate.fails, True)
        gate.fails = None
        assert error.kafka_message.value().startswith(b"gated://")
        assert ("large-message", b"true") in error.kafka_message.headers()
        await reader.seek(error.kafka_message.offset(), error.kafka_message.partition())
        assert await reader.values(2) == [LARGE, b"3"]
        error = await reader.call(failure, reader.consumer)
        assert isinstance(error.exception.__cause__, PayloadNotFoundError)
        assert (error.kafka_message.offset(), error.exception.retriable) == (3, False)
        assert "chunk" in str(await reader.call(failure, reader.consumer))


async def test_its_asyncio_consumer(source: Source, gate: Gate) -> None:
    """`confluent_kafka.aio` awaits our deserializers; a missing payload is the same error there."""
    await source.produce([b"1", LARGE, None, LARGE + b"gone"])
    gate.payloads.popitem()
    config = async_consumer_config(Confluent(source, REFERENCES).config)
    consumer = await AsyncDeserializingConsumer(config)
    try:
        await consumer.subscribe([source.topic])
        found = [await consumer.poll(_LONG_S) for _ in range(3)]
        assert [each.value() for each in found if each is not None] == [b"1", LARGE, None]
        with pytest.raises(ValueDeserializationError) as caught:
            await consumer.poll(_LONG_S)
        assert isinstance(getattr(caught.value.exception, "__cause__", None), PayloadNotFoundError)
    finally:
        await consumer.close()
        await config["value.deserializer"].aclose()
