"""A consumer whose memory does not hold what is pending, or that begins in the middle of a message: nothing is lost."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from aiokafka import TopicPartition

from app.chunks import AssembledRecord, AssemblingConsumer, ChunkMessageId, Discarded
from tests.integration.aiokafka_records import becomes, come_and_go, one
from tests.integration.chunk_records import delete_up_to, interleaved, pieces, value_of, write
from tests.integration.test_client_chunks import committed, consuming
from tests.integration.way import MakeTopic
from transforms.commit_metadata import Noted, noted
from transforms.record import Record

TIGHT = {"max.pending.chunked.message": 1}


async def test_more_is_pending_than_memory_holds(broker: str, make_topic: MakeTopic) -> None:
    """Three values of which two fit into memory all come, whole and in order; nothing is discarded."""
    topic = make_topic()
    messages = [pieces(f"u{n}", 60_000, n) for n in range(3)]
    await write(broker, topic, [record for turn in zip(*messages, strict=True) for record in turn])
    found: list[Discarded] = []
    limits = {"max.pending.chunked.bytes": 400_000, "chunk.max.message.bytes": 100_000}
    async with consuming(broker, topic, found, limits) as consumer:
        records = [await one(consumer) for _ in range(3)]
        assert [record.value for record in records] == [value_of(60_000, n) for n in range(3)]
        assert all(isinstance(record, AssembledRecord) for record in records)
        last = 3 * len(messages[0]) - 3
        assert [record.chunk_message_id for record in records] == [ChunkMessageId(n, last + n) for n in range(3)]
        assert consumer.stats()["setAside"] == 1
        assert consumer.counts.assembled == 3
        assert (consumer.stats()["pendingChunkedBytes"], found) == (0, [])


async def test_cancelled_calls_read_on(broker: str, make_topic: MakeTopic) -> None:
    """Calls that are cancelled while a message is read again lose nothing and repeat nothing."""
    topic = make_topic()
    await write(broker, topic, list(interleaved([pieces(f"u{n}", 3_000, n) for n in range(8)], 3)))
    rng = random.Random(4)
    got: list[bytes] = []
    async with consuming(broker, topic, [], TIGHT) as consumer:
        async with asyncio.timeout(30):
            while len(got) < 8:
                call = asyncio.create_task(consumer.getone())
                for _ in range(rng.randrange(30)):
                    await asyncio.sleep(0)
                call.cancel()
                try:
                    got.append((await call).value)
                except asyncio.CancelledError:
                    await asyncio.sleep(0.001)
        assert consumer.counts.set_aside > 2
    assert sorted(got) == sorted(value_of(3_000, n) for n in range(8))


@pytest.mark.parametrize("kept", ["position", "offset", "commit"])
async def test_offsets_kept_anywhere(broker: str, make_topic: MakeTopic, kept: str) -> None:
    """An application that begins anew again and again gets each message once, wherever it keeps its offsets."""
    topic = make_topic()
    plain = [[Record(b"k", b"%d" % n)] for n in range(6)]
    await write(broker, topic, list(interleaved([pieces(f"u{n}", 4_000, n) for n in range(6)] + plain, 5)))
    expected = {value_of(4_000, n) for n in range(6)} | {b"%d" % n for n in range(6)}
    partition = TopicPartition(topic, 0)
    got: list[bytes] = []
    position = 0
    found: list[Discarded] = []
    while len(got) < len(expected):
        keys = {**TIGHT, "group.id": topic} if kept == "commit" else TIGHT
        async with consuming(broker, topic, found, keys) as consumer:
            if kept != "commit":
                consumer.seek(partition, position)
            for _ in range(min(2, len(expected) - len(got))):
                record = await one(consumer)
                got.append(record.value)
                position = await consumer.position(partition) if kept == "position" else record.offset + 1
            if kept == "commit":
                await consumer.commit()
    assert len(got) == len(expected)
    assert set(got) == expected
    assert found == []


@pytest.mark.parametrize("target", [2, 3])
async def test_a_retry_or_a_skip_keeps_what_is_pending(broker: str, make_topic: MakeTopic, target: int) -> None:
    """No commit passes a message that began before the position that is set, and it comes, however far back."""
    topic, found = make_topic(), list[Discarded]()
    slow = pieces("slow", 3_000, 1)
    await write(broker, topic, [Record(b"k", b"a"), slow[0], Record(b"k", b"bad"), Record(b"k", b"b")])
    async with consuming(broker, topic, found, {"chunk.lookback": 0}) as consumer:
        assert [(await one(consumer)).value for _ in range(2)] == [b"a", b"bad"]
        consumer.seek(TopicPartition(topic, 0), target)
        assert [(await one(consumer)).value for _ in range(4 - target)] == [b"bad", b"b"][target - 2 :]
        assert consumer.safe_offsets({TopicPartition(topic, 0): 4})[TopicPartition(topic, 0)].offset == 1
        await write(broker, topic, slow[1:])
        assert (await one(consumer)).value == value_of(3_000, 1)
    assert found == []


async def test_position_waits_for_what_is_not_delivered(broker: str, make_topic: MakeTopic) -> None:
    """The position is that of the next record, or of the first chunk of a message that began too long ago."""
    topic = make_topic()
    slow, quick = pieces("slow", 3_000, 1), pieces("quick", 2_000, 2)
    await write(broker, topic, [Record(b"k", b"a"), slow[0], *quick, Record(b"k", b"b")])
    partition = TopicPartition(topic, 0)
    for lookback, last_chunk, behind in ((10_000, 4, 5), (1, 1, 1)):
        async with consuming(broker, topic, [], {"chunk.lookback": lookback}) as consumer:
            assert (await one(consumer)).value == b"a"
            assert await consumer.position(partition) == last_chunk
            assert (await one(consumer)).value == value_of(2_000, 2)
            assert await consumer.position(partition) == behind


async def test_expired_messages_give_all_chunks_back(broker: str, make_topic: MakeTopic) -> None:
    """The chunks of a message that was set aside are read again for the callback."""
    topic = make_topic()
    await write(broker, topic, [pieces("a", 3_000)[0], *pieces("b", 3_000)[:3]])
    found: list[Discarded] = []
    keys = {**TIGHT, "expire.time.of.incomplete.chunked.message.ms": 300}
    async with consuming(broker, topic, found, keys) as consumer:
        reading = asyncio.create_task(one(consumer))
        await becomes(lambda: len(found) == 2, "both have expired")
        await write(broker, topic, [Record(b"k", b"end")])
        assert (await reading).value == b"end"
    told = {each.uuid: (each.reason, [record.offset for record in each.records]) for each in found}
    assert told == {"a": ("expired", [0]), "b": ("expired", [1, 2, 3])}


async def test_each_task_reads_its_partition(broker: str, make_topic: MakeTopic) -> None:
    """Where every task reads a partition of its own, messages expire all the same."""
    topic = make_topic(2)
    for partition in range(2):
        await write(broker, topic, pieces(f"u{partition}", 3_000)[:1], partition)
    found: list[Discarded] = []
    keys = {"expire.time.of.incomplete.chunked.message.ms": 300}
    async with consuming(broker, topic, found, keys) as consumer:
        tasks = [asyncio.create_task(consumer.getone(TopicPartition(topic, partition))) for partition in range(2)]
        await becomes(lambda: len(found) == 2, "both have expired")
        for partition in range(2):
            await write(broker, topic, [Record(b"k", b"%d" % partition)], partition)
        assert [(await task).value for task in tasks] == [b"0", b"1"]
    assert {each.uuid for each in found} == {"u0", "u1"}


async def test_chunks_that_kafka_has_removed(broker: str, make_topic: MakeTopic) -> None:
    """A message whose chunks leave the log before they are read again is `missing-first`, with what is left of it."""
    topic = make_topic()
    a, b = pieces("a", 1_000, 1), pieces("b", 2_000, 2)
    assert (len(a), len(b)) == (2, 3)
    await write(broker, topic, [b[0], a[0], b[1]])
    found: list[Discarded] = []
    async with consuming(broker, topic, found, TIGHT) as consumer:
        while consumer.stats()["pendingChunkedMessages"] != 2:
            await consumer.getmany(timeout_ms=50)
        await delete_up_to(broker, topic, 2)
        await write(broker, topic, [a[1], b[2], Record(b"k", b"end")])
        values = [(await one(consumer)).value for _ in range(2)]
    assert values == [value_of(2_000, 2), b"end"]
    assert [(each.reason, each.uuid, [r.offset for r in each.records]) for each in found] == [
        ("missing-first", "a", [3])
    ]


async def test_message_that_begins_before_the_log(broker: str, make_topic: MakeTopic) -> None:
    """What retention has left of a message is told with its offsets; the records behind it come."""
    topic = make_topic()
    chunks = pieces("u", 3_000)
    await write(broker, topic, [Record(b"k", b"x"), *chunks, Record(b"k", b"end")])
    await delete_up_to(broker, topic, 3)
    found: list[Discarded] = []
    async with consuming(broker, topic, found) as consumer:
        assert (await one(consumer)).value == b"end"
    assert [(each.reason, [record.offset for record in each.records]) for each in found] == [
        ("missing-first", list(range(3, len(chunks) + 1)))
    ]


async def test_first_chunk_is_too_far_back(broker: str, make_topic: MakeTopic) -> None:
    """With `chunk.lookback` at 2, a message that began three offsets before the beginning is not found."""
    topic = make_topic()
    chunks = pieces("u", 3_000, 1)
    await write(broker, topic, [chunks[0], Record(b"k", b"a"), Record(b"k", b"b"), *chunks[1:]])
    for lookback, whole in ((2, False), (3, True)):
        found: list[Discarded] = []
        async with consuming(broker, topic, found, {"chunk.lookback": lookback}) as consumer:
            consumer.seek(TopicPartition(topic, 0), 3)
            if whole:
                assert (await one(consumer)).chunk_message_id == ChunkMessageId(0, len(chunks) + 1)
            else:
                await becomes_discarded(consumer, found)
        assert [each.reason for each in found] == ([] if whole else ["missing-first"])


async def becomes_discarded(consumer: AssemblingConsumer, found: list[Discarded]) -> None:
    """Reads until something is discarded."""
    async with asyncio.timeout(30):
        while not found:
            await consumer.getmany(timeout_ms=100)


async def test_seek_to_committed(broker: str, make_topic: MakeTopic) -> None:
    """Going back to the commit repeats nothing that was delivered before it; an ordinary `seek` does."""
    topic = make_topic()
    slow = pieces("slow", 3_000, 1)
    await write(broker, topic, [slow[0], Record(b"k", b"a"), *slow[1:], Record(b"k", b"b")])
    partition = TopicPartition(topic, 0)
    async with consuming(broker, topic, [], {"group.id": topic}) as consumer:
        assert (await one(consumer)).value == b"a"
        await consumer.commit({partition: 2})
        found = await committed(broker, topic, topic)
        assert (found.offset, noted(found.metadata)) == (0, Noted(2))
        assert await consumer.seek_to_committed(partition) == {partition: 0}
        assert [(await one(consumer)).value for _ in range(2)] == [value_of(3_000, 1), b"b"]
        consumer.seek(partition, 0)
        assert (await one(consumer)).value == b"a"


async def test_killed_and_rebalanced(broker: str, make_topic: MakeTopic, least_session_ms: int) -> None:
    """Consumers that come and go, with room for one message: each value comes, and nothing else does."""
    topic = make_topic(2)
    per_partition = 12
    for partition in range(2):
        messages = [pieces(f"p{partition}-{n}", 3_000, 100 * partition + n) for n in range(per_partition)]
        await write(broker, topic, list(interleaved(messages, partition)), partition)
    expected = {value_of(3_000, 100 * partition + n) for partition in range(2) for n in range(per_partition)}
    keys: dict[str, Any] = {
        **TIGHT,
        "group.id": topic,
        "session.timeout.ms": least_session_ms,
        "heartbeat.interval.ms": 300,
    }
    found: list[Discarded] = []
    await come_and_go(lambda: consuming(broker, topic, found, keys), expected, 8)
    assert found == []
