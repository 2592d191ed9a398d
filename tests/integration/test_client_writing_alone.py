"""What only one producer has: calls, callbacks, partitioners and errors of its client."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, OutOfOrderSequenceNumber, UnknownTopicOrPartitionError
from confluent_kafka import KafkaError as ConfluentsError
from confluent_kafka import KafkaException, Producer
from confluent_kafka.error import ValueSerializationError
from kafka.partitioner import Partitioner

from app.chunks import ChunkingProducer
from app.serializers import ConfigurationError
from app.serializers import aiokafka as by_aiokafka
from app.serializers import confluent as by_confluent
from app.serializers import kafka_python as by_kafka_python
from tests.integration.aiokafka_records import Source
from tests.integration.chunk_records import value_of
from tests.integration.client_config import LARGE, LIMIT, to_json
from tests.integration.client_readers import Assembling
from tests.integration.client_stores import GatedStore
from tests.integration.client_writers import MakeLog
from tests.integration.topics import end_offsets
from tests.integration.worker_process import until

_LONG_S = 60.0
_SMALL = 10
_SPLITS = {"batch.size": 5_000}  # or several chunks would be refused together


# --- aiokafka ---------------------------------------------------------------------------------------------------------


async def test_chunks_are_of_bytes(make_log: MakeLog) -> None:
    """A key or a value that is none, large or small, is an error that says what to do; nothing is sent."""
    log = make_log()
    async with ChunkingProducer({"bootstrap.servers": log.broker}) as producer:
        for size in (1, 50_000):
            with pytest.raises(TypeError, match=r"^value: found str, allowed are bytes; set value_serializer$"):
                await producer.send(log.topic, "x" * size)
        with pytest.raises(TypeError, match=r"^key: found int, allowed are bytes; set key_serializer$"):
            await producer.send(log.topic, value_of(50_000), 7)
        await producer.send_and_wait(log.topic, bytearray(value_of(50_000)), memoryview(b"k"))
    assert [(each.key, each.value) for each in await log.written()] == [(b"k", value_of(50_000))]


async def test_what_is_not_stored(make_log: MakeLog, gate: type[GatedStore]) -> None:
    """A batch goes out as it was made. A record without key and value, and an unknown topic, are aiokafka's errors."""
    log = make_log()
    async with by_aiokafka.SerializingProducer(log.storing(), request_timeout_ms=500) as producer:
        batch = producer.create_batch()
        batch.append(key=None, value=LARGE, timestamp=None)
        await (await producer.send_batch(batch, log.topic, partition=0))
        with pytest.raises(AssertionError, match="Need at least one"):
            await producer.send(log.topic)
        with pytest.raises(UnknownTopicOrPartitionError):
            await producer.send("not there", LARGE)  # a name that no broker creates by itself
    assert [(each.form, each.value) for each in await log.written()] == [("plain", LARGE)]
    assert not gate.payloads


async def test_concurrent_sends_when_one_is_refused(make_log: MakeLog) -> None:
    """Eight senders share a producer while the limit falls: what failed and was sent again is in the log once."""
    log, errors, turns = make_log(2), set[type[KafkaError]](), [0] * 8

    def value(sender: int, turn: int) -> bytes:
        return value_of(60_000 if (turn + sender) % 3 == 0 else 100, 10_000 * sender + turn)

    async def run(sender: int) -> None:
        while (turn := turns[sender]) < 30 or not errors:  # until the broker goes by the new limit
            if turn == 10 and sender == 0:
                await log.lower_limit(9_000)
            try:
                await producer.send_and_wait(log.topic, value(sender, turn), b"%d" % sender)
                turns[sender] += 1
            except KafkaError as error:
                errors.add(type(error))

    async with ChunkingProducer({"bootstrap.servers": log.broker}) as producer, asyncio.timeout(_LONG_S):
        await asyncio.gather(*(run(sender) for sender in range(8)))
    # The batch that is on its way when another is refused may be taken for one behind a gap.
    assert MessageSizeTooLargeError in errors <= {MessageSizeTooLargeError, OutOfOrderSequenceNumber}
    async with Assembling(Source(log.broker, log.topic), {}, lambda _: None) as reader:
        found = await reader.read(sum(turns))
        assert await reader.poll(0.3) == []
    for sender, end in enumerate(turns):
        sent = [each.value for each in found if each.key == b"%d" % sender]
        assert sent == [value(sender, turn) for turn in range(end)]


async def test_a_transaction_after_a_refused_batch(make_log: MakeLog) -> None:
    """The transaction in which a chunk was refused is to be aborted; the producer's next one is as any other."""
    log = make_log()
    async with ChunkingProducer({"bootstrap.servers": log.broker}, transactional_id=log.topic) as producer:
        async with producer.transaction():
            await producer.send_and_wait(log.topic, value_of(50_000, 1), b"k")
        await log.lower_limit(9_000)
        await producer.begin_transaction()
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(log.topic, value_of(50_000, 2), b"k")
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_and_wait(log.topic, value_of(50_000, 3), b"k")
    found = [each.value for each in await log.written("read_committed")]
    assert found == [value_of(50_000, 1), value_of(50_000, 3)]


async def test_many_senders_wait_for_their_turn(make_log: MakeLog) -> None:
    """A send waits for others as long as `request.timeout.ms` says, however many chunks go before it."""
    log, values = make_log(**{"max.message.bytes": 5_000}), [value_of(1_000_000, turn) for turn in range(8)]
    async with ChunkingProducer({"bootstrap.servers": log.broker, "request.timeout.ms": "20000"}) as producer:
        await asyncio.gather(*(producer.send_and_wait(log.topic, value, b"k") for value in values))
    assert sorted(each.value or b"" for each in await log.written()) == sorted(values)


# --- confluent-kafka --------------------------------------------------------------------------------------------------


async def test_headers_in_every_shape(make_log: MakeLog) -> None:
    """None, a list or a dict, with text too, which counts in bytes."""
    log = make_log()
    with by_confluent.SerializingProducer(log.chunking(**_SPLITS)) as producer:
        producer.produce(log.topic, b"k", b"v")
        producer.produce(log.topic, key=b"k", value=b"v", headers={"h": b"1"})
        producer.produce(log.topic, b"k", b"v" * 9_000, headers=[("h", "\u4e2d" * 6_000)])
        producer.produce(log.topic, b"k", b"v" * 900, headers={"h": "\u4e2d" * 6_400})
    found = await log.written()
    assert [each.form for each in found] == ["plain", "plain", "chunks", "chunks"]
    assert [dict(each.headers).get("h") for each in found[:2]] == [None, b"1"]
    assert [len(dict(each.headers)["h"] or b"") for each in found[2:]] == [18_000, 19_200]


def test_errors_are_confluent_kafkas(make_log: MakeLog) -> None:
    """What a stage refuses is its `ValueSerializationError`; `close` says whether all is delivered."""
    log = make_log()
    producer = by_confluent.SerializingProducer({"bootstrap.servers": log.broker, "value.serializer": to_json})
    with pytest.raises(ValueSerializationError):
        producer.produce(log.topic, value=object())
    producer.produce(log.topic, value="own")  # nothing polls for it
    assert producer.close()
    producer.close()  # may be called twice


async def test_delivery_callbacks(make_log: MakeLog) -> None:
    """That of the record, else that of the configuration, is called once for a value, plain or in chunks."""
    log = make_log()
    reported: list[tuple[Any, ...]] = []

    def note(name: str) -> Any:
        return lambda error, message: reported.append((name, error, message.offset()))

    config = log.chunking(on_delivery=note("config"), **_SPLITS)
    with by_confluent.SerializingProducer(config) as producer:
        for size in (10, 2_000, 50_000):
            producer.produce(log.topic, b"k", value_of(size))
            producer.produce(log.topic, b"k", value_of(size), on_delivery=note("record"))
    assert [(name, error) for name, error, _ in reported] == [("config", None), ("record", None)] * 3
    assert [offset for *_, offset in reported] == [0, 1, 2, 3, 6, 9]


async def test_only_errors_are_reported(make_log: MakeLog) -> None:
    """With `delivery.report.only.error`, a value in chunks is reported once if it fails, else never."""
    log = make_log()
    reported: list[Any] = []
    config = log.chunking(**{**_SPLITS, "delivery.report.only.error": True})
    with by_confluent.SerializingProducer(config) as producer:
        for seed in range(2):
            producer.produce(log.topic, b"k", value_of(50_000, seed), -1, lambda error, _: reported.append(error))
            assert producer.flush(_LONG_S) == 0
            assert [error.code() for error in reported] == [ConfluentsError.MSG_SIZE_TOO_LARGE] * seed
            await log.lower_limit(6_000)


def test_batches_that_the_topic_would_refuse(make_log: MakeLog) -> None:
    """librdkafka sends no batch again in parts: several chunks that are too large together are refused before."""
    log = make_log()
    found = rf"^batch.size: found 1,000,000, but topic {log.topic} accepts .* {LIMIT:,} "
    with by_confluent.SerializingProducer(log.chunking()) as producer, pytest.raises(ConfigurationError, match=found):
        producer.produce(log.topic, b"k", value_of(50_000))


@pytest.mark.parametrize(
    ("queue", "room", "found"),
    [("messages", 30, "full: .* has 40 chunks, and .* of 30 messages .* after poll or"), ("kbytes", 400, "Queue full")],
)
async def test_chunks_in_a_callback(make_log: MakeLog, queue: str, room: int, found: str) -> None:
    """`produce` neither polls nor lists topics on the thread of a callback, which would end the process."""
    log = make_log()
    reported: list[Any] = []
    large = value_of(775_000)

    def done(error: ConfluentsError | None, _: object) -> None:
        reported.append(error)
        if len(reported) == 1:
            for key in (None, b"k"):  # without a key, the partitions are asked for
                producer.produce(log.topic, key, value_of(50_000), on_delivery=lambda error, _: reported.append(error))
            with pytest.raises(BufferError, match=found):
                producer.produce(log.topic, b"k", large, on_delivery=done)

    with by_confluent.SerializingProducer(
        log.chunking(**{**_SPLITS, f"queue.buffering.max.{queue}": room})
    ) as producer:
        for _ in range(_SMALL):
            producer.produce(log.topic, b"k", b"small", on_delivery=done)
        until(lambda: sum(end_offsets(log.broker, log.topic).values()) == _SMALL, "all callbacks wait for one poll")
        assert producer.flush(_LONG_S) == 0
        assert reported == [None] * (_SMALL + 2)
        producer.produce(log.topic, b"k", large, on_delivery=done)
    assert reported == [None] * (_SMALL + 3)
    assert [each.form for each in await log.written()][: _SMALL + 2] == ["plain"] * _SMALL + ["chunks"] * 2


# Source: the uses of `CallState_begin` in confluent-kafka's Producer.c, Metadata.c and confluent_kafka.c.
_WAITING = """abort_transaction close commit_transaction flush init_transactions list_topics poll
send_offsets_to_transaction set_sasl_credentials"""


def test_what_waits_for_callbacks_is_an_error_in_one(make_log: MakeLog, gate: type[GatedStore]) -> None:
    """Each call that would end the process there is refused, and the producer goes on; its text of help stays."""
    log = make_log()
    names = [name for name in _WAITING.split() if hasattr(Producer, name)]  # `close` came with 2.13
    found: list[str] = []

    def done(*_: object) -> None:
        for name in names:
            with pytest.raises(KafkaException) as caught:
                getattr(producer, name)()
            assert caught.value.args[0].code() == ConfluentsError._STATE
            found.append(caught.value.args[0].str())

    with by_confluent.SerializingProducer(log.storing()) as producer:
        for _ in range(_SMALL):
            producer.produce(log.topic, b"k", b"small", on_delivery=done)
        until(lambda: sum(end_offsets(log.broker, log.topic).values()) == _SMALL, "all callbacks wait for one poll")
        assert producer.flush(_LONG_S) == 0
        producer.produce(log.topic, b"k", LARGE)  # no store was closed
    assert len(gate.payloads) == 1
    assert [text.partition(" ")[0] for text in found] == names * _SMALL
    assert "was called in a callback of the same producer" in found[0]
    assert all(inspect.getdoc(getattr(by_confluent.SerializingProducer, name)) for name in names)


# --- kafka-python -----------------------------------------------------------------------------------------------------


async def test_a_partitioner_of_the_application(make_log: MakeLog) -> None:
    """It is asked once for a value, with the application's own key, and may answer as it likes."""
    log = make_log(4)
    seen: list[tuple[object, object]] = []
    sent: list[Any] = []

    class Turns(Partitioner):  # type: ignore[misc]  # kafka-python has no types
        def partition(self, topic: str, key: Any, serialized_key: Any, *_: Any) -> int:
            seen.append((key, serialized_key))
            return len(seen) % 4

    config = log.chunking(**{"key.serializer": str.encode, "bootstrap.servers": [log.broker]})  # as kafka-python has it
    with by_kafka_python.SerializingProducer(config, partitioner=Turns()) as producer:
        places = [producer.send(log.topic, value_of(50_000, n), "k").get(_LONG_S).partition for n in range(3)]
        first = producer.send(log.topic, b"small", "k")
        # The thread of callbacks does not wait for itself to learn of the partition.
        first.add_callback(lambda _: sent.append(producer.send(log.topic, value_of(50_000, 3), "k")))
        until(lambda: sent, "the callback is done")
        sent[0].add_callback(lambda _: seen.append(("in its own callback", sent[0].get(_LONG_S).partition)))
        places += [first.get(_LONG_S).partition, sent[0].get(_LONG_S).partition]
        until(lambda: len(seen) == 6, "the other callback is done")
    assert places == [1, 2, 3, 0, 1]
    assert seen == [("k", b"k")] * 5 + [("in its own callback", 1)]
    values = {each.value for each in await log.written()}
    assert values == {b"small", *(value_of(50_000, n) for n in range(4))}
