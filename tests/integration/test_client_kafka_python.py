"""What only kafka-python's consumer has: listeners, commits from within a call, polls between iterations."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka import ConsumerRebalanceListener
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
from kafka.errors import KafkaConfigurationError

from app.serializers.kafka_python import DeserializingConsumer
from tests.integration.chunk_records import plain, write
from tests.integration.client_config import ON_GATE, consuming
from tests.integration.client_readers import Given, KafkaPython, KafkaPythonIteration, share
from tests.integration.way import MakeTopic


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_listener_of_the_application(broker: str, make_topic: MakeTopic, asynchronous: bool) -> None:  # noqa: FBT001
    """It is called with what comes and goes; what was given is committed before that."""
    topic = make_topic()
    await write(broker, topic, [plain(b"x"), plain(b"y")])
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

    async with KafkaPythonIteration(broker, topic, {"enable.auto.commit": True}) as reader:
        await reader.call(reader.consumer.subscribe, [topic], None, Awaited() if asynchronous else Plain())
        assert await reader.values() == [b"x"]
        async with KafkaPython(broker, topic) as other, asyncio.timeout(30):
            while ("revoked", [0]) not in called:
                await asyncio.gather(reader.poll(1.0), other.poll(1.0))
            assert (await reader.committed())[0] >= 1
    assert ("assigned", [0]) in called


async def test_a_listener_that_seeks(broker: str, make_topic: MakeTopic) -> None:
    """A position that a listener sets holds, also for a partition that stays, and whatever its commit notes."""
    topic = make_topic(2)
    for partition in (0, 1):
        await write(broker, topic, [plain(b"%d" % n) for n in range(3)], partition)
    seeks = False

    class Back(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
        def on_partitions_revoked(self, revoked: Any) -> None: ...

        def on_partitions_assigned(self, assigned: Any) -> None:
            for each in assigned if seeks else ():
                reader.consumer.seek(each, 1)

    async with KafkaPython(broker, topic, {"enable.auto.commit": True}) as reader:
        await reader.call(reader.consumer.subscribe, [topic], None, Back())
        await reader.read(6)
        await reader.commit()
        seeks = True
        found: list[Given] = []
        async with KafkaPython(broker, topic) as other, asyncio.timeout(30):
            while len(found) < 2 or not len(reader.assignment()) == len(other.assignment()) == 1:
                mine, _ = await asyncio.gather(reader.poll(1.0), other.poll(1.0))
                found += mine
        (stays,) = reader.assignment()
    assert [each.offset for each in found if each.partition == stays] == [1, 2]


async def test_what_is_not_given_yet_outlasts_a_rebalance(broker: str, make_topic: MakeTopic) -> None:
    """Records that an iteration has fetched, and a pause holds, come once the partition that stayed is resumed."""
    topic = make_topic(2)
    for partition in (0, 1):
        await write(broker, topic, [plain(b"%d-%d" % (partition, n)) for n in range(4)], partition)
    async with KafkaPythonIteration(broker, topic) as reader:
        (first,) = await reader.read()
        await reader.pause(0, 1)
        async with KafkaPython(broker, topic, {"auto.offset.reset": "latest"}) as other:
            assert await share(reader, other) == []
            (stays,) = reader.assignment()
            await reader.resume(stays)
            given = [first.value] if first.partition == stays else []
            given += await reader.values(4 - len(given))
            assert given == [b"%d-%d" % (stays, n) for n in range(4)]
            assert await reader.poll(0.5) == []


async def test_a_commit_in_the_midst_of_a_call(broker: str, make_topic: MakeTopic) -> None:
    """As a signal handler may make it: it commits what was given, and not what the call has fetched."""
    topic = make_topic()
    await write(broker, topic, [plain(b"%d" % n) for n in range(4)])
    commits: list[bytes] = []

    def committing(value: bytes) -> bytes:
        commits.append(value)
        reader.consumer.commit()
        return value

    async with KafkaPython(broker, topic, {"value.deserializers": [committing]}) as reader:
        assert await reader.values() == [b"0"]
        assert await reader.committed() == {0: 0}
        assert await reader.values(3) == [b"1", b"2", b"3"]
        assert await reader.committed() == {0: 1}
    assert len(commits) >= 4


async def test_polls_after_an_iteration(broker: str, make_topic: MakeTopic) -> None:
    """What an iteration has fetched is given by later polls, no more than they ask for; commits end behind it."""
    topic = make_topic()
    await write(broker, topic, [plain(b"%d" % n) for n in range(5)])
    async with KafkaPythonIteration(broker, topic, {"enable.auto.commit": True}) as reader:
        assert await reader.values() == [b"0"]
        for wanted in ([b"1"], [b"2", b"3"]):
            given = await KafkaPython.poll(reader, 30.0, len(wanted))
            assert [each.value for each in given] == wanted
    assert await reader.committed() == {0: 4}


def test_what_kafka_python_refuses(broker: str) -> None:
    """Its own error comes out, and nothing stays open."""
    with pytest.raises(KafkaConfigurationError, match="must be larger"):
        DeserializingConsumer(consuming(broker, ON_GATE, **{"request.timeout.ms": 1}))
