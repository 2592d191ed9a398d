"""What only Faust's topics have when they write: models, headers, callbacks, wrappers, and a worker's agents."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import faust
import pytest
from faust.types.tuples import Message

from app.chunks import ChunkMessageId
from app.chunks.producer import ChunkedRecordMetadata
from app.serializers.faust import LargeMessageSchema
from tests.integration.chunk_records import value_of
from tests.integration.client_config import LARGE, on_s3
from tests.integration.client_writers import Faust, MakeLog
from tests.integration.faust_process import NO_STORE, FaustProcess, arrived, digest, produce
from tests.integration.topics import read_all
from tests.integration.topics import send as send_records
from tests.integration.way import MakeTopic
from tests.integration.worker_process import until
from tests.s3_server import S3Server
from transforms.errors import SerializationError
from transforms.wrapper import OWN_KEYS, MessageWrapper

BIG = b"z" * 3_000_000


class Order(faust.Record):
    """What an application works with."""

    number: int
    scan: str


async def test_a_message_of_chunks_is_one_for_the_sender(make_log: MakeLog) -> None:
    """The callback is called once for each value, and the result has the id of the message."""
    log = make_log()
    told: list[Any] = []
    async with Faust(log.chunking()) as producer:
        for value in (value_of(50_000), b"small"):
            result = await (await producer.channel(log.topic).send(value=value, callback=told.append))
            assert (result.topic, isinstance(result, ChunkedRecordMetadata)) == (log.topic, value != b"small")
            assert getattr(result, "chunk_message_id", ChunkMessageId(0, 2)) == ChunkMessageId(0, 2)
    assert len(told) == 2


async def test_refused(make_log: MakeLog) -> None:
    """No wrapped null goes to a compacted topic; nothing that needs chunks goes as one record."""
    log = make_log(**{"cleanup.policy": "compact"})
    async with Faust(log.chunking()) as producer:
        with pytest.raises(SerializationError, match=r"which only `await topic\.send"):
            producer.channel(log.topic).send_soon(value=BIG)
        wrapped = LargeMessageSchema(NO_STORE, wrapped=True)
        with pytest.raises(SerializationError, match="found a wrapper without a value"):
            await producer.channel(log.topic, schema=wrapped, value_serializer="raw").send(key=b"k", value=None)
    assert await log.written() == []


async def test_models_and_headers_of_either_kind(make_log: MakeLog) -> None:
    """A Faust model is what is offloaded; headers may be a list, with its order and repetitions, or a dict."""
    log = make_log()
    orders = [Order(number=1, scan="x" * 5_000)] * 4 + [Order(number=2, scan="")]
    given: list[Any] = [None, [("a", b"1"), ("b", b"2"), ("a", b"3")], {"a": b"1", "b": b"2"}, (), None]
    async with Faust(log.storing()) as producer:
        channel = producer.channel(log.topic, value_type=Order, value_serializer="json")
        for order, headers in zip(orders, given, strict=True):
            await (await channel.send(key=b"k", value=order, headers=headers))
        assert given[1:3] == [[("a", b"1"), ("b", b"2"), ("a", b"3")], {"a": b"1", "b": b"2"}]
        found = await log.written()
        assert [each.form for each in found] == ["reference"] * 4 + ["plain"]
        assert [each.headers for each in found] == [[], given[1], given[1][:2], [], []]
        for order, each in zip(orders, found, strict=True):
            (record,) = each.records
            as_read: Any = record.headers
            message = Message(log.topic, 0, record.offset, 0, 0, as_read, record.key, record.value, None)
            event = await channel.decode(message, propagate=True)
            assert (event.value, event.headers) == (order, dict(each.headers))


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


def test_chunks_with_exactly_once(broker: str, make_topic: MakeTopic, make_log: MakeLog, tmp_path: Path) -> None:
    """An agent's chunks go to the partition of their key; without a key they are refused, as Faust would strew them."""
    topic, sent = make_topic(**{"max.message.bytes": 4_000_000}), make_log(3)
    send_records(broker, topic, [(0, b"k", BIG, [], 0), (0, None, BIG, [], 0)])
    with FaustProcess(tmp_path, broker, topic, NO_STORE, to=sent.topic, transactions=True) as worker:
        worker.says("give the record a key")
        until(lambda: [each.value for each in asyncio.run(sent.written())] == [BIG], "the value is there", 30)


def test_chunks_on_commit(broker: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """With `stream_publish_on_commit` Faust keeps no order, so a value in chunks is refused, and the agent hears it."""
    topic, sent = make_topic(**{"max.message.bytes": 4_000_000}), make_topic()
    send_records(broker, topic, [(0, b"k", BIG, [], 0)])
    with FaustProcess(tmp_path, broker, topic, NO_STORE, to=sent, on_commit=True) as worker:
        worker.says("with stream_publish_on_commit Faust keeps no order")
    assert read_all(broker, sent) == {}
