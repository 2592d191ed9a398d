"""What every consumer promises of whole records: references are restored, and no failure loses or passes a record."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from app.chunks import Discarded
from app.serializers import LargeMessageDeserializer, LargeMessageSerializer, WrapperDeserializer
from app.serializers.aiokafka import SerializingProducer
from tests.integration.aiokafka_records import MakeSource, Source, becomes
from tests.integration.chunk_records import pieces, plain, value_of
from tests.integration.client_config import (
    LARGE,
    MIXED,
    ON_GATE,
    REFERENCES,
    THRESHOLD,
    Config,
    on_s3,
    producing,
    to_json,
)
from tests.integration.client_readers import BATCHES, CLIENTS, READERS, Client, Given, Reader
from tests.integration.client_stores import Gate
from tests.integration.topics import read_all
from tests.s3_server import S3Server
from transforms.chunk import Chunking
from transforms.errors import PayloadNotFoundError, PayloadStoreError, RecordDeserializationError
from transforms.record import Record
from transforms.wrapper import MessageWrapper

every = pytest.mark.parametrize("client", READERS, ids=lambda each: each.__name__)
one_each = pytest.mark.parametrize("client", CLIENTS, ids=lambda each: each.__name__)


def stages(*behind: Any) -> Config:
    """The configuration of a consumer with stages behind the deserializer."""
    return {"value.deserializers": [LargeMessageDeserializer, *behind], **ON_GATE}


async def failure(reader: Reader) -> RecordDeserializationError:
    """The error of the next record, which is that of the next call."""
    with pytest.raises(RecordDeserializationError) as caught:
        await reader.read()
    return caught.value


# --- what comes -------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
@every
async def test_whatever_a_topic_holds(source: Source, versitygw: S3Server, client: Client) -> None:
    """Plain values, references and chunks come whole, in order, with their keys, nulls, headers and timestamps."""
    headers = [("a", b"1"), ("b", None), ("a", b"2")]
    there: Config = {
        "value.serializer": None,
        "value.serializers": [to_json, LargeMessageSerializer],
        "key.serializers": [str.encode, LargeMessageSerializer],
    }
    async with SerializingProducer(producing(source.broker, on_s3(versitygw), **there)) as producer:
        for value, key in MIXED:
            await producer.send_and_wait(source.topic, value, key, timestamp_ms=1_700_000_000_000, headers=headers)
    message = {"n": 6, "x": "x" * 2_000}
    chunks = list(Chunking(1_000).split(Record(b"chunks", to_json(message), headers, 1_700_000_000_000), "u"))
    await source.write([*chunks, Record(b"null", None, headers, 1_700_000_000_000)])
    back: Config = {
        "value.deserializers": [LargeMessageDeserializer, json.loads],
        "key.deserializers": [LargeMessageDeserializer, bytes.decode],
    }
    expected = [*MIXED, (message, "chunks"), (None, "null")]
    async with client(source, {**on_s3(versitygw), **back}) as reader:
        found = await reader.read(len(expected))
        assert [(each.value, each.key) for each in found] == expected
        last = len(MIXED) + len(chunks) - 1
        assert [each.offset for each in found] == [*range(len(MIXED)), last, last + 1]
        assert {each.timestamp for each in found} == {1_700_000_000_000}
        assert [each.headers for each in found] == [headers] * len(expected)
        assert await reader.position() == last + 2
        assert reader.consumer.counts.assembled == 1
        assert await reader.poll(0.1) == []


@one_each
async def test_what_a_value_is_in(make_source: MakeSource, client: Client) -> None:
    """Chunks come off first, then what is in them: a wrapper, or a reference, also if memory did not hold them."""
    source = make_source()
    await source.produce([LARGE])
    (reference,) = (await asyncio.to_thread(read_all, source.broker, source.topic))[0]
    of_reference = list(Chunking(460).split(Record(b"k", reference.value, reference.headers), "u"))
    assert len(of_reference) > 1
    first, *rest = pieces("first", 3_000, 1)
    await source.write([first, *of_reference, *rest])
    async with client(source, {**REFERENCES, "max.pending.chunked.message": 1}) as reader:
        assert await reader.values(3) == [LARGE, LARGE, value_of(3_000, 1)]
        assert reader.consumer.counts.set_aside == 1
    source = make_source()
    wrapper = MessageWrapper({1_000_001: b"jpeg"}, value_of(5_000))
    await source.write(list(Chunking(2_000).split(Record(b"k", wrapper.serialize()), "u")))
    async with client(source, {"value.deserializer": WrapperDeserializer}) as reader:
        assert await reader.values() == [wrapper]


@one_each
async def test_aborted_transactions(source: Source, gate: Gate, client: Client) -> None:
    """With `read_committed`, nothing of an aborted transaction is given or downloaded."""
    async with SerializingProducer(producing(source.broker, ON_GATE, **{"transactional.id": source.topic})) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(source.topic, LARGE + b"aborted")
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send(source.topic, LARGE + b"committed")
    async with client(source, {**REFERENCES, "isolation.level": "read_committed"}) as reader:
        assert await reader.values() == [LARGE + b"committed"]
        assert await reader.poll(0.1) == []
        assert reader.consumer.counts.discarded == {}
    assert gate.begun == 1


# --- downloads --------------------------------------------------------------------------------------------------------


@every
async def test_downloads_of_the_next_records_are_under_way(source: Source, gate: Gate, client: Client) -> None:
    """Up to eight at a time; what is downloaded comes in order, and a failure in its place."""
    values: list[bytes | None] = [b"first", *(LARGE + b"%d" % number for number in range(9))]
    await source.produce(values)
    del gate.payloads[[*gate.payloads][4]]
    async with client(source, REFERENCES) as reader:
        assert await reader.values() == [b"first"]
        gate.open.clear()
        reading = asyncio.create_task(reader.poll(20.0, 9 if reader.batches else 1))
        await becomes(lambda: gate.begun == 8, "eight downloads are under way")
        gate.open.set()
        found = await reading
        found += await reader.read(4 - len(found)) if len(found) < 4 else []
        assert [each.value for each in found] == values[1:5]
        assert (await failure(reader)).offset == 5
        await reader.seek(6)
        assert await reader.values(4) == values[6:]


@pytest.mark.parametrize("client", BATCHES, ids=lambda each: each.__name__)
async def test_a_call_is_bounded_in_bytes(wide: Source, gate: Gate, client: Client) -> None:
    """It downloads no more than `fetch.max.bytes`; the next calls give the rest."""
    found = list[Given]()
    for partition in (0, 1):
        await wide.produce([b"%d" % number + LARGE for number in range(6)], partition)
    async with client(wide, {**REFERENCES, **dict.fromkeys(client.bounds, "11000")}) as reader:
        while len(found) < 12:
            batch = await reader.poll(1.0, 12 - len(found))
            assert len(batch) <= 2
            found += batch
    for partition in (0, 1):
        assert [each.offset for each in found if each.partition == partition] == list(range(6))
    assert gate.begun == 12


# --- failures ---------------------------------------------------------------------------------------------------------


@every
async def test_a_missing_payload_is_reported_and_passed(source: Source, gate: Gate, client: Client) -> None:
    """What is before it is given first; the error has its place, and comes again; a seek goes on behind it."""
    slow = pieces("slow", 2_000, 3)
    await source.write(slow[:1])
    await source.produce([b"1", LARGE, LARGE, b"4"])
    await source.write(slow[1:])
    gate.payloads.popitem()
    async with client(source, REFERENCES) as reader:
        found: list[Given] = []
        while len(found) < 2:
            found += await reader.poll(1.0)
        assert [each.value for each in found] == [b"1", LARGE]
        for _ in range(2):
            error = await failure(reader)
            assert (error.topic, error.partition, error.offset, error.retriable) == (source.topic, 0, 3, False)
            assert f"topic {source.topic} partition 0 offset 3 " in str(error)
            assert isinstance(error.__cause__, PayloadNotFoundError)
            assert await reader.position() == 3 + reader.passes
            await reader.commit()
            assert await reader.committed() == {0: 0}
            if reader.passes:
                await reader.seek(3)
        await reader.seek(4)
        assert await reader.values(2) == [b"4", value_of(2_000, 3)]


@every
async def test_a_store_that_is_down_comes_back(source: Source, gate: Gate, client: Client) -> None:
    """The error says that another try may do, and it does; nothing is lost or comes twice."""
    await source.produce([LARGE, b"2", LARGE])
    gate.fails = PayloadStoreError("it is down", retriable=True)
    async with client(source, REFERENCES) as reader:
        for _ in range(2):
            error = await failure(reader)
            assert (error.offset, error.retriable) == (0, True)
            if reader.passes:  # and so do commits
                await reader.seek(0)
            else:
                await reader.commit()
                assert await reader.committed() == {0: 0}
        gate.fails = None
        found: list[Given] = []
        while len(found) < 3:
            try:
                found += await reader.read()
            except RecordDeserializationError as again:  # of a download that was begun ahead
                if reader.passes:
                    await reader.seek(again.offset)
        assert [each.value for each in found] == [LARGE, b"2", LARGE]


@every
async def test_a_failure_does_not_hide_behind_other_partitions(wide: Source, gate: Gate, client: Client) -> None:
    """Where another partition delivers, the failure is raised all the same, and no more once it is passed over."""
    await wide.produce([LARGE, b"behind"], 0)
    await wide.produce([b"%d" % number for number in range(3)], 1)
    gate.payloads.clear()
    found: list[bytes] = []
    failed = 0
    async with client(wide, REFERENCES) as reader:
        while len(found) < 3 or not failed:
            try:
                found += [each.value for each in await reader.poll(1.0, 2)]
            except RecordDeserializationError as error:
                failed += 1
                await reader.seek(error.offset, error.partition)
        assert found == [b"0", b"1", b"2"]
        await reader.seek(1)
        assert await reader.values() == [b"behind"]


@every
async def test_a_stage_that_fails_keeps_the_place(source: Source, client: Client) -> None:
    """What the application's own stage refuses is tried again; a message of chunks is no different."""
    chunks = pieces("u", 3_000, 1)
    last = len(chunks)
    await source.write([plain(b"a"), *chunks, plain(b"end")])
    broken = True

    def picky(value: bytes) -> bytes:
        if broken and len(value) > THRESHOLD:
            raise ValueError("too long to be true")
        return value

    async with client(source, stages(picky)) as reader:
        assert await reader.values() == [b"a"]
        for _ in range(3):
            error = await failure(reader)
            assert (error.partition, error.offset) == (0, last)
            assert f"partition 0 offset {last} " in str(error)
            assert "item 2, " in str(error)
            assert isinstance(error.__cause__, ValueError)
            assert await reader.position() == last + reader.passes
            if reader.passes:
                await reader.seek(last)
        broken = False
        assert await reader.values(2) == [value_of(3_000, 1), b"end"]


@every
async def test_an_interrupt_in_a_stage(wide: Source, client: Client) -> None:
    """The next calls give all that the call had fetched, of other partitions too; so does the next consumer."""
    for partition in (0, 1):
        await wide.produce([b"1", LARGE, b"3"], partition)
    interrupts: list[BaseException] = []

    def slow(value: bytes) -> bytes:
        if interrupts and len(value) > THRESHOLD:
            raise interrupts.pop()
        return value

    for restarts in (False, True):
        given: list[tuple[int, int]] = []
        interrupts.append(client.interrupt("now"))
        while len(given) < 6:
            config = {"group.id": f"{wide.topic}-{restarts}", "enable.auto.commit": True}
            async with client(wide, {**stages(slow), **config}) as reader:
                while len(given) < 6:
                    try:
                        given += [(each.partition, each.offset) for each in await reader.read()]
                    except client.interrupt:
                        await reader.commit()
                        if restarts:
                            break
        assert interrupts == []
        assert sorted(given) == [(partition, offset) for partition in (0, 1) for offset in range(3)]


@one_each
async def test_key_and_value_are_references(source: Source, tmp_path: Path, client: Client) -> None:
    """An interrupt, or an error, behind the restored key leaves both as they are: the next try restores both."""
    key = b"k" * 3_000
    store = {"large.message.payload.store.class": "filesystem", "filesystem.root": str(tmp_path)}
    config = {**producing(source.broker, store), "key.serializer": LargeMessageSerializer}
    async with SerializingProducer(config) as producer:
        await producer.send_and_wait(source.topic, LARGE, key, headers=[("a", b"1")])
    errors: list[BaseException] = [ValueError("no such value"), client.interrupt("now")]

    def failing(data: bytes) -> bytes:
        if errors:
            raise errors.pop()
        return data

    more = {"key.deserializer": LargeMessageDeserializer, **store}
    async with client(source, {**stages(failing), **more}) as reader:
        with pytest.raises(client.interrupt):
            await reader.read()
        assert isinstance((await failure(reader)).__cause__, ValueError)
        await reader.seek(0)
        (found,) = await reader.read()
    assert (found.key, found.value, found.headers) == (key, LARGE, [("a", b"1")])


async def test_time_counts_while_a_partition_is_read(make_source: MakeSource) -> None:
    """A message does not expire while its partition is paused, nor while the application makes no call."""

    def never(message: Discarded) -> None:
        raise AssertionError(message.reason)

    async def check(client: Client) -> None:
        source, chunks = make_source(), pieces("u", 2_000)
        await source.write(chunks[:1])
        async with client(source, {"expire.time.of.incomplete.chunked.message.ms": 1_500}, never) as reader:
            await reader.becomes(lambda: reader.consumer.stats()["pendingChunkedMessages"] == 1, "it has begun")
            await reader.pause(0)
            await source.write(chunks[1:])
            assert await reader.poll(1.6) == []
            await asyncio.sleep(1.6)
            await reader.resume(0)
            assert await reader.values() == [value_of(2_000)]

    await asyncio.gather(*map(check, CLIENTS))
