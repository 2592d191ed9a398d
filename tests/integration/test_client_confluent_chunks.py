"""confluent-kafka's consumer for whatever a topic holds: chunks are put together, nothing is lost, commits are safe."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.error import ValueDeserializationError

from app.chunks import Discarded
from app.serializers import ConfigurationError, LargeMessageDeserializer, LargeMessageSerializer
from app.serializers.confluent import DeserializingConsumer, SerializingProducer
from tests.integration.chunk_records import delete_up_to, interleaved, pieces, value_of, write
from tests.integration.client_config import LARGE, Config, on_s3, producing
from tests.integration.test_client_chunks import committed
from tests.integration.way import MakeTopic
from tests.integration.worker_process import until
from tests.s3_server import S3Server
from transforms.commit_metadata import Noted, noted
from transforms.errors import RecordDeserializationError, ReferenceRefusedError
from transforms.pending_message import PendingMessage
from transforms.record import Record

TIGHT = {"max.pending.chunked.message": 1}
_LONG_S = 30.0


@contextmanager
def consuming(
    broker: str, topic: str, found: list[Discarded] | None = None, **more: Any
) -> Iterator[DeserializingConsumer]:
    """A consumer that reads one topic from the beginning, or from where its group is."""
    base = {"bootstrap.servers": broker, "group.id": f"{topic}-g", "auto.offset.reset": "earliest"}
    config = {**base, "enable.auto.commit": False, **more}
    on_discarded = (lambda _: None) if found is None else found.append
    with DeserializingConsumer(config, on_discarded) as consumer:
        consumer.subscribe([topic])
        yield consumer


def one(consumer: DeserializingConsumer) -> Message:
    """The next message."""
    message = consumer.poll(_LONG_S)
    assert message is not None
    return message


def values(consumer: DeserializingConsumer, count: int) -> list[Any]:
    """The next values."""
    return [one(consumer).value() for _ in range(count)]


async def test_plain_references_and_chunks(broker: str, versitygw: S3Server, make_topic: MakeTopic) -> None:
    """Every value comes whole and in order, with its own headers; a message of chunks has the last one's offset."""
    topic = make_topic()
    store: Config = on_s3(versitygw)
    with SerializingProducer(producing(broker, store)) as producer:
        producer.produce(topic, b"k", LARGE)
        assert producer.flush(_LONG_S) == 0
    chunks = pieces("u", 3_000, 1)
    await write(broker, topic, [Record(b"k", b"plain"), *chunks, Record(b"k", None)])
    with consuming(broker, topic, [], **{"value.deserializer": LargeMessageDeserializer, **store}) as consumer:
        messages = [one(consumer) for _ in range(4)]
        assert [each.value() for each in messages] == [LARGE, b"plain", value_of(3_000, 1), None]
        assert (messages[2].offset(), messages[2].headers(), messages[2].key()) == (1 + len(chunks), [], b"k")
        assert consumer.counts.assembled == 1
        assert consumer.poll(0.1) is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
async def test_an_interrupt_while_a_message_is_put_together(
    broker: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Whoever polls again gets the message, and nothing twice; so does the next consumer of the group."""
    topic = make_topic()
    chunks = pieces("u", 3_000, 1)
    await write(broker, topic, [chunks[0], *[Record(b"k", b"a")] * 3, *chunks[1:], Record(b"k", b"end")])
    errors = [error("now"), error("now")]
    whole = PendingMessage.whole

    def interrupted(self: PendingMessage) -> Any:
        if errors:
            raise errors.pop()
        return whole(self)

    monkeypatch.setattr(PendingMessage, "whole", interrupted)
    with consuming(broker, topic, [], **{"enable.auto.commit": True}) as consumer:
        assert values(consumer, 3) == [b"a"] * 3
        for _ in range(2):
            with pytest.raises(error):
                one(consumer)
    told = await committed(broker, f"{topic}-g", topic)
    assert (told.offset, noted(told.metadata)) == (0, Noted(len(chunks) + 2))
    with consuming(broker, topic) as consumer:
        assert values(consumer, 2) == [value_of(3_000, 1), b"end"]


def test_an_interrupt_during_a_download(broker: str, make_topic: MakeTopic) -> None:
    """The next call gives the record that Ctrl-C has taken from the application, and no commit passes it before."""
    topic = make_topic()
    with SerializingProducer({"bootstrap.servers": broker}) as producer:
        for value in (b"1", b"2", b"3"):
            producer.produce(topic, b"k", value)
        assert producer.flush(_LONG_S) == 0
    interrupts = [KeyboardInterrupt("now")]

    def slow(data: bytes) -> bytes:
        if data == b"2" and interrupts:
            raise interrupts.pop()
        return data

    with consuming(broker, topic, [], **{"value.deserializers": [slow], "enable.auto.commit": True}) as consumer:
        assert values(consumer, 1) == [b"1"]
        with pytest.raises(KeyboardInterrupt):
            one(consumer)
    interrupts.append(KeyboardInterrupt("now"))
    with consuming(broker, topic, [], **{"value.deserializers": [slow]}) as consumer:
        with pytest.raises(KeyboardInterrupt):
            one(consumer)
        assert values(consumer, 2) == [b"2", b"3"]


def test_key_and_value_are_large(broker: str, versitygw: S3Server, make_topic: MakeTopic) -> None:
    """An interrupt, or an error, behind the restored key leaves both references as they are."""
    topic, key = make_topic(), b"k" * 3_000
    store: Config = on_s3(versitygw)
    with SerializingProducer({**producing(broker, store), "key.serializer": LargeMessageSerializer}) as producer:
        producer.produce(topic, key, LARGE, headers=[("a", b"1")])
        assert producer.flush(_LONG_S) == 0
    errors: list[BaseException] = [ValueError("no such value"), KeyboardInterrupt("now")]

    def failing(data: bytes) -> bytes:
        if errors:
            raise errors.pop()
        return data

    large = {"key.deserializer": LargeMessageDeserializer, "value.deserializers": [LargeMessageDeserializer, failing]}
    with consuming(broker, topic, [], **large, **store) as consumer:
        with pytest.raises(KeyboardInterrupt):
            one(consumer)
        with pytest.raises(ValueDeserializationError) as caught:
            one(consumer)
        message = caught.value.kafka_message
        assert message is not None
        assert {"a", "large-message", "large-message-key"} <= dict(message.headers() or []).keys()
        assert (message.key() or b"").startswith(b"s3://")
        consumer.seek(TopicPartition(topic, 0, 0))
        found = one(consumer)
    assert (found.key(), found.value(), found.headers()) == (key, LARGE, [("a", b"1")])


def test_a_stage_that_fails_leaves_the_record_as_it_was(
    broker: str, versitygw: S3Server, make_topic: MakeTopic
) -> None:
    """`kafka_message` has the whole reference, so that a dead-letter topic gets one that can be restored."""
    topic = make_topic()
    store: Config = on_s3(versitygw)
    with SerializingProducer(producing(broker, store)) as producer:
        producer.produce(topic, b"k", LARGE)
        assert producer.flush(_LONG_S) == 0
    stages: Config = {"value.deserializers": [LargeMessageDeserializer, json.loads]}
    with (
        consuming(broker, topic, [], **stages, **store) as consumer,
        pytest.raises(ValueDeserializationError) as caught,
    ):
        one(consumer)
    message = caught.value.kafka_message
    assert message is not None
    assert (message.value() or b"").startswith(b"s3://")
    assert "large-message" in dict(message.headers() or [])


async def test_more_is_pending_than_memory_holds(broker: str, make_topic: MakeTopic) -> None:
    """What does not fit is read again; nothing is discarded, and the order is that of the last chunks."""
    topic = make_topic()
    messages = [pieces(f"u{n}", 3_000, n) for n in range(8)]
    log = list(interleaved(messages, 3))
    await write(broker, topic, log)
    found: list[Discarded] = []
    with consuming(broker, topic, found, **TIGHT) as consumer:
        got = [one(consumer) for _ in range(8)]
        assert consumer.counts.set_aside > 2
        assert consumer.stats()["pendingChunkedBytes"] == 0
    assert {each.value() for each in got} == {value_of(3_000, n) for n in range(8)}
    assert [each.offset() for each in got] == sorted(each.offset() or 0 for each in got)
    assert found == []


@pytest.mark.parametrize("kept", ["commit", "auto", "message", "position"])
async def test_restart_anywhere(broker: str, make_topic: MakeTopic, kept: str) -> None:
    """A consumer that begins anew after every two messages gets each once, wherever it keeps its offsets."""
    topic = make_topic()
    plain = [[Record(b"k", b"%d" % n)] for n in range(4)]
    await write(broker, topic, list(interleaved([pieces(f"u{n}", 3_000, n) for n in range(4)] + plain, 5)))
    expected = {value_of(3_000, n) for n in range(4)} | {b"%d" % n for n in range(4)}
    got: list[Any] = []
    found: list[Discarded] = []
    position = 0
    while len(got) < len(expected):
        more: Config = {**TIGHT, "enable.auto.commit": kept == "auto"}
        with consuming(broker, topic, found, **more) as consumer:
            if kept == "position":
                consumer.unsubscribe()
                consumer.assign([TopicPartition(topic, 0, position)])
            for _ in range(2):
                message = one(consumer)
                got.append(message.value())
                if kept == "message":
                    consumer.commit(message=message, asynchronous=False)
                elif kept == "position":
                    position = consumer.position([TopicPartition(topic, 0)])[0].offset
            if kept == "commit":
                consumer.commit(asynchronous=False)
    assert len(got) == len(expected)
    assert set(got) == expected
    assert found == []


async def test_commit_holds(broker: str, make_topic: MakeTopic) -> None:
    """No commit passes a message that is not whole; its metadata says how far records were given."""
    topic = make_topic()
    slow = pieces("slow", 3_000, 1)
    await write(broker, topic, [Record(b"k", b"a"), slow[0], Record(b"k", b"b"), slow[1]])
    with consuming(broker, topic) as consumer:
        assert values(consumer, 2) == [b"a", b"b"]
        assert consumer.poll(1.0) is None
        consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
        commit = await committed(broker, f"{topic}-g", topic)
        assert (commit.offset, noted(commit.metadata)) == (1, Noted(4))
        consumer.seek(TopicPartition(topic, 0, 0))
        assert one(consumer).value() == b"a"
    await write(broker, topic, slow[2:])
    with consuming(broker, topic) as consumer:
        assert values(consumer, 1) == [value_of(3_000, 1)]


@pytest.mark.parametrize("target", [2, 3])
async def test_a_retry_or_a_skip_keeps_what_is_pending(broker: str, make_topic: MakeTopic, target: int) -> None:
    """No commit passes a message that began before the position that is set, and it comes, however far back."""
    topic, found = make_topic(), list[Discarded]()
    slow = pieces("slow", 3_000, 1)
    await write(broker, topic, [Record(b"k", b"a"), slow[0], Record(b"k", b"bad"), Record(b"k", b"b")])
    with consuming(broker, topic, found, **{"chunk.lookback": 0}) as consumer:
        assert values(consumer, 2) == [b"a", b"bad"]
        consumer.seek(TopicPartition(topic, 0, target))
        assert values(consumer, 4 - target) == [b"bad", b"b"][target - 2 :]
        consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
        assert (await committed(broker, f"{topic}-g", topic)).offset == 1
        await write(broker, topic, slow[1:])
        assert values(consumer, 1) == [value_of(3_000, 1)]
    assert found == []


async def test_a_call_that_waits_for_ever_stores(broker: str, make_topic: MakeTopic) -> None:
    """What was given is committed while a poll waits, and does not wait for the next record."""
    topic = make_topic()
    await write(broker, topic, [Record(b"k", b"%d" % n) for n in range(3)])
    more: Config = {"enable.auto.commit": True, "auto.commit.interval.ms": 100}
    with consuming(broker, topic, **more) as consumer:
        assert values(consumer, 3) == [b"0", b"1", b"2"]
        waiting = asyncio.create_task(asyncio.to_thread(consumer.poll, _LONG_S))
        place = TopicPartition(topic, 0)
        with Consumer({"bootstrap.servers": broker, "group.id": f"{topic}-g"}) as other:
            look = partial(other.committed, [place], timeout=_LONG_S)
            await asyncio.to_thread(until, lambda: look()[0].offset == 3, "the offset is committed", _LONG_S / 2)
        assert not waiting.done()
        await write(broker, topic, [Record(b"k", b"end")])
        message = await waiting
        assert message is not None
        assert message.value() == b"end"


async def test_discarded_messages(broker: str, make_topic: MakeTopic) -> None:
    """The callback has them before what lies behind; while it fails, they come again, and no commit passes them."""
    topic = make_topic()
    chunks = pieces("u", 3_000)
    await write(broker, topic, [chunks[0], chunks[2], Record(b"k", b"end"), *pieces("late", 3_000)[:2]])
    seen: list[Discarded] = []

    def discarded(message: Discarded) -> None:
        seen.append(message)
        if len(seen) == 1:
            raise OSError("no dead-letter topic")

    config = {
        "bootstrap.servers": broker,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "expire.time.of.incomplete.chunked.message.ms": 300,
    }
    with DeserializingConsumer(config, discarded) as consumer:
        consumer.subscribe([topic])
        with pytest.raises(OSError, match="no dead-letter topic"):
            consumer.poll(_LONG_S)
        consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
        assert (await committed(broker, topic, topic)).offset == 0
        assert one(consumer).value() == b"end"
        until_s = time.monotonic() + _LONG_S
        while len(seen) < 3 and time.monotonic() < until_s:
            assert consumer.poll(0.1) is None
        consumer.commit(asynchronous=False)
    told = [(each.reason, [record.offset for record in each.records]) for each in seen]
    assert told == [("out-of-order", [0, 1])] * 2 + [("expired", [3, 4])]
    assert (await committed(broker, topic, topic)).offset == 5


async def test_a_callback_that_seeks(broker: str, make_topic: MakeTopic) -> None:
    """A discarded message that the callback wants to read again comes again; nothing else is passed over."""
    topic = make_topic()
    chunks = pieces("u", 3_000)
    await write(broker, topic, [chunks[0], chunks[2], Record(b"k", b"end")])
    seen: list[str] = []
    config = {"bootstrap.servers": broker, "group.id": topic, "auto.offset.reset": "earliest"}

    def discarded(message: Discarded) -> None:
        seen.append(message.reason)
        if len(seen) == 1:
            consumer.seek(TopicPartition(topic, 0, 0))

    with DeserializingConsumer(config, discarded) as consumer:
        consumer.subscribe([topic])
        assert one(consumer).value() == b"end"
    assert seen == ["out-of-order"] * 2


async def test_callbacks_of_a_subscription(broker: str, make_topic: MakeTopic) -> None:
    """They may be given by position, as with confluent-kafka's own class, and are called with the consumer."""
    topic = make_topic()
    await write(broker, topic, [Record(b"k", b"x")])
    called: list[tuple[bool, list[int]]] = []
    config = {"bootstrap.servers": broker, "group.id": topic, "auto.offset.reset": "earliest"}
    with DeserializingConsumer(config) as consumer:
        consumer.subscribe([topic], lambda who, found: called.append((who is consumer, [p.partition for p in found])))
        assert one(consumer).value() == b"x"
    assert called == [(True, [0])]


async def test_a_note_of_another_log(broker: str, make_topic: MakeTopic) -> None:
    """Where reading begins before the commit, its note says nothing: every record is given."""
    topic = make_topic()
    await write(broker, topic, [Record(b"k", b"%d" % n) for n in range(3)])
    with consuming(broker, topic) as consumer:
        assert values(consumer, 1) == [b"0"]
        consumer.commit(offsets=[TopicPartition(topic, 0, 50, "wideload:delivered=100")], asynchronous=False)
    with consuming(broker, topic) as consumer:  # the commit is behind the end, so reading is reset to the beginning
        assert values(consumer, 3) == [b"0", b"1", b"2"]


async def test_chunks_that_kafka_has_removed(broker: str, make_topic: MakeTopic) -> None:
    """What is gone before it is read again makes its message `missing-first`; what is left is given back."""
    topic = make_topic()
    a, b = pieces("a", 1_000, 1), pieces("b", 2_000, 2)
    await write(broker, topic, [b[0], a[0], b[1]])
    found: list[Discarded] = []
    with consuming(broker, topic, found, **TIGHT) as consumer:
        until_s = time.monotonic() + _LONG_S
        while consumer.stats()["pendingChunkedMessages"] < 2 and time.monotonic() < until_s:
            assert consumer.poll(0.1) is None
        await delete_up_to(broker, topic, 2)
        await write(broker, topic, [a[1], b[2], Record(b"k", b"end")])
        assert values(consumer, 2) == [value_of(2_000, 2), b"end"]
    assert [(each.reason, each.uuid, [record.offset for record in each.records]) for each in found] == [
        ("missing-first", "a", [3])
    ]


async def test_a_record_that_cannot_be_deserialized(broker: str, versitygw: S3Server, make_topic: MakeTopic) -> None:
    """It is confluent-kafka's own error, with the record; the next poll goes on."""
    topic = make_topic()
    wrong = Record(b"k", b"s3://elsewhere/x/y", [("large-message", b"true")])
    await write(broker, topic, [wrong, *pieces("u", 1_000, 1)])
    store: Config = on_s3(versitygw)
    with consuming(broker, topic, [], **{"value.deserializer": LargeMessageDeserializer, **store}) as consumer:
        with pytest.raises(ValueDeserializationError) as caught:
            consumer.poll(_LONG_S)
        failed = caught.value.kafka_message
        assert failed is not None
        assert failed.offset() == 0
        reason = caught.value.exception
        assert isinstance(reason, RecordDeserializationError)
        assert (reason.topic, reason.partition, reason.offset) == (topic, 0, 0)
        assert isinstance(reason.__cause__, ReferenceRefusedError)
        assert values(consumer, 1) == [value_of(1_000, 1)]


async def test_consumers_come_and_go(broker: str, make_topic: MakeTopic, least_session_ms: int) -> None:
    """Rebalanced and stopped at any time, with room for one message: every value comes, nothing is discarded."""
    topic = make_topic(2)
    expected: set[bytes] = set()
    for partition in range(2):
        messages = [pieces(f"p{partition}-{n}", 3_000, 100 * partition + n) for n in range(8)]
        expected |= {value_of(3_000, 100 * partition + n) for n in range(8)}
        await write(broker, topic, list(interleaved(messages, partition)), partition)
    rng = random.Random(6)
    found: list[Discarded] = []
    got: set[Any] = set()
    more = {**TIGHT, "session.timeout.ms": least_session_ms, "heartbeat.interval.ms": 300, "enable.auto.commit": True}
    until_s = time.monotonic() + 90
    while got != expected:
        assert time.monotonic() < until_s
        with consuming(broker, topic, found, **more) as first, consuming(broker, topic, found, **more) as second:
            for _ in range(rng.randint(4, 12)):
                for consumer in (first, second):
                    message = consumer.poll(0.3)
                    got |= set() if message is None else {message.value()}
                    if rng.random() < 0.2:
                        with suppress(KafkaException):  # of a rebalance, or nothing to commit
                            consumer.commit(asynchronous=False)
    assert found == []


def test_keys_are_known() -> None:
    """The keys of chunks stand beside librdkafka's; a wrong one is told with the nearest."""
    base = {"bootstrap.servers": "-", "group.id": "g"}
    with pytest.raises(ConfigurationError, match=r"did you mean chunk\.lookback\?"):
        DeserializingConsumer({**base, "chunk.lookbak": 1})
    with pytest.raises(ConfigurationError, match="allowed is 0 or more"):
        DeserializingConsumer({**base, "chunk.lookback": -1})
