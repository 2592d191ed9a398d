"""What only kafka-python's consumer has: listeners, commits from within a call, polls between iterations."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka import ConsumerRebalanceListener
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener

from tests.integration.aiokafka_records import Source
from tests.integration.chunk_records import plain
from tests.integration.client_readers import Given, KafkaPython, KafkaPythonIteration, share


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """Notes what it is called with, and seeks if it is told to."""

    def __init__(self) -> None:
        self.called: list[tuple[str, list[int]]] = []
        self.seek: Any = None

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.called.append(("assigned", [each.partition for each in assigned]))
        for each in assigned if self.seek else ():
            self.seek(each, 1)

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.called.append(("revoked", [each.partition for each in revoked]))


class Awaited(AsyncConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """The same, awaited."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self.listener.on_partitions_assigned(assigned)

    async def on_partitions_revoked(self, revoked: Any) -> None:
        self.listener.on_partitions_revoked(revoked)


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_listener_of_the_application(source: Source, asynchronous: bool) -> None:  # noqa: FBT001
    """It is called with what comes and goes; what was given is committed before that."""
    await source.write([plain(b"x"), plain(b"y")])
    listener = Listener()
    async with KafkaPythonIteration(source, {"enable.auto.commit": True}) as reader:
        made = Awaited(listener) if asynchronous else listener
        await reader.call(reader.consumer.subscribe, [source.topic], None, made)
        assert await reader.values() == [b"x"]
        async with KafkaPython(source) as other, asyncio.timeout(30):
            while ("revoked", [0]) not in listener.called:
                await asyncio.gather(reader.poll(1.0), other.poll(1.0))
            assert (await reader.committed())[0] >= 1
    assert ("assigned", [0]) in listener.called


async def test_a_listener_that_seeks(wide: Source) -> None:
    """A position that a listener sets holds, also for a partition that stays, and whatever its commit notes."""
    for partition in (0, 1):
        await wide.write([plain(b"%d" % n) for n in range(3)], partition)
    listener = Listener()
    async with KafkaPython(wide, {"enable.auto.commit": True}) as reader:
        await reader.call(reader.consumer.subscribe, [wide.topic], None, listener)
        await reader.read(6)
        await reader.commit()
        listener.seek = reader.consumer.seek
        found: list[Given] = []
        async with KafkaPython(wide) as other, asyncio.timeout(30):
            while len(found) < 2 or not len(reader.assignment()) == len(other.assignment()) == 1:
                mine, _ = await asyncio.gather(reader.poll(1.0), other.poll(1.0))
                found += mine
        (stays,) = reader.assignment()
    assert [each.offset for each in found if each.partition == stays] == [1, 2]


async def test_what_is_not_given_yet_outlasts_a_rebalance(wide: Source) -> None:
    """Records that an iteration has fetched, and a pause holds, come once the partition that stayed is resumed."""
    for partition in (0, 1):
        await wide.write([plain(b"%d-%d" % (partition, n)) for n in range(4)], partition)
    async with KafkaPythonIteration(wide) as reader:
        (first,) = await reader.read()
        await reader.pause(0, 1)
        async with KafkaPython(wide, {"auto.offset.reset": "latest"}) as other:
            assert await share(reader, other) == []
            (stays,) = reader.assignment()
            await reader.resume(stays)
            given = [first.value] if first.partition == stays else []
            given += await reader.values(4 - len(given))
            assert given == [b"%d-%d" % (stays, n) for n in range(4)]
            assert await reader.poll(0.5) == []


async def test_a_commit_in_the_midst_of_a_call(source: Source) -> None:
    """As a signal handler may make it: it commits what was given, and not what the call has fetched."""
    await source.write([plain(b"%d" % n) for n in range(4)])
    commits: list[bytes] = []

    def committing(value: bytes) -> bytes:
        commits.append(value)
        reader.consumer.commit()
        return value

    async with KafkaPython(source, {"value.deserializers": [committing]}) as reader:
        assert await reader.values() == [b"0"]
        assert await reader.committed() == {0: 0}
        assert await reader.values(3) == [b"1", b"2", b"3"]
        assert await reader.committed() == {0: 1}
    assert len(commits) >= 4


async def test_polls_after_an_iteration(source: Source) -> None:
    """What an iteration has fetched is given by later polls, no more than they ask for; commits end behind it."""
    await source.write([plain(b"%d" % n) for n in range(5)])
    async with KafkaPythonIteration(source, {"enable.auto.commit": True}) as reader:
        assert await reader.values() == [b"0"]
        for wanted in ([b"1"], [b"2", b"3"]):
            given = await KafkaPython.poll(reader, 30.0, len(wanted))
            assert [each.value for each in given] == wanted
    assert await reader.committed() == {0: 4}
