"""What a Faust app writes by `large.message.strategy`, and the wrappers that it reads and writes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.chunks.producer import ChunkedRecordMetadata
from app.serializers.faust import LargeMessageSchema
from tests.integration.client_config import LARGE, Config, on_s3
from tests.integration.client_stores import CuttableWay
from tests.integration.limits import alter_configs
from tests.integration.test_client_faust import FaustProcess, arrived, digest, produce, sending
from tests.integration.topics import committed, read_all
from tests.integration.topics import send as send_records
from tests.integration.way import MakeTopic
from tests.integration.worker_process import until
from tests.s3_server import S3Server
from transforms.chunk import is_chunk
from transforms.errors import ChunkError, ConfigurationError, SerializationError
from transforms.wrapper import OWN_KEYS, MessageWrapper

CHUNKS: Config = {"large.message.strategy": "chunk"}
BIG = b"z" * 3_000_000


def raw(app: Any, name: str, schema: LargeMessageSchema) -> Any:
    """A topic of bytes."""
    return app.topic(name, key_serializer="raw", value_serializer="raw", schema=schema)


async def test_chunks(broker: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """Without a store, what the topic would refuse goes in chunks to one partition, and a worker gets it whole."""
    topic = make_topic(3)
    schema = LargeMessageSchema(CHUNKS)
    told: list[Any] = []
    async with sending(broker) as app:
        orders = raw(app, topic, schema)
        values = [BIG, b"small", b"", b"y" * 1_500_000]  # the first asks for a topic that nobody knows yet
        for value in values:
            result = await (await orders.send(value=value, headers=[("a", b"1")], callback=told.append))
            assert isinstance(result, ChunkedRecordMetadata) == (len(value) > 1_000_000)
        assert (result.topic, result.offset - result.chunk_message_id.first) == (topic, 1)
        await (await orders.send(key=b"k", value=BIG, partition=2))
    schema.close()
    assert len(told) == len(values)
    for records in (await asyncio.to_thread(read_all, broker, topic)).values():
        # Each message is whole in its partition.
        counts = [len(record.value or b"") for record in records if is_chunk(record.headers)]
        assert sum(counts) % 500_000 == 0
    with FaustProcess(tmp_path, broker, topic, CHUNKS) as worker:
        events = worker.events(5)
    assert {event["value"] for event in events} == {digest(value) for value in values}
    assert [event["headers"] for event in events if event["key"] is None] == [{"a": "1"}] * 4


async def test_auto(broker: str, make_topic: MakeTopic, cuttable: CuttableWay) -> None:
    """With `auto`, a value goes to the store; while the store is down, it goes in chunks."""
    topic = make_topic()
    schema = LargeMessageSchema({**on_s3(cuttable.server), "large.message.strategy": "auto"})
    async with sending(broker) as app:
        orders = raw(app, topic, schema)
        await (await orders.send(value=BIG))
        cuttable.cut()
        await (await orders.send(value=BIG))
    schema.close()
    reference, *chunks = (await asyncio.to_thread(read_all, broker, topic))[0]
    assert (reference.value or b"").startswith(b"s3://")
    assert len(chunks) > 2
    assert all(is_chunk(record.headers) for record in chunks)


async def test_topic_takes_less(broker: str, make_topic: MakeTopic, versitygw: S3Server) -> None:
    """What the topic takes is asked, and asked again when it refuses a record: nothing else is refused."""
    topic = make_topic(**{"max.message.bytes": 500_000})
    schema = LargeMessageSchema({**on_s3(versitygw), "large.message.threshold.bytes": 900_000})
    async with sending(broker) as app:
        orders = raw(app, topic, schema)
        for size in (400_000, 600_000):
            await (await orders.send(value=b"x" * size))
        await alter_configs(broker, topic, {"max.message.bytes": "100000"})
        with pytest.raises(Exception, match="MessageSizeTooLarge"):
            await (await orders.send(value=b"x" * 400_000))
        await (await orders.send(value=b"x" * 400_000))
    schema.close()
    found = (await asyncio.to_thread(read_all, broker, topic))[0]
    assert [(record.value or b"").startswith(b"s3://") for record in found] == [False, True, True]


async def test_refused(broker: str, make_topic: MakeTopic) -> None:
    """No chunk and no wrapped null goes to a compacted topic; nothing that needs chunks goes as one record."""
    compacted, plain = make_topic(**{"cleanup.policy": "compact"}), make_topic()
    schema, wrapped = LargeMessageSchema(CHUNKS), LargeMessageSchema(CHUNKS, wrapped=True)
    async with sending(broker) as app:
        with pytest.raises(ChunkError, match=r"cleanup\.policy=compact"):
            await raw(app, compacted, schema).send(key=b"k", value=BIG)
        with pytest.raises(SerializationError, match="found a wrapper without a value"):
            await raw(app, compacted, wrapped).send(key=b"k", value=None)
        with pytest.raises(SerializationError, match=r"which only `await topic\.send"):
            raw(app, plain, LargeMessageSchema(CHUNKS)).send_soon(value=BIG)
        with pytest.raises(ConfigurationError, match=r"store\.class: is missing; large\.message\.strategy"):
            await raw(app, plain, LargeMessageSchema({"large.message.strategy": "auto"})).send(value=b"1")
        with pytest.raises(ConfigurationError, match=r"did you mean chunk\.max\.bytes"):
            await raw(app, plain, LargeMessageSchema({**CHUNKS, "chunk.max.byte": 1_000})).send(value=b"1")
    assert await asyncio.to_thread(read_all, broker, compacted) == {}


def test_a_reference_without_a_store_stops_the_worker(
    broker: str, make_topic: MakeTopic, versitygw: S3Server, tmp_path: Path
) -> None:
    """A schema for chunks alone gives no reference to an agent: the worker ends, and says which key is missing."""
    topic = make_topic()
    produce(broker, on_s3(versitygw), topic, [b"1", LARGE])
    with FaustProcess(tmp_path, broker, topic, CHUNKS, on_failure=True) as worker:
        assert worker.ends() != 0
        assert [event["value"] for event in worker.lines()] == [digest(b"1")]
    assert "large.message.payload.store.class is missing" in worker.log.read_text()
    assert committed(broker, f"{topic}-faust", topic)[0] <= 1


def test_wrapped(broker: str, make_topic: MakeTopic, versitygw: S3Server, tmp_path: Path) -> None:
    """An agent gets what is in a wrapper, and what it sends is wrapped; small, offloaded before or after, and null."""
    topic, sent = make_topic(), make_topic()
    store = {**on_s3(versitygw), "wrapper.header.3000001": "trace", "wrap.on.unmapped.header": "drop"}
    # As a client writes it: the payload is the wrapper. The header is of the record.
    inside = MessageWrapper({3_000_001: b"t"}, LARGE).serialize()
    produce(broker, on_s3(versitygw), topic, [inside])
    # As the worker writes it: the wrapper has the reference.
    produce(broker, on_s3(versitygw), sent, [LARGE])
    reference = read_all(broker, sent)[0][0]
    ids = {
        key: dict(reference.headers)[name] or b"" for key, name in OWN_KEYS.items() if name in dict(reference.headers)
    }
    outside = MessageWrapper({**ids, 3_000_001: b"u"}, reference.value).serialize()
    small = MessageWrapper({3_000_001: b"v"}, b"small").serialize()
    null = MessageWrapper({}, None).serialize()
    for value in (outside, small, null):
        send_records(broker, topic, [(0, b"k", value, [], 0)])
    with FaustProcess(tmp_path, broker, topic, store, to=sent, wrapped=True) as worker:
        events = worker.events(4)
        records = arrived(broker, sent, 5)[1:]
    assert [event["value"] for event in events] == [digest(LARGE), digest(LARGE), digest(b"small"), None]
    assert [event["headers"].get("trace") for event in events] == ["t", "u", "v", None]
    assert MessageWrapper.parse(records[2].value or b"") == MessageWrapper({3_000_001: b"v"}, b"small")
    assert records[2].headers == ()


def test_a_plain_value_where_wrappers_are(broker: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """`on_failure` gets a value that is no wrapper; with `unwrap.on.plain.value` = `pass` the agent does."""
    topic = make_topic()
    send_records(broker, topic, [(0, b"k", b"plain", [("a", b"1")], 0)])
    with FaustProcess(tmp_path / "fail", broker, topic, CHUNKS, wrapped=True, on_failure=True) as worker:
        assert worker.events(1)[0]["value"] == {"failed": "MalformedWrapperError", "offset": 0, "key": "b'k'"}
    passes = {**CHUNKS, "unwrap.on.plain.value": "pass"}
    other = make_topic()
    send_records(broker, other, [(0, b"k", b"plain", [("a", b"1")], 0)])
    with FaustProcess(tmp_path / "pass", broker, other, passes, wrapped=True) as worker:
        (event,) = worker.events(1)
    assert (event["value"], event["headers"]) == (digest(b"plain"), {"a": "1"})


def lengths(broker: str, topic: str) -> list[int]:
    """The bytes of all values of each partition that has any."""
    return [sum(len(record.value or b"") for record in records) for records in read_all(broker, topic).values()]


def test_chunks_with_exactly_once(broker: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """An agent's chunks go to the partition of their key; without a key they are refused, as Faust would strew them."""
    topic, sent = make_topic(**{"max.message.bytes": 4_000_000}), make_topic(3)
    send_records(broker, topic, [(0, b"k", BIG, [], 0), (0, None, BIG, [], 0)])
    with FaustProcess(tmp_path, broker, topic, CHUNKS, to=sent, transactions=True) as worker:
        worker.says("give the record a key")
        until(lambda: lengths(broker, sent) == [len(BIG)], "all chunks are in one partition", 30)


def test_chunks_on_commit(broker: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """With `stream_publish_on_commit` Faust keeps no order, so a value in chunks is refused, and the agent hears it."""
    topic, sent = make_topic(**{"max.message.bytes": 4_000_000}), make_topic()
    send_records(broker, topic, [(0, b"k", BIG, [], 0)])
    with FaustProcess(tmp_path, broker, topic, CHUNKS, to=sent, on_commit=True) as worker:
        worker.says("with stream_publish_on_commit Faust keeps no order")
    assert read_all(broker, sent) == {}
