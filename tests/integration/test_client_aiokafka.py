"""What only aiokafka's consumers have: tasks, cancelled calls, downloads beside each other, ids of messages."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import ConsumerStoppedError, ProducerClosed
from aiokafka.structs import OffsetAndMetadata

from app.chunks import AssembledRecord, ChunkingProducer, Discarded
from app.serializers import RecordDeserializationError, SerializationError
from app.serializers.aiokafka import SerializingProducer
from tests.integration.aiokafka_records import MakeSource, Source, becomes, loop_turns, many, one
from tests.integration.chunk_records import delete_up_to, interleaved, pieces, plain, value_of
from tests.integration.client_config import LARGE, REFERENCES, Config, producing
from tests.integration.client_readers import Assembling, Client, Getmany, Getone, Reader
from tests.integration.client_stores import Gate, GatedStore, run_example
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


async def test_a_call_is_bounded_in_time(source: Source, gate: Gate) -> None:
    """While downloads hang, the loop goes on; the call begins none that may end behind the poll interval."""
    await source.produce([LARGE + b"%d" % number for number in range(9)])  # one more than run at once
    times = {"max.poll.interval.ms": 11_000, "large.message.store.timeout.ms": 10_000}
    async with Getmany(source, {**REFERENCES, **times}) as reader:
        gate.open.clear()
        reading = asyncio.create_task(many(reader.consumer))
        await becomes(lambda: gate.begun == 8, "eight downloads are under way")
        begun_s = time.monotonic()
        await becomes(lambda: time.monotonic() - begun_s > 1.1, "another would end behind the poll interval")
        gate.open.set()
        ((_, records),) = (await reading).items()
        assert [record.value for record in records] == [LARGE + b"%d" % number for number in range(8)]
        assert await reader.values() == [LARGE + b"8"]
    assert gate.begun == 9


async def test_a_position_does_not_pass_a_download(source: Source, gate: Gate) -> None:
    """A commit during a download, by the timer or by `commit`, is of what was delivered; so is that of `stop`."""
    await source.produce([b"1", LARGE, b"3"])
    config = {**REFERENCES, "enable.auto.commit": True, "auto.commit.interval.ms": 100}
    async with Getone(source, config) as reader:
        assert await reader.values() == [b"1"]
        gate.open.clear()
        reading = asyncio.create_task(reader.values())
        await becomes(lambda: gate.begun == 1, "the download is under way")
        await reader.commit()
        assert await reader.committed() == {0: 1}
        gate.open.set()
        assert await reading == [LARGE]
        await reader.commit()
        assert await reader.committed() == {0: 2}
        assert await reader.values() == [b"3"]
        gate.open.clear()
        await source.produce([LARGE])
        reading = asyncio.create_task(one(reader.consumer))
        await becomes(lambda: gate.begun == 2, "the download is under way")
        stopping = asyncio.create_task(reader.consumer.stop())
        await loop_turns()
        gate.open.set()
        await stopping
        with pytest.raises(ConsumerStoppedError):
            await reading
    assert await reader.committed() == {0: 3}


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


async def test_tasks_that_share_a_partition(source: Source, gate: Gate) -> None:
    """Two tasks that read one consumer get each record once: while one downloads, and when a batch comes for both."""
    await source.produce([LARGE, b"2"])
    async with Getone(source, REFERENCES) as reader:
        gate.open.clear()
        reading = [asyncio.create_task(one(reader.consumer)) for _ in range(2)]
        await becomes(lambda: gate.begun == 1, "the download is under way")
        gate.open.set()
        assert {record.value for record in await asyncio.gather(*reading)} == {LARGE, b"2"}
        reading = [asyncio.create_task(one(reader.consumer)) for _ in range(2)]
        await loop_turns()
        await asyncio.to_thread(send, source.broker, source.topic, [(0, b"k", value, [], 0) for value in (b"3", b"4")])
        assert sorted(record.value for record in await asyncio.gather(*reading)) == [b"3", b"4"]
    assert gate.begun == 1


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


async def test_each_task_reads_its_partition(make_source: MakeSource, gate: Gate) -> None:
    """Messages expire all the same, and the failure of a partition is raised only for those that read it."""
    source, found = make_source(3), list[Discarded]()
    for partition in range(2):
        await source.write(pieces(f"u{partition}", 3_000)[:1], partition)
    config = {**REFERENCES, "expire.time.of.incomplete.chunked.message.ms": 300}
    async with Getone(source, config, found.append) as reader:
        tasks = [asyncio.create_task(reader.consumer.getone(place(reader, partition))) for partition in range(2)]
        await becomes(lambda: len(found) == 2, "both have expired")
        for partition in range(2):
            await source.write([plain(b"%d" % partition)], partition)
        assert [(await task).value for task in tasks] == [b"0", b"1"]
        await source.produce([LARGE], 2)
        gate.payloads.clear()
        with pytest.raises(RecordDeserializationError):
            await one(reader.consumer)
        await source.produce([b"3"], 1)
        async with asyncio.timeout(_LONG_S):
            assert (await reader.consumer.getone(place(reader, 1))).value == b"3"
    assert {each.uuid for each in found} == {"u0", "u1"}


async def test_pauses_among_partitions(wide: Source) -> None:
    """`getone` may have fetched several records; those of a paused partition wait, and others go on."""
    for partition in range(2):
        await wide.write([plain(b"%d-%d" % (partition, n)) for n in range(5)], partition)
    async with Getone(wide) as reader:
        assert (await reader.consumer.getone(place(reader))).value == b"0-0"
        await reader.pause(0)
        assert await reader.values(2) == [b"1-0", b"1-1"]
        assert await reader.position() == 1
        await reader.resume(0)
        await reader.pause(1)
        assert await reader.values(2) == [b"0-1", b"0-2"]
        await reader.seek(1)
        assert await reader.values(4) == [b"0-1", b"0-2", b"0-3", b"0-4"]
        safe = reader.consumer.safe_offsets()
        assert safe == {place(reader): OffsetAndMetadata(5, ""), place(reader, 1): OffsetAndMetadata(2, "")}


# --- positions and messages -------------------------------------------------------------------------------------------


async def test_iteration(source: Source) -> None:
    """`async for` gives what `getone` gives, and commits end behind it; `stop` ends a call that waits."""
    values = [b"1", LARGE, b"3", None, LARGE * 2]
    await source.produce(values)
    found = []
    async with Getmany(source, REFERENCES) as reader:
        async for record in reader.consumer:
            found.append(record.value)
            if len(found) == len(values):
                break
        await reader.commit()
        call = asyncio.create_task(reader.consumer.getone())
        await asyncio.sleep(0)
    with pytest.raises(ConsumerStoppedError):
        await asyncio.wait_for(call, _LONG_S)
    assert found == values
    assert await reader.committed() == {0: 5}


async def test_a_position_that_is_out_of_range(source: Source) -> None:
    """What was fetched before the log was cut is delivered, and then what is left of the log; none is skipped."""
    ten: list[Any] = [(0, b"k", b"%d" % n, [], 0) for n in range(10)]
    await asyncio.to_thread(send, source.broker, source.topic, ten)
    made = Assembling(source)
    made.options["value_deserializer"] = bytes  # without it, what was fetched would stay with aiokafka
    async with made as reader:
        assert [(await reader.consumer.getone()).offset for _ in range(3)] == [0, 1, 2]
        await reader.pause(0)
        await asyncio.to_thread(send, source.broker, source.topic, ten)
        await delete_up_to(source.broker, source.topic, 15)
        await reader.resume(0)
        async with asyncio.timeout(_LONG_S):
            while await AIOKafkaConsumer.position(reader.consumer, place(reader)) != 15:  # it was reset
                await loop_turns()
        assert await reader.position() == 3
        assert [each.offset for each in await reader.read(12)] == [*range(3, 10), *range(15, 20)]
        await reader.consumer.seek_to_beginning(place(reader))
        assert [each.offset for each in await reader.read()] == [15]


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
    """A message has the id that its producer was given; a seek to it gives the message, and so does its last offset.

    A deserializer of aiokafka sees whole values.
    """
    source, found = make_source(**{"max.message.bytes": 20_000}), list[Discarded]()
    sent = [value_of(100_000), b"small", value_of(50_000, 1)]
    async with ChunkingProducer({"bootstrap.servers": source.broker}) as producer:
        results = [await producer.send_and_wait(source.topic, value) for value in sent]
    made = Assembling(source, {}, found.append)
    made.options["value_deserializer"] = lambda value: value[::-1]
    async with made as reader:
        records = [await one(reader.consumer) for _ in sent]
        assert [each.value[::-1] for each in records] == sent
        assert [isinstance(each, AssembledRecord) for each in records] == [True, False, True]
        ids = [getattr(each, "chunk_message_id", None) for each in records]
        assert ids == [getattr(each, "chunk_message_id", None) for each in results]
        assert ids[2] is not None
        for target in (ids[2], ids[2].last):
            reader.consumer.seek(place(reader), target)
            assert (await one(reader.consumer)).chunk_message_id == ids[2]
        await reader.consumer.seek_to_beginning(place(reader))
        assert (await one(reader.consumer)).chunk_message_id == ids[0]
        assert reader.consumer.stats()["chunkedMessageRate"][source.topic] > 0
    assert found == []
    assert issubclass(AssembledRecord, ConsumerRecord)


async def test_the_example_of_chunks(source: Source, versitygw: S3Server) -> None:
    """The script sends, reads and goes back."""
    printed = await asyncio.to_thread(run_example, "chunks_client.py", source.broker, source.topic, versitygw)
    assert printed == "sent as 0-4\nread as 0-4, 5,000,000 bytes, {'kind': b'x-ray'}\nand again\n"


class HeldStore(GatedStore):
    """One whose uploads wait."""

    def publish(self, topic: str, data: bytes) -> str:
        """See `PayloadStore.publish`."""
        with self._counting:
            GatedStore.begun += 1
        assert self.open.wait(_LONG_S)
        return super().publish(topic, data)


async def test_sends_that_wait_when_the_producer_stops(source: Source, gate: Gate) -> None:
    """None is cancelled, which a TaskGroup would take for the application's own doing; nor is a send afterwards."""
    gate.open.clear()
    producer = SerializingProducer(producing(source.broker, {"large.message.payload.store.class": HeldStore}))
    await producer.start()
    sends = [asyncio.create_task(producer.send(source.topic, LARGE)) for _ in range(16)]
    await becomes(lambda: gate.begun == 8, "every thread is taken")
    stopping = asyncio.create_task(producer.stop())
    await loop_turns()
    gate.open.set()
    await stopping
    errors = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(error) for error in errors] == 8 * [ProducerClosed] + 8 * [SerializationError]
    assert "the client was closed before the store was called" in str(errors[-1])
    with pytest.raises(ProducerClosed):
        await producer.send_and_wait(source.topic, b"small")
