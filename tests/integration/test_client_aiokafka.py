"""What only aiokafka's consumers have: tasks, cancelled calls, downloads beside each other, ids of messages."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Any

import pytest
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import ConsumerStoppedError

from app.chunks import AssembledRecord, ChunkingProducer, ChunkMessageId, Discarded
from tests.integration.aiokafka_records import MakeSource, Source, becomes, loop_turns, one
from tests.integration.chunk_records import interleaved, pieces, plain, value_of
from tests.integration.client_config import LARGE, REFERENCES, Config
from tests.integration.client_readers import Assembling, Client, Getmany, Getone, Reader
from tests.integration.client_stores import Gate, run_example
from tests.integration.topics import send
from tests.s3_server import S3Server
from transforms.commit_metadata import Noted, noted

_LONG_S = 30.0


def place(reader: Reader, partition: int = 0) -> TopicPartition:
    """A partition of its topic."""
    return TopicPartition(reader.topic, partition)


# --- calls that are cancelled -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", [Getone, Getmany])
async def test_a_cancelled_call_keeps_its_download(source: Source, gate: Gate, client: Client) -> None:
    """The position stays, the record comes with a later call, and its payload is downloaded once."""
    await source.produce([LARGE, b"2"])
    async with client(source, REFERENCES) as reader:
        gate.open.clear()
        for _ in range(3):
            reading = asyncio.create_task(reader.poll(20.0))
            await becomes(lambda: gate.begun == 1, "the download is under way")
            await loop_turns()  # a later call finds it so
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert await reader.position() == 0
        gate.open.set()
        assert await reader.values(2) == [LARGE, b"2"]
    assert gate.begun == 1


async def test_calls_that_are_cancelled_at_any_moment(source: Source) -> None:
    """Many times a message, also while one is read again or downloaded, they lose no record and repeat none."""
    messages = [*(pieces(f"u{n}", 3_000, n) for n in range(8)), [plain(b"%d" % n) for n in range(8)]]
    await source.write(list(interleaved(messages, 3)))
    await source.produce([LARGE + b"%d" % n for n in range(4)])
    expected = {value_of(3_000, n) for n in range(8)} | {b"%d" % n for n in range(8)}
    expected |= {LARGE + b"%d" % n for n in range(4)}
    rng = random.Random(4)
    got: list[bytes] = []
    cancelled = 0
    config: Config = {**REFERENCES, "max.pending.chunked.message": 1, "max.partition.fetch.bytes": 3_000}
    async with Getone(source, config) as reader, asyncio.timeout(_LONG_S):
        while len(got) < len(expected):
            call = asyncio.create_task(reader.consumer.getone())
            for _ in range(rng.randrange(20)):
                await asyncio.sleep(0)
            cancelled += call.cancel()
            try:
                got.append((await call).value)
            except asyncio.CancelledError:
                await asyncio.sleep(0.001)
        assert reader.consumer.counts.set_aside > 2
    assert set(got) == expected
    assert len(got) == len(expected)
    assert cancelled > 30


# --- downloads --------------------------------------------------------------------------------------------------------


async def test_a_position_does_not_pass_a_download(source: Source, gate: Gate) -> None:
    """A commit during a download, by the timer or by `commit`, is of what was delivered; so is that of `stop`."""
    await source.produce([b"1", LARGE])
    config = {**REFERENCES, "enable.auto.commit": True, "auto.commit.interval.ms": 100}
    async with Getone(source, config) as reader:
        assert await reader.values() == [b"1"]
        gate.open.clear()
        reading = asyncio.create_task(one(reader.consumer))
        await becomes(lambda: gate.begun == 1, "the download is under way")
        await reader.commit()
        assert await reader.committed() == {0: 1}
        stopping = asyncio.create_task(reader.consumer.stop())
        await loop_turns()
        gate.open.set()
        await stopping
        with pytest.raises(ConsumerStoppedError):
            await reading
    assert await reader.committed() == {0: 1}


async def test_a_rebalance_during_a_download(wide: Source, gate: Gate) -> None:
    """A record whose partition goes to another member while it is downloaded is that member's."""
    for partition in (0, 1):
        await wide.produce([LARGE + b"%d" % partition], partition)
    config = {**REFERENCES, "enable.auto.commit": True, "auto.commit.interval.ms": 100}
    async with Getone(wide, config) as first, Getone(wide, config) as second:
        gate.open.clear()
        reading = asyncio.create_task(one(first.consumer))
        await becomes(lambda: gate.begun >= 1, "the download is under way")
        await becomes(lambda: len(first.assignment()) == len(second.assignment()) == 1, "each has a partition")
        gate.open.set()
        mine, others = await reading, await one(second.consumer)
        assert {mine.partition} == first.assignment()
        assert {mine.value, others.value} == {LARGE + b"0", LARGE + b"1"}
    assert await first.committed() == {0: 1, 1: 1}


# --- several tasks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moved", ["seek", "assign"])
async def test_a_move_counts_for_every_task(source: Source, gate: Gate, moved: str) -> None:
    """Where one task downloads, another reads on from a seek or a new assignment, and loses nothing of it."""
    await source.produce([LARGE, b"2", b"3"])
    async with Getone(source, REFERENCES, assigned={0: None}) as reader:
        gate.open.clear()
        first = asyncio.create_task(reader.consumer.getmany(timeout_ms=1_000))
        await becomes(lambda: gate.begun == 1, "the download is under way")
        if moved == "seek":
            await reader.seek(2)
            given = await reader.read()
        else:
            reader.consumer.assign([place(reader)])
            second = asyncio.create_task(reader.read())
            await loop_turns()
            gate.open.set()
            await source.produce([b"4"])  # for whichever of the two comes last
            given = await second
        gate.open.set()
        offsets = [each.offset for each in given]
        offsets += [record.offset for records in (await first).values() for record in records]
        if moved == "assign":
            offsets += [each.offset for each in await reader.read(4 - len(offsets))]
        assert sorted(offsets) == ([2] if moved == "seek" else [0, 1, 2, 3])
        assert await reader.position() == max(offsets) + 1


# --- positions and messages -------------------------------------------------------------------------------------------


async def test_seek_to_committed(source: Source) -> None:
    """Going back to the commit repeats nothing that was delivered before it; an ordinary `seek` does."""
    slow = pieces("slow", 3_000, 1)
    await source.write([slow[0], plain(b"a"), *slow[1:], plain(b"b")])
    async with Assembling(source) as reader:
        assert await reader.values() == [b"a"]
        await reader.commit(2)
        offset, metadata = (await reader.marks())[0]
        assert (offset, noted(metadata)) == (0, Noted(2))
        assert await reader.consumer.seek_to_committed(place(reader)) == {place(reader): 0}
        assert await reader.values(2) == [value_of(3_000, 1), b"b"]
        await reader.seek(0)
        assert await reader.values() == [b"a"]


async def test_what_is_fetched_ahead_is_bounded(wide: Source) -> None:
    """While a message is incomplete, too, `getone` makes no more than some hundred records of what was fetched."""
    for partition, size in ((0, 1_000), (1, 10)):
        await wide.write(pieces(f"u{partition}", 3_000, 1)[:1], partition)
        await asyncio.to_thread(send, wide.broker, wide.topic, [(partition, b"k", bytes(size), [], 0)] * 3_000)
    most = 0
    async with Assembling(wide) as reader:
        for number in range(3_000):
            await reader.consumer.getone()
            if number % 100 == 0:
                most = max(most, sum(isinstance(each, ConsumerRecord) for each in gc.get_objects()))
    assert most <= 1_000


@pytest.mark.matrix
async def test_ids_of_messages(make_source: MakeSource) -> None:
    """A message has the id that its producer was given; a seek to it gives the message, and so does its last offset."""
    source, found = make_source(**{"max.message.bytes": 20_000}), list[Discarded]()
    sent = [value_of(100_000), b"small", value_of(50_000, 1)]
    async with ChunkingProducer({"bootstrap.servers": source.broker}) as producer:
        futures = [await producer.send(source.topic, value) for value in sent]
        await producer.flush()
        assert all(future.done() for future in futures)
        stats: dict[str, Any] = producer.stats()[source.topic]
        assert (stats["msgChunkPublished"], stats["chunkedMessageRate"] > 0) == (True, True)
    ids = [getattr(future.result(), "chunk_message_id", None) for future in futures]
    assert ids == [ChunkMessageId(0, 5), None, ChunkMessageId(7, 9)]
    made = Assembling(source, {}, found.append)
    made.options["value_deserializer"] = lambda value: value[::-1]  # sees whole values
    async with made as reader:
        records = [await one(reader.consumer) for _ in sent]
        assert [each.value[::-1] for each in records] == sent
        assert [each.chunk_message_id if isinstance(each, AssembledRecord) else None for each in records] == ids
        for target in (ids[2], 9):
            reader.consumer.seek(place(reader), target)
            assert (await one(reader.consumer)).chunk_message_id == ids[2]
        await reader.consumer.seek_to_beginning(place(reader))
        assert (await one(reader.consumer)).chunk_message_id == ids[0]
        assert reader.consumer.stats()["chunkedMessageRate"][source.topic] > 0
    assert found == []


async def test_the_example_of_chunks(source: Source, versitygw: S3Server) -> None:
    """The script sends, reads and goes back."""
    printed = await asyncio.to_thread(run_example, "chunks_client.py", source.broker, source.topic, versitygw)
    assert printed == "sent as 0-4\nread as 0-4, 5,000,000 bytes, {'kind': b'x-ray'}\nand again\n"
