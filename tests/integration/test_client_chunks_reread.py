"""A consumer whose memory does not hold what is pending, or that begins in the middle of a message: nothing is lost."""

from __future__ import annotations

import asyncio
import random

from aiokafka import TopicPartition

from app.chunks import Discarded
from tests.integration.aiokafka_records import becomes, one
from tests.integration.chunk_records import interleaved, pieces, value_of, write
from tests.integration.test_client_chunks import committed, consuming
from tests.integration.way import MakeTopic
from transforms.commit_metadata import Noted, noted
from transforms.record import Record

TIGHT = {"max.pending.chunked.message": 1}


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
