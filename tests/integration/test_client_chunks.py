"""aiokafka's clients with chunks, against a real broker."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import ConsumerStoppedError
from aiokafka.structs import OffsetAndMetadata

from app.chunks import AssembledRecord, AssemblingConsumer, ChunkingProducer, Discarded
from tests.forks import run
from tests.integration.aiokafka_records import one
from tests.integration.chunk_records import value_of, write
from tests.integration.way import MakeTopic
from transforms.errors import ConfigurationError
from transforms.record import Record

LIMIT = 20_000
SMALL_TOPIC: dict[str, Any] = {"max.message.bytes": LIMIT}
_LONG_S = 30.0
_ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def producing(broker: str, **options: Any) -> AsyncIterator[ChunkingProducer]:
    """A producer, started."""
    async with ChunkingProducer({"bootstrap.servers": broker}, **options) as producer:
        yield producer


@asynccontextmanager
async def consuming(
    broker: str,
    topic: str,
    found: list[Discarded] | None = None,
    keys: Mapping[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[AssemblingConsumer]:
    """A consumer that reads from the beginning, or from where its group is."""
    config = {"bootstrap.servers": broker, "auto.offset.reset": "earliest", "enable.auto.commit": "false"}
    if found is not None:
        options["on_discarded"] = found.append
    async with AssemblingConsumer({**config, **(keys or {})}, topic, **options) as consumer:
        yield consumer


# --- round trip -------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
async def test_round_trip_everything(broker: str, make_topic: MakeTopic) -> None:
    """Large, small and empty values, null keys, tombstones, headers and timestamps come back in order as they were."""
    topic = make_topic(**SMALL_TOPIC)
    headers = [("a", b"1"), ("b", None), ("a", b"")]
    sent = [
        Record(b"k", value_of(100_000), headers, 1_700_000_000_000),
        Record(b"k", b"small", headers, 1_700_000_000_001),
        Record(None, value_of(50_000, 1), (), 1_700_000_000_002),
        Record(b"k", None, [("gone", b"")], 1_700_000_000_003),
        Record(b"", b"", (), 1_700_000_000_004),
        Record(b"k" * 15_000, value_of(30_000, 2), [("big", value_of(2_000))], 1_700_000_000_005),
    ]
    async with producing(broker) as producer:
        results = [await producer.send_and_wait(topic, r.value, r.key, 0, r.timestamp, r.headers) for r in sent]
    async with consuming(broker, topic) as consumer:
        found = [await one(consumer) for _ in sent]
    assert [Record(r.key, r.value, list(r.headers), r.timestamp) for r in found] == [
        Record(r.key, r.value, list(r.headers), r.timestamp) for r in sent
    ]
    ids = [getattr(record, "chunk_message_id", None) for record in found]
    assert [getattr(result, "chunk_message_id", None) for result in results] == ids
    assert [identity is not None for identity in ids] == [True, False, True, False, False, True]
    assert [result.offset for result in results] == [record.offset for record in found]
    assert [result.timestamp for result in results] == [record.timestamp for record in sent]
    assert consumer.counts.assembled == 3
    assert producer.stats()[topic]["msgChunkPublished"] is True
    assert consumer.stats()["chunkedMessageRate"][topic] > 0  # type: ignore[index]


# --- the producer -----------------------------------------------------------------------------------------------------


def test_configuration_errors() -> None:
    """A key that is not known is told with the nearest one, and a wrong value with what is allowed."""
    with pytest.raises(ConfigurationError, match=r"did you mean chunk\.max\.bytes"):
        ChunkingProducer({"bootstrap.servers": "-", "chunk.max.byte": 5})
    with pytest.raises(ConfigurationError, match="allowed is 1 or more"):
        AssemblingConsumer({"bootstrap.servers": "-", "max.pending.chunked.message": "0"})


# --- seek -------------------------------------------------------------------------------------------------------------


async def test_seek(broker: str, make_topic: MakeTopic) -> None:
    """Seeking to an id gives its message, and so does the offset of its last chunk, which is that of its record."""
    topic = make_topic(**SMALL_TOPIC)
    async with producing(broker) as producer:
        ids = [
            (await producer.send_and_wait(topic, value_of(50_000, seed), b"k")).chunk_message_id for seed in range(3)
        ]
    partition = TopicPartition(topic, 0)
    found: list[Discarded] = []
    async with consuming(broker, topic, found) as consumer:
        for seed in range(3):
            assert (await one(consumer)).value == value_of(50_000, seed)
        consumer.seek(partition, ids[1])
        assert (await one(consumer)).chunk_message_id == ids[1]
        assert found == []
        consumer.seek(partition, ids[1].last)
        assert (await one(consumer)).chunk_message_id == ids[1]
        assert (await one(consumer)).chunk_message_id == ids[2]
        assert found == []
        await consumer.seek_to_beginning(partition)
        assert (await one(consumer)).chunk_message_id == ids[0]


# --- what is discarded ------------------------------------------------------------------------------------------------

EXPIRE = {"expire.time.of.incomplete.chunked.message.ms": 60_000}
HOUR_S = 3_600.0


# --- positions --------------------------------------------------------------------------------------------------------


async def committed(broker: str, group: str, topic: str) -> OffsetAndMetadata:
    """What is committed, metadata and all."""
    async with AIOKafkaConsumer(bootstrap_servers=broker, group_id=group, enable_auto_commit=False) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        found: OffsetAndMetadata = (await consumer._coordinator.fetch_committed_offsets([partition]))[partition]
        return found


async def test_cancel_loses_nothing(broker: str, make_topic: MakeTopic) -> None:
    """Calls that are cancelled at any moment, many times a message, lose no record and repeat none."""
    topic = make_topic(**SMALL_TOPIC)
    expected = [value_of(60_000, seed) if seed % 3 else b"%d" % seed for seed in range(30)]
    async with producing(broker) as producer:
        for value in expected:
            _ = await producer.send(topic, value, b"k")
    rng = random.Random(5)
    got: list[bytes] = []
    cancelled = 0
    async with consuming(broker, topic, max_partition_fetch_bytes=30_000) as consumer:
        while len(got) < len(expected):
            call = asyncio.create_task(consumer.getone())
            for _ in range(rng.randrange(8)):
                await asyncio.sleep(0)
            cancelled += call.cancel()
            try:
                got.append((await call).value)
            except asyncio.CancelledError:
                await asyncio.sleep(0.001)
    assert got == expected
    assert cancelled > 30


async def test_stop_ends_calls(broker: str, make_topic: MakeTopic) -> None:
    """A call that waits ends with the consumer."""
    async with consuming(broker, make_topic()) as consumer:
        call = asyncio.create_task(consumer.getone())
        await asyncio.sleep(0)
    with pytest.raises(ConsumerStoppedError):
        await asyncio.wait_for(call, _LONG_S)


async def test_records_of_a_paused_partition_wait(broker: str, make_topic: MakeTopic) -> None:
    """`getone` fetches several records; what is paused, sought or revoked meanwhile is not delivered from them."""
    topic = make_topic(2)
    for partition in range(2):
        await write(broker, topic, [Record(b"k", b"%d-%d" % (partition, n)) for n in range(5)], partition)
    async with consuming(broker, topic) as consumer:
        first, other = [TopicPartition(topic, number) for number in range(2)]
        assert (await consumer.getone(first)).value == b"0-0"
        consumer.pause(first)
        assert [(await one(consumer)).value for _ in range(2)] == [b"1-0", b"1-1"]
        assert await consumer.position(first) == 1
        consumer.resume(first)
        consumer.pause(other)
        assert [(await one(consumer)).value for _ in range(2)] == [b"0-1", b"0-2"]
        consumer.seek(first, 1)
        assert [(await one(consumer)).value for _ in range(4)] == [b"0-1", b"0-2", b"0-3", b"0-4"]
        assert {each: told.offset for each, told in consumer.safe_offsets().items()} == {first: 5, other: 2}


# --- the example ------------------------------------------------------------------------------------------------------


async def test_the_example(broker: str, make_topic: MakeTopic) -> None:
    """The script sends, reads and goes back."""
    topic = make_topic()
    environ = {"PYTHONPATH": str(_ROOT), "KAFKA_BOOTSTRAP_SERVERS": broker}
    script = str(_ROOT / "docs" / "examples" / "chunks_client.py")
    done = await asyncio.to_thread(run, [sys.executable, script, topic], environ=environ, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "sent as 0-4\nread as 0-4, 5,000,000 bytes, {'kind': b'x-ray'}\nand again\n"


def test_assembled_record_is_a_record() -> None:
    """Whoever takes a `ConsumerRecord` takes a message."""
    assert issubclass(AssembledRecord, ConsumerRecord)
