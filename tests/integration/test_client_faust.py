"""What only Faust has: a real worker with our schema, its agents, tables and wrappers; models, headers, callbacks."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import faust
import pytest
from faust.types.tuples import Message

from app.chunks import ChunkMessageId
from app.chunks.producer import ChunkedRecordMetadata
from app.serializers.faust import LargeMessageSchema
from tests.faults.proxy import Down, FaultProxy, Ok
from tests.forks import fork
from tests.integration.chunk_records import pieces, plain, value_of
from tests.integration.client_config import LARGE, THRESHOLD, on_s3, through
from tests.integration.client_stores import delete_payloads, example_environ
from tests.integration.client_writers import Faust, MakeLog
from tests.integration.faust_process import NO_STORE, STARTS_S, FaustProcess, arrived, digest, produce, write
from tests.integration.topics import committed, read_all
from tests.integration.topics import send as send_records
from tests.integration.way import MakeTopic
from tests.integration.worker_process import until
from tests.s3_server import S3Server
from transforms.errors import SerializationError
from transforms.wrapper import OWN_KEYS, MessageWrapper

_ROOT = Path(__file__).parents[2]
BIG = b"z" * 3_000_000


class Order(faust.Record):
    """What an application works with."""

    number: int
    scan: str


# --- round trip -------------------------------------------------------------------------------------------------------


def test_a_worker_reads_and_writes_large_values(
    broker: str, make_topic: MakeTopic, versitygw: S3Server, tmp_path: Path
) -> None:
    """Small, large and null values and large keys reach the agent whole, in order; what it sends is offloaded anew."""
    values = [b"small", LARGE, None, b"y" * 2_000_000, b""]
    topics = [(make_topic(), make_topic()) for _ in range(2)]
    with ExitStack() as stack:
        workers = []
        for plain_topic, (topic, sent) in enumerate(topics):
            produce(broker, on_s3(versitygw), topic, values, key=b"k" * 2_000)
            # If Faust makes it itself, it may not yet see a partition of it, and then refuses each change of the table.
            make_topic(named=f"{topic}-faust-counts-changelog", **{"cleanup.policy": "compact"})
            more = {"to": sent, "keys": True, "table": True, "plain_topic": bool(plain_topic)}
            folder = tmp_path / str(plain_topic)
            workers.append(stack.enter_context(FaustProcess(folder, broker, topic, on_s3(versitygw), **more)))
        for worker, (topic, sent) in zip(workers, topics, strict=True):
            check_round_trip(broker, worker, topic, sent, values)


def check_round_trip(broker: str, worker: FaustProcess, topic: str, sent: str, values: list[bytes | None]) -> None:
    """What a worker has got of a topic, sent to another and counted is what was written."""
    events = worker.events(len(values))
    records = arrived(broker, sent, len(values))
    until(lambda: committed(broker, f"{topic}-faust", topic) == {0: len(values)}, "all is committed", STARTS_S)
    assert [event["value"] for event in events] == [digest(value) for value in values]
    assert {event["key"] for event in events} == {"k" * 2_000}
    assert [event["headers"] for event in events] == [{"a": "1", "b": "2"}] * len(values)
    assert "large-message" in events[1]["raw"]
    for value, record in zip(values, records, strict=True):
        large = value is not None and len(value) > THRESHOLD
        assert (record.value or b"").startswith(b"s3://payloads/clients/") == large
        assert record.headers[:2] == (("a", b"1"), ("b", b"2"))
        assert [name for name, _ in record.headers].count("large-message") == large
        assert (record.key or b"").startswith(b"s3://payloads/clients/")
    changelog = read_all(broker, f"{topic}-faust-counts-changelog")[0]
    assert changelog[-1].value == b"5"
    assert not changelog[-1].headers


# --- failures ---------------------------------------------------------------------------------------------------------


def test_what_stops_the_worker(broker: str, make_topic: MakeTopic, versitygw: S3Server, tmp_path: Path) -> None:
    """Where Faust would commit it and go on, the worker ends, says which record it was and why, and commits no more."""
    topic = make_topic()
    produce(broker, on_s3(versitygw), topic, [b"1", LARGE, b"3"])
    # A schema for chunks alone does not ask `on_failure` for each reference.
    with FaustProcess(tmp_path, broker, topic, NO_STORE, on_failure=True) as worker:
        assert worker.ends() != 0
    log = worker.log.read_text()
    assert f"topic {topic} partition 0 offset 1 cannot be deserialized" in log
    assert "large.message.payload.store.class is missing" in log
    assert [event["offset"] for event in worker.lines()] == [0]
    assert committed(broker, f"{topic}-faust", topic)[0] <= 1


def test_a_store_that_is_down(
    broker: str, make_topic: MakeTopic, proxy: FaultProxy, versitygw: S3Server, tmp_path: Path
) -> None:
    """Nothing is passed over, fails or expires: the record and what is behind it wait; `on_failure` is not asked."""
    topic, chunks = make_topic(), pieces("slow", 3_000, 1)
    times = {"large.message.store.timeout.ms": 1_200, "s3.connection.timeout.ms": 100, "s3.read.timeout.ms": 100}
    down = {**through(proxy, versitygw), **times, "expire.time.of.incomplete.chunked.message.ms": 700}
    write(broker, topic, [plain(b"1"), chunks[0]])
    produce(broker, through(proxy, versitygw), topic, [LARGE, b"3"])
    write(broker, topic, chunks[1:])
    proxy.switch(Down())
    with FaustProcess(tmp_path / "ends", broker, topic, down) as worker:
        worker.says("it is retried until it succeeds")
        worker.process.send_signal(signal.SIGTERM)
        assert worker.ends() == 0
    more = {"on_failure": True, "on_discarded": "write", "max_poll_s": 1.2}
    with FaustProcess(tmp_path / "waits", broker, topic, down, **more) as worker:
        worker.says("it is retried until it succeeds")
        time.sleep(2.0)  # more than the interval, and than the time of expiry
        assert [event["offset"] for event in worker.lines()] in ([], [0])
        assert committed(broker, f"{topic}-faust", topic).get(0, 0) <= 1
        proxy.switch(Ok())
        until(lambda: committed(broker, f"{topic}-faust", topic) == {0: 8}, "all is committed", STARTS_S)
    found = [event["value"] for event in worker.lines()]
    assert found[-3:] == [digest(LARGE), digest(b"3"), digest(value_of(3_000, 1))]
    assert found[:-3] in ([], [digest(b"1")])  # the worker before may have committed it
    assert "LeaveGroup" not in worker.log.read_text()


def test_the_example_runs(broker: str, make_topic: MakeTopic, versitygw: S3Server, tmp_path: Path) -> None:
    """docs/examples/faust_app.py sends and reads a large value, and passes over one that is gone."""
    topic = make_topic()
    order = json.dumps({"id": 0, "scan": "y" * 5_000}).encode()
    produce(broker, {**on_s3(versitygw), "s3.prefix": ""}, topic, [order])
    delete_payloads(versitygw, broker, topic, 0)
    own = {"ORDERS_TOPIC": topic, "FAUST_DATADIR": str(tmp_path / "faust")}
    command = [sys.executable, str(_ROOT / "docs" / "examples" / "faust_app.py"), "worker", "--without-web"]
    log = tmp_path / "example.log"
    with log.open("wb") as file:
        process = fork(command, environ={**example_environ(broker, versitygw), **own}, stdout=file, stderr=file)
    try:
        until(lambda: "5,000,000 characters" in log.read_text(), "the large value is read", STARTS_S)
    finally:
        process.kill()
        process.wait()
    out = log.read_text()
    assert "offset 0: there is no payload at" in out
    assert "offset 0: lost" in out


# --- wrappers, and what an agent sends --------------------------------------------------------------------------------


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
        worker.says("send the record with a key")
        until(lambda: [each.value for each in asyncio.run(sent.written())] == [BIG], "the value is there", 30)


def test_chunks_on_commit(broker: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """With `stream_publish_on_commit` Faust keeps no order, so a value in chunks is refused, and the agent hears it."""
    topic, sent = make_topic(**{"max.message.bytes": 4_000_000}), make_topic()
    send_records(broker, topic, [(0, b"k", BIG, [], 0)])
    with FaustProcess(tmp_path, broker, topic, NO_STORE, to=sent, on_commit=True) as worker:
        worker.says("with stream_publish_on_commit Faust does not preserve the order")
    assert read_all(broker, sent) == {}


# --- topics that write without a worker -------------------------------------------------------------------------------


async def test_a_message_of_chunks_is_one_for_the_sender(make_log: MakeLog) -> None:
    """The callback is called once for each value, and the result has the id of the message."""
    log = make_log()
    reported: list[Any] = []
    async with Faust(log.chunking()) as producer:
        for value in (value_of(50_000), b"small"):
            result = await (await producer.channel(log.topic).send(value=value, callback=reported.append))
            assert (result.topic, isinstance(result, ChunkedRecordMetadata)) == (log.topic, value != b"small")
            assert getattr(result, "chunk_message_id", ChunkMessageId(0, 2)) == ChunkMessageId(0, 2)
    assert len(reported) == 2


async def test_refused(make_log: MakeLog) -> None:
    """No wrapped null goes to a compacted topic; nothing that needs chunks goes as one record."""
    log = make_log(**{"cleanup.policy": "compact"})
    async with Faust(log.chunking()) as producer:
        with pytest.raises(SerializationError, match=r"which requires `await topic\.send"):
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
