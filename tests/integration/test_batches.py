"""The producer of batches against a real broker: what it refuses is split, sent again in place, and there once."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    IllegalOperation,
    KafkaTimeoutError,
    ProducerClosed,
)
from aiokafka.structs import RecordMetadata

from app.kafka.batches.client import BatchingProducer
from app.kafka.batches.outbox import BatchSettings, RecordRefusedError
from app.kafka.configured_batches import ConfiguredBatchingProducer
from tests.integration.limits import set_limit
from tests.integration.topics import Found, read_all
from tests.integration.way import MakeTopic
from transforms.compression import CODECS
from transforms.errors import ConfigurationError
from transforms.ratio import INITIAL_ESTIMATE
from transforms.record import Record
from transforms.record_batch import CODECS as NUMBERED

MEGABYTE = 1_000_000
STAMP = 1_700_000_000_000


def compressible(size: int, share: float, rng: random.Random) -> bytes:
    """A value that compresses to about `share` of its size, with any codec."""
    chosen = int(size * share)
    return rng.randbytes(chosen) + bytes(size - chosen)


def numbered(values: Sequence[bytes | None], first: int = 0) -> list[Record]:
    """Records whose keys count up, with headers and timestamps of their own."""
    return [
        Record(b"%d" % index, value, [("n", b"%d" % index), ("n", None)], STAMP + index)
        for index, value in enumerate(values, first)
    ]


@asynccontextmanager
async def plain(broker: str, **options: Any) -> AsyncIterator[AIOKafkaProducer]:
    """aiokafka's own producer, idempotent."""
    async with AIOKafkaProducer(bootstrap_servers=broker, enable_idempotence=True, **options) as producer:
        yield producer


@asynccontextmanager
async def batching(
    broker: str, batch_bytes: int = 131_072, codec: str | None = None, **options: Any
) -> AsyncIterator[BatchingProducer]:
    """Ours, on top of that."""
    settings = BatchSettings(batch_bytes=batch_bytes, **options)
    async with plain(broker, compression_type=codec, max_request_size=2**31 - 1) as producer:
        yield BatchingProducer(producer, settings, buffer_bytes=256 * MEGABYTE)


def estimate(producer: BatchingProducer, topic: str) -> float:
    """The compression ratio that the producer expects of the next batch of a topic."""
    batches = producer._batches
    return batches.numbers.estimates.of(topic, NUMBERED[batches.controls.codec] or "none")


async def send_all(
    producer: BatchingProducer, topic: str, records: Sequence[Record], partition: int = 0
) -> list[asyncio.Future[RecordMetadata]]:
    """Sends the records and waits until none is on its way."""
    futures = [await producer.send(topic, record, partition=partition) for record in records]
    await producer.flush()
    return futures


async def found_in(broker: str, topic: str) -> list[Found]:
    """Partition 0 of the topic."""
    return (await asyncio.to_thread(read_all, broker, topic)).get(0, [])


def as_records(found: Sequence[Found]) -> list[Record]:
    """What was found, without its place."""
    return [Record(each.key, each.value, list(each.headers), each.timestamp) for each in found]


async def check_whole(
    broker: str, topic: str, records: Sequence[Record], futures: Sequence[asyncio.Future[RecordMetadata]]
) -> None:
    """Each record is there once, in order, and its future names its own offset: no gap, no duplicate."""
    found = await found_in(broker, topic)
    assert as_records(found) == list(records)
    assert [each.offset for each in found] == list(range(len(records)))
    metadata = [future.result() for future in futures]
    assert [(each.topic, each.partition, each.offset) for each in metadata] == [
        (topic, 0, offset) for offset in range(len(records))
    ]
    assert [each.timestamp for each in metadata] == [record.timestamp for record in records]


@pytest.mark.parametrize("codec", [None, *CODECS])
@pytest.mark.parametrize(
    ("limit", "batch", "count", "sizes", "least"),
    [(10_000, 100_000, 100, (1, 6_000), 25), (300_000, 2_000_000, 40, (90_000, 90_001), 4)],
    ids=["small", "on threads"],
)
async def test_batches_too_large_are_split(  # a row each
    broker: str,
    make_topic: MakeTopic,
    codec: str | None,
    limit: int,
    batch: int,
    count: int,
    sizes: tuple[int, int],
    least: int,
) -> None:
    """With each codec: batches over the topic's limit arrive whole, in order and once, behind each other's parts.

    So do those that are compressed and divided on threads, and records that have neither key nor value.
    """
    topic = make_topic(**{"max.message.bytes": limit})
    rng = random.Random(1)
    records = numbered([rng.randbytes(rng.randrange(*sizes)) + bytes(sizes[0] // 9) for _ in range(count)])
    records[count // 2] = Record(None, None, [], STAMP)
    async with batching(broker, batch, codec) as producer:
        futures = await send_all(producer, topic, records)
        assert producer.numbers.batch_split_total >= least
        assert producer._buffer.used == 0
    await check_whole(broker, topic, records, futures)


async def test_documents_scenario(broker: str, make_topic: MakeTopic) -> None:
    """Topic 1 compresses 10:1 until batches of 1 MB hold nine messages of 1 MB; topic 2, with 5:1, loses nothing by it.

    The same producer then sends 5:1 to topic 1 as well: batches that are twice too large are split. All sizes are a
    quarter of the document's; the batches are still those that threads build.
    """
    size = MEGABYTE // 4
    first, second = (make_topic(**{"max.message.bytes": size}) for _ in range(2))
    rng = random.Random(3)
    ten = [compressible(size - 1_000, 0.095, rng) for _ in range(5)]
    five = [compressible(size - 1_000, 0.195, rng) for _ in range(30)]
    async with batching(broker, size, "lz4") as producer:
        sent = 0
        async with asyncio.timeout(100):
            while estimate(producer, first) > 0.1:
                for value in itertools.islice(itertools.cycle(ten), 27):
                    _ = await producer.send(first, Record(b"%d" % sent, value, [], STAMP), partition=0)
                    sent += 1
                await producer.flush()
        assert producer.numbers.batch_split_total == 0
        assert estimate(producer, second) == INITIAL_ESTIMATE
        records = numbered(five)
        futures = await send_all(producer, second, records)
        assert producer.numbers.batch_split_total == 0
        await check_whole(broker, second, records, futures)

        changed = await send_all(producer, first, records)
        assert producer.numbers.batch_split_total > 0
        assert estimate(producer, first) > 0.9
        assert [future.result().offset for future in changed] == list(range(sent, sent + len(records)))
    found = await found_in(broker, first)
    assert [each.key for each in found] == [b"%d" % index for index in [*range(sent), *range(len(records))]]


async def test_limit_lowered_is_asked_for_again(broker: str, make_topic: MakeTopic) -> None:
    """A producer that asks what a topic takes asks again once batches within that are split, and splits no more."""
    topic = make_topic(**{"max.message.bytes": 200_000})
    rng = random.Random(9)
    records = numbered([rng.randbytes(4_000) for _ in range(120)])
    config = {"bootstrap.servers": broker, "batch.size": 100_000, "compression.type": "gzip"}
    async with ConfiguredBatchingProducer(config) as producer:
        futures = await send_all(producer, topic, records[:40])
        assert producer.numbers.batch_split_total == 0
        await set_limit(broker, topic, 10_000)
        futures += await send_all(producer, topic, records[40:80])
        splits = producer.numbers.batch_split_total
        assert splits > 0
        futures += await send_all(producer, topic, records[80:])
        assert producer.numbers.batch_split_total == splits
        answer = producer._limits[topic]
        producer._too_large(topic, 10_001)  # the estimate was wrong, and not the limit
        assert producer._limits[topic] is answer
    await check_whole(broker, topic, records, futures)


async def test_record_refused_alone_fails_alone(broker: str, make_topic: MakeTopic) -> None:
    """A record that its topic takes in no batch fails with its size; those around it, in its batch too, arrive."""
    topic = make_topic(**{"max.message.bytes": 5_000})
    rng = random.Random(5)
    values = [rng.randbytes(6_000 if index in (3, 4, 17) else 200) for index in range(20)]
    records = numbered(values)
    async with batching(broker, 100_000, "zstd") as producer:
        futures = await send_all(producer, topic, records)
        later = await send_all(producer, topic, numbered([b"later"], 20))
        assert producer.numbers.page()["topics"][topic]["record-error-total"] == 3  # type: ignore[index]
    kept = [record for index, record in enumerate(records) if index not in (3, 4, 17)]
    await check_whole(
        broker,
        topic,
        [*kept, *numbered([b"later"], 20)],
        [*(future for index, future in enumerate(futures) if index not in (3, 4, 17)), *later],
    )
    error = futures[3].exception()
    assert isinstance(error, RecordRefusedError)
    assert error.topic == topic
    assert 6_000 < error.size < 6_100
    assert str(error).startswith(f"topic {topic} has refused a record that takes {error.size:,} bytes as a batch of ")


async def test_transaction_with_a_split(broker: str, make_topic: MakeTopic) -> None:
    """What is split within a transaction is committed with it, once and in order; what is aborted is not seen."""
    topic = make_topic(**{"max.message.bytes": 5_000})
    rng = random.Random(7)
    records = numbered([rng.randbytes(900) for _ in range(100)])
    async with AIOKafkaProducer(bootstrap_servers=broker, transactional_id=topic, compression_type="lz4") as inner:
        producer = BatchingProducer(inner, BatchSettings(batch_bytes=50_000))
        with pytest.raises(IllegalOperation):
            _ = await producer.send(topic, records[0], partition=0)
        for part in (records[:50], records[50:]):
            await in_transaction(producer, topic, part)
            with pytest.raises(ZeroDivisionError):
                await in_transaction(producer, topic, part, ZeroDivisionError())
        refused = [Record(b"k", rng.randbytes(9_000)), Record(b"k", b"small")]
        with pytest.raises(IllegalOperation, match="1 records of the transaction were refused"):
            await in_transaction(producer, topic, refused)
        assert producer.numbers.batch_split_total > 20
    found = await asyncio.to_thread(read_all, broker, topic, "read_committed")
    assert as_records(found[0]) == records


async def in_transaction(
    producer: BatchingProducer, topic: str, records: Sequence[Record], error: Exception | None = None
) -> None:
    """Sends the records in a transaction of their own, which may end with an error."""
    async with producer.transaction():
        for record in records:
            _ = await producer.send(topic, record, partition=0)
        if error is not None:
            raise error


async def test_linger_fills_batches(broker: str, make_topic: MakeTopic) -> None:
    """With linger records that come one by one share a batch; a flush, and a batch that is full, do not wait for it."""
    topic = make_topic()
    async with batching(broker, 10_000, linger_s=30.0) as producer:
        futures = []
        for record in numbered([b"v"] * 50):
            futures.append(await producer.send(topic, record, partition=0))
            await asyncio.sleep(0)
        assert not any(future.done() for future in futures)
        async with asyncio.timeout(10):
            await producer.flush()
        assert producer.numbers.batch_total == 1
        async with asyncio.timeout(10):
            _ = await producer.send(topic, Record(b"k", b"v"), partition=0)
            await producer.flush()  # before the sender has begun to wait
            full = [await producer.send(topic, record, partition=0) for record in numbered([bytes(4_000)] * 3)]
            await full[0]
        assert not full[2].done()


async def test_linger_ends_by_itself(broker: str, make_topic: MakeTopic) -> None:
    """A batch that is not full goes when its time has come, without a flush."""
    topic = make_topic()
    async with batching(broker, linger_s=0.2) as producer:
        began = asyncio.get_running_loop().time()
        await asyncio.wait_for(await producer.send(topic, Record(b"k", b"v"), partition=0), 10)
        assert asyncio.get_running_loop().time() - began >= 0.2


async def test_buffer_memory_is_bounded(broker: str, make_topic: MakeTopic) -> None:
    """`send` waits while the buffer is full, one record may go over it, and after `max.block.ms` it fails."""
    topic = make_topic()
    async with plain(broker) as inner:
        producer = BatchingProducer(inner, BatchSettings(), buffer_bytes=20_000, max_block_s=10)
        highest = 0
        for record in numbered([bytes(3_000)] * 100):
            _ = await producer.send(topic, record, partition=0)
            highest = max(highest, producer._buffer.used)
        await (await producer.send(topic, Record(b"k", bytes(50_000)), partition=0))
        assert 15_000 < highest <= 20_000
        blocked = BatchingProducer(inner, BatchSettings(linger_s=60.0), buffer_bytes=20_000, max_block_s=0.2)
        blocked._batches.press = lambda: None  # type: ignore[method-assign]
        blocked._buffer._press = lambda: None
        _ = await blocked.send(topic, Record(b"k", bytes(15_000)), partition=0)
        with pytest.raises(KafkaTimeoutError, match=r"buffer\.memory stayed full for the 0\.2 s of max\.block\.ms"):
            _ = await blocked.send(topic, Record(b"k", bytes(15_000)), partition=0)
        blocked._batches.discard()
        await producer.close()
        with pytest.raises(ProducerClosed):
            _ = await producer.send(topic, Record(b"k", b"v"), partition=0)


async def test_delivery_timeout_ends_all_sending(broker: str, make_topic: MakeTopic) -> None:
    """A batch that is not acknowledged in time fails, and with it all others: nobody knows whether it is there."""
    topic = make_topic(2)
    async with plain(broker) as inner:
        # What the producer asks at first, and the first record of a partition, may take longer than the time below.
        await inner.send_and_wait(topic, b"v", b"k", partition=0)
        producer = BatchingProducer(inner, BatchSettings(delivery_timeout_s=0.5))
        inner._sender._muted_partitions.add(TopicPartition(topic, 0))  # as while an answer is awaited
        futures = [await producer.send(topic, Record(b"k", b"v"), partition=0) for _ in range(3)]
        with pytest.raises(KafkaTimeoutError, match=r"not acknowledged within the 0\.5 s of delivery\.timeout\.ms"):
            await futures[0]
        assert all(isinstance(future.exception(), KafkaTimeoutError) for future in futures)
        with pytest.raises(KafkaTimeoutError):
            _ = await producer.send(topic, Record(b"k", b"v"), partition=1)
        inner._sender._muted_partitions.clear()
        inner._message_accumulator._waiter_future.cancel()


async def test_sequence_numbers_begin_again_at_the_largest(broker: str, make_topic: MakeTopic) -> None:
    """After 2,147,483,647 records of a producer in a partition comes number 0, within a batch and a split too."""
    topic = make_topic(**{"max.message.bytes": 1_000})
    async with plain(broker) as inner:
        inner._txn_manager._sequence_numbers[TopicPartition(topic, 0)] = 2**31 - 3
        producer = BatchingProducer(inner, BatchSettings(batch_bytes=10_000, delivery_timeout_s=30.0))
        records = numbered([bytes(400)] * 12)
        futures = await send_all(producer, topic, records[:5]) + await send_all(producer, topic, records[5:])
        assert producer.numbers.batch_split_total > 0
        await check_whole(broker, topic, records, futures)


async def test_from_a_configuration(broker: str, make_topic: MakeTopic) -> None:
    """Kafka's keys make the producer; it asks what the topic takes, and no batch is refused."""
    topic = make_topic(**{"max.message.bytes": 5_000})
    rng = random.Random(8)
    records = numbered([rng.randbytes(900) for _ in range(40)])
    config = {"bootstrap.servers": broker, "batch.size": "50000", "linger.ms": 20, "compression.type": "lz4"}
    async with ConfiguredBatchingProducer(config) as producer:
        await send_all(producer, topic, records)
        metrics: Any = producer.metrics()
    assert metrics["batch-split-total"] == 0
    assert 2 < metrics["records-per-request-avg"] <= 5
    assert metrics["topics"][topic]["record-error-total"] == 0
    assert as_records((await asyncio.to_thread(read_all, broker, topic))[0]) == records


async def test_from_a_configuration_without_the_right_to_ask(broker: str, caplog: pytest.LogCaptureFixture) -> None:
    """A topic that does not say what it takes is warned of, once, also if it refuses a batch later."""
    config = {"bootstrap.servers": broker}
    async with ConfiguredBatchingProducer(config) as producer:
        limits = [await producer._limit("no-such-topic") for _ in range(2)]
        producer._too_large("no-such-topic", 1)
        limits.append(await producer._limit("no-such-topic"))
    assert limits == [None] * 3
    assert caplog.text.count("the limit of topic no-such-topic is not known") == 1


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"batch.sise": 1}, "did you mean batch.size"),
        ({"batch.size": "many"}, "batch.size"),
        ({"max.request.size": 1}, "max.request.size"),
        ({"acks": 0}, "brokers do not report refusals"),
        ({"linger.ms": -1}, "allowed is 0 or more"),
    ],
)
async def test_wrong_keys(config: dict[str, object], said: str) -> None:
    """Each is told with its key before anything is connected."""
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        ConfiguredBatchingProducer({"bootstrap.servers": "127.0.0.1:1", **config})
