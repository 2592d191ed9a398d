"""kafka-python's consumer for whatever a topic holds: chunks are put together, nothing is lost, commits are safe."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from kafka import ConsumerRebalanceListener, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener

from app.chunks import Discarded
from app.serializers.kafka_python import DeserializingConsumer
from tests.integration.chunk_records import write
from tests.integration.client_config import Config
from tests.integration.test_client_chunks import committed
from tests.integration.topics import committed as committed_in
from tests.integration.way import MakeTopic
from tests.integration.worker_process import until
from transforms.record import Record

TIGHT: Config = {"max.pending.chunked.message": 1}
_LONG_S = 30.0


@contextmanager
def consuming(
    broker: str, topic: str, found: list[Discarded] | None = None, **more: Any
) -> Iterator[DeserializingConsumer]:
    """A consumer that reads one topic from the beginning, or from where its group is."""
    base = {"bootstrap.servers": broker, "group.id": f"{topic}-g", "auto.offset.reset": "earliest"}
    config = {**base, "enable.auto.commit": False, **more}
    on_discarded = (lambda _: None) if found is None else found.append
    with DeserializingConsumer(config, topic, on_discarded=on_discarded) as consumer:
        yield consumer


def polled(consumer: DeserializingConsumer, count: int, most: int | None = None) -> list[ConsumerRecord]:
    """What the polls give, until it is `count` records at least."""
    found: list[ConsumerRecord] = []
    until_s = time.monotonic() + _LONG_S
    while len(found) < count:
        assert time.monotonic() < until_s, f"only {found} came"
        for records in consumer.poll(1_000, most).values():
            found += records
    return found


@contextmanager
def polling(consumer: DeserializingConsumer) -> Iterator[list[ConsumerRecord]]:
    """Polls on a thread of its own while the block runs; gives what comes.

    Of two consumers that one thread polls in turn, each waits in its join for the other one: kafka-python 3.0.12, in
    one of some hundred runs, then joins no more for minutes, with its own class as well.
    """
    found: list[ConsumerRecord] = []
    ended = threading.Event()

    def poll() -> None:
        while not ended.is_set():
            for records in consumer.poll(1_000).values():
                found.extend(records)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(poll)
        try:
            yield found
        finally:
            ended.set()
            running.result()


def values(consumer: DeserializingConsumer, count: int) -> list[Any]:
    """The next values, one record a poll."""
    return [polled(consumer, 1, 1)[0].value for _ in range(count)]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_listener_of_the_application(broker: str, make_topic: MakeTopic, asynchronous: bool) -> None:  # noqa: FBT001
    """It is called with what comes and goes; what was given is committed before that."""
    topic = make_topic()
    await write(broker, topic, [Record(b"k", b"x"), Record(b"k", b"y")])
    called: list[tuple[str, list[int]]] = []

    def note(name: str, partitions: Any) -> None:
        called.append((name, [each.partition for each in partitions]))

    class Plain(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
        def on_partitions_assigned(self, assigned: Any) -> None:
            note("assigned", assigned)

        def on_partitions_revoked(self, revoked: Any) -> None:
            note("revoked", revoked)

    class Awaited(AsyncConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
        async def on_partitions_assigned(self, assigned: Any) -> None:
            note("assigned", assigned)

        async def on_partitions_revoked(self, revoked: Any) -> None:
            note("revoked", revoked)

    config = {"bootstrap.servers": broker, "group.id": f"{topic}-g", "auto.offset.reset": "earliest"}
    with DeserializingConsumer(config) as consumer:
        consumer.subscribe([topic], listener=Awaited() if asynchronous else Plain())
        assert next(consumer).value == b"x"
        with consuming(broker, topic) as other, polling(other):
            until(lambda: consumer.poll(1_000) is not None and ("revoked", [0]) in called, "the group is balanced anew")
            assert (await committed(broker, f"{topic}-g", topic)).offset >= 1
    assert ("assigned", [0]) in called


def until_one_stays(consumer: DeserializingConsumer, other: DeserializingConsumer) -> TopicPartition:
    """Polls both until each has one of two partitions; gives the one that the first has kept."""

    def shared() -> bool:
        assert consumer.poll(1_000) == {}
        return len(consumer.assignment()) == len(other.assignment()) == 1

    with polling(other):
        until(shared, "each has one partition")
    (stays,) = consumer.assignment()
    return stays


async def test_what_is_not_given_yet_outlasts_a_rebalance(broker: str, make_topic: MakeTopic) -> None:
    """Records that an iteration has fetched, and a pause holds, come once the partition that stayed is resumed."""
    topic = make_topic(2)
    for partition in (0, 1):
        await write(broker, topic, [Record(b"k", b"%d-%d" % (partition, n)) for n in range(4)], partition)
    with consuming(broker, topic) as consumer:
        first = next(consumer)
        consumer.pause(*consumer.assignment())
        with consuming(broker, topic, None, **{"auto.offset.reset": "latest"}) as other:
            stays = until_one_stays(consumer, other)
            consumer.resume(stays)
            given = [first.value] if first.partition == stays.partition else []
            given += [each.value for each in polled(consumer, 4 - len(given))]
            assert given == [b"%d-%d" % (stays.partition, n) for n in range(4)]
            assert consumer.poll(500) == {}


async def test_a_listener_that_seeks(broker: str, make_topic: MakeTopic) -> None:
    """A position that a listener sets holds, also for a partition that stays, and whatever its commit notes."""
    topic = make_topic(2)
    for partition in (0, 1):
        await write(broker, topic, [Record(b"k", b"%d" % n) for n in range(3)], partition)
    seeks = False

    class Back(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
        def on_partitions_revoked(self, revoked: Any) -> None: ...

        def on_partitions_assigned(self, assigned: Any) -> None:
            for each in assigned if seeks else ():
                consumer.seek(each, 1)

    config = {"bootstrap.servers": broker, "group.id": f"{topic}-g", "auto.offset.reset": "earliest"}
    with DeserializingConsumer(config) as consumer:
        consumer.subscribe([topic], listener=Back())
        assert len(polled(consumer, 6)) == 6
        consumer.commit()
        seeks = True
        with consuming(broker, topic) as other, polling(other):
            found: list[ConsumerRecord] = []

            def shared() -> bool:
                for records in consumer.poll(1_000).values():
                    found.extend(records)
                return len(consumer.assignment()) == len(other.assignment()) == 1 and len(found) >= 2

            until(shared, "each has one partition")
    (stays,) = {each.partition for each in found}
    assert [each.offset for each in found if each.partition == stays] == [1, 2]


async def test_a_commit_in_the_midst_of_a_call(broker: str, make_topic: MakeTopic) -> None:
    """As a signal handler may make it: it commits what was given, and not what the call has fetched."""
    topic = make_topic()
    await write(broker, topic, [Record(b"k", b"%d" % n) for n in range(4)])
    commits: list[int] = []

    def committing(value: bytes) -> bytes:
        commits.append(len(commits))
        consumer.commit()
        return value

    more: Config = {"value.deserializer": None, "value.deserializers": [committing]}
    with consuming(broker, topic, None, **more) as consumer:
        assert values(consumer, 1) == [b"0"]
        assert committed_in(broker, f"{topic}-g", topic) == {0: 0}
        assert [each.value for each in polled(consumer, 3)] == [b"1", b"2", b"3"]
        assert committed_in(broker, f"{topic}-g", topic) == {0: 1}
    assert len(commits) >= 4


async def test_polls_after_an_iteration(broker: str, make_topic: MakeTopic) -> None:
    """What an iteration has fetched is given by later polls, no more than they ask for."""
    topic = make_topic()
    await write(broker, topic, [Record(b"k", b"%d" % n) for n in range(5)])
    with consuming(broker, topic) as consumer:
        assert next(consumer).value == b"0"
        for wanted in ([b"1"], [b"2", b"3"], [b"4"]):
            ((_, records),) = consumer.poll(_LONG_S * 1000, len(wanted)).items()
            assert [each.value for each in records] == wanted
