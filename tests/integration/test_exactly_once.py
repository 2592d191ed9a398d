"""Exactly once, a flow at a time, against a real broker: what a transaction has, when it ends, and what aborts it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition

from app.cluster.preflight import plan_pipeline
from app.kafka.clients import ClusterError
from app.kafka.consumer import GroupConsumer
from app.pipeline import topic_watcher
from app.pipeline.delivery import ExactlyOnce
from app.pipeline.lane import Lane
from app.pipeline.termination import RecordError
from tests.integration.limits import alter_configs
from tests.integration.line import EARLY, LONG, STAMP, Life, MakeLine, keys, records
from tests.integration.topics import Sent
from tests.integration.way import MakeTopic
from transforms.chunk import Chunking
from transforms.errors import ConfigurationError
from transforms.record import Record

HOUR = 3_600_000
FOREVER = {"retention.ms": "-1"}


async def test_transaction_ends_with_all_that_is_at_hand(make_line: MakeLine) -> None:
    """A record that comes alone is committed long before the interval is over; so is one that a stage works on."""
    line = make_line(**EARLY, **{"large.message.threshold.bytes": 1_000})
    async with line.life() as life:
        for number in range(3):
            await line.send([*records(1, start=2 * number), *records(1, size=2_000, start=2 * number + 1)])
            await life.until(lambda sent=2 * number + 2: end(life) == sent)  # type: ignore[misc]
            assert keys(await line.found()) == list(range(2 * number + 2))
        await life.stop()
    assert life.stats.offloaded_records == 3


async def test_marks_of_transactions_are_not_waited_behind(make_line: MakeLine) -> None:
    """Where the source ends with the mark of a transaction, which is no record, all that is at hand has come, too."""
    line = make_line(**EARLY)
    async with (
        line.life() as life,
        AIOKafkaProducer(bootstrap_servers=line.broker, transactional_id=f"{line.id}-source") as producer,
    ):
        for number in range(3):
            async with producer.transaction():
                await producer.send(line.source, b"x", b"%d" % number, partition=0)
            await life.until(lambda sent=number + 1: life.stats.transactions == sent)  # type: ignore[misc]
            await producer.begin_transaction()
            await producer.send_and_wait(line.source, b"x", b"-1", partition=0)
            await producer.abort_transaction()
        await life.stop()
    assert keys(await line.found()) == [0, 1, 2]


@pytest.mark.matrix
async def test_transactions_grow_with_the_flow(make_line: MakeLine) -> None:
    """Records that come one after the other, each in its own request, share transactions; none is lost or twice."""
    line = make_line(**EARLY)
    async with line.life() as life, AIOKafkaProducer(bootstrap_servers=line.broker) as producer:
        for number in range(1_000):
            await producer.send_and_wait(line.source, b"x" * 1_000, b"%d" % number, partition=0)
        await life.until(lambda: end(life) == 1_000)
        await life.stop()
    assert 1 < life.stats.transactions < 500
    assert keys(await line.found()) == list(range(1_000))
    assert await line.committed() == (1_000, "")


async def test_transaction_ends_by_bytes(make_line: MakeLine) -> None:
    """A transaction ends with the batch that fills it; what comes meanwhile goes into the next, in order."""
    line = make_line(**LONG, **{"transaction.boundary.bytes": 20_000})
    for start in range(0, 200, 10):
        await line.send(records(200, size=1_000)[start : start + 10])
    async with line.life() as life:
        await life.until(lambda: life.stats.records_out == 200)
        await life.stop()
        assert life.budget.used == 0
    found = await line.found()
    assert keys(found) == list(range(200))
    # Each transaction leaves a mark behind its records, and has less than one batch over its bytes: of 10 records, or
    # of as many as were merged, which are no more bytes.
    ends = [one.offset for one, after in pairwise(found) if after.offset != one.offset + 1]
    sizes = [end - start for start, end in pairwise([-2, *ends, found[-1].offset])]
    assert life.stats.transactions == len(sizes)
    assert all(18 <= size - 1 <= 38 for size in sizes[:-1])


async def test_failure_aborts(make_line: MakeLine) -> None:
    """Records and offset of a transaction that does not end stay out of sight, and come once with the next flow."""
    line = make_line(**LONG)
    await line.send(records(20))
    async with line.life() as life:
        await life.until(lambda: life.stats.records_out == 20)
    # At once, not when the brokers have waited out the transaction.
    assert await asyncio.wait_for(line.found(), 20) == []
    assert len(await line.found(isolation="read_uncommitted")) == 20
    assert (await line.committed())[0] == 0
    async with line.life() as life:
        await life.until(lambda: life.stats.records_out == 20)
        await life.stop()
    assert keys(await line.found()) == list(range(20))
    assert len(await line.found(isolation="read_uncommitted")) == 40


async def test_record_that_stops_the_pipeline(make_line: MakeLine) -> None:
    """What comes before a record that stops the pipeline is committed, and what comes behind is not written."""
    line = make_line("inflate", **LONG)
    await line.send([*records(20), (0, b"20", b"file:///etc/passwd", [("large-message", b"true")], STAMP)])
    async with line.life() as life:
        with pytest.raises(RecordError, match="offset 20"):
            await asyncio.wait_for(asyncio.shield(life.task), 30)
    assert keys(await line.found()) == list(range(20))
    assert await line.committed() == (20, "")


async def test_dead_letters_are_in_the_transaction(make_line: MakeLine, make_topic: MakeTopic) -> None:
    """A dead letter is committed with the records around it, or aborted with them."""
    dead = make_topic(1, **FOREVER)
    tolerance = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": dead}
    line = make_line("inflate", **LONG, **tolerance)
    forged: Sent = (0, b"20", b"file:///etc/passwd", [("large-message", b"true")], STAMP)
    await line.send([*records(20), forged, *records(5, start=21)])
    async with line.life() as life:
        await life.until(lambda: life.stats.records_out == 26)
    assert await line.found(dead) == await line.found() == []
    assert keys(await line.found(dead, "read_uncommitted")) == [20]
    async with line.life() as life:
        await life.until(lambda: life.stats.records_out == 26)
        await life.stop()
    assert life.stats.transactions == 1
    assert keys(await line.found(dead)) == [20]
    assert keys(await line.found()) == [*range(20), *range(21, 26)]


async def test_offsets_alone(make_line: MakeLine) -> None:
    """Where a rule drops what was read, and nothing is written, the offset is committed all the same."""
    few = {"max.pending.chunked.message": 1, "auto.ack.oldest.chunked.message.on.queue.full": True}
    line = make_line("assemble", **few, **{"transaction.boundary.interval.ms": 20})
    await line.send([chunks_of(uuid)[0] for uuid in ("a", "b", "c")])
    async with line.life() as life:
        await life.until(lambda: life.stats.evicted_messages == 2)
        await life.until(lambda: life.stats.transactions >= 1 and life.flow.report.pending_messages == 1)
        await life.until(lambda: all(at[1] == 2 for at in life.flow.report.positions.values()))
        await life.stop()
    offset, _ = await line.committed()
    assert offset == 2
    assert await line.found(isolation="read_uncommitted") == []


async def test_chunks_and_what_stands_beside_the_offset(make_line: MakeLine) -> None:
    """What was assembled above a message that is pending is not delivered again by the next flow, nor is that lost."""
    line = make_line("assemble", **{"transaction.boundary.interval.ms": 20})
    first, *rest = chunks_of("a")
    await line.send([first, *records(10)])
    async with line.life() as life:
        await life.until(lambda: life.stats.commits > 0 and life.stats.records_out == 10)
        await life.stop()
    assert await line.committed() == (0, "wideload:delivered=11\0")
    await line.send(rest)
    async with line.life() as life:
        await life.until(lambda: life.stats.records_out == 1)
        await life.stop()
    assert [record.key for record in await line.found()] == [*(b"%d" % number for number in range(10)), b"a"]
    assert await line.committed() == (11 + len(rest), "")


async def test_split_in_a_transaction(make_line: MakeLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that the sink refuses is split in its transaction: each record is there once, in order."""
    monkeypatch.setattr(topic_watcher, "_LOOK_S", 60.0)  # the batch goes before the lower limit is followed
    line = make_line(**LONG)
    plan = await plan_pipeline(line.settings.client, line.pipeline)
    await alter_configs(line.broker, line.sink, {**FOREVER, "max.message.bytes": "20000"})
    await line.send(records(300, size=1_000))
    async with line.life(plan) as life:
        await life.until(lambda: life.stats.records_out == 300)
        await life.stop()
    assert life.stats.batches.batch_split_total > 0
    assert life.stats.transactions == 1
    assert keys(await line.found()) == list(range(300))


@pytest.mark.matrix
async def test_other_producer_fences(make_line: MakeLine) -> None:
    """A flow whose transactional id another producer takes writes no more, and ends so that it may begin again."""
    line = make_line(**LONG)
    await line.send(records(5))
    async with line.life() as life:
        await life.until(lambda: life.stats.records_out == 5)
        async with AIOKafkaProducer(bootstrap_servers=line.broker, transactional_id=line.id):
            await line.send(records(5, start=5))
            with pytest.raises(ClusterError, match=r"another producer has the transactional\.id now") as caught:
                await asyncio.wait_for(asyncio.shield(life.task), 30)
    assert caught.value.retriable
    assert await line.found() == []
    async with line.life() as life:
        await life.until(lambda: life.stats.records_out == 10)
        await life.stop()
    assert keys(await line.found()) == list(range(10))


async def test_nothing_is_read_before_others_have_ended(make_line: MakeLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flow begins behind what another producer commits just before its id is taken, wherever the group was before."""
    line = make_line(**{"transaction.boundary.interval.ms": 20})
    await line.send(records(10))
    place = TopicPartition(line.source, 0)
    assign = ExactlyOnce.assign
    async with AIOKafkaProducer(bootstrap_servers=line.broker, transactional_id=line.id) as former:
        for offset in range(4):
            await former.begin_transaction()
            await former.send_and_wait(line.sink, b"x", b"%d" % offset, partition=0)
            await former.send_offsets_to_transaction({place: (offset + 1, "")}, line.pipeline.group_id)
            if offset < 3:
                await former.commit_transaction()

        async def late(delivery: ExactlyOnce, lanes: Sequence[Lane]) -> None:
            # The client has begun to read behind the third; now the fourth comes.
            async with asyncio.timeout(20):
                while delivery._parts.source.position(place) is None:  # noqa: ASYNC110  # known to the client alone
                    await asyncio.sleep(0.01)
            await former.commit_transaction()
            await assign(delivery, lanes)

        monkeypatch.setattr(ExactlyOnce, "assign", late)
        async with line.life() as life:
            await life.until(lambda: life.stats.records_out >= 6)
            await life.stop()
    assert keys(await line.found()) == list(range(10))


async def test_transaction_that_brokers_give_up(make_line: MakeLine) -> None:
    """A transaction over its time-out, which brokers abort, ends the flow, which may begin again; nothing is twice."""
    line = make_line(**LONG)
    guarantee = dataclasses.replace(line.pipeline.guarantee, timeout_ms=1_000)  # the settings would refuse it
    line.pipeline = dataclasses.replace(line.pipeline, guarantee=guarantee)
    await line.send(records(5))
    async with line.life() as life:
        await life.until(lambda: life.stats.records_out == 5)
        assert await line.found() == []  # once the brokers have aborted it
        await line.send(records(5, start=5))
        with pytest.raises(ClusterError, match=r"took longer than producer\.transaction\.timeout\.ms") as caught:
            await asyncio.wait_for(asyncio.shield(life.task), 30)
    assert caught.value.retriable
    async with line.life() as life:
        await life.until(lambda: life.stats.records_out == 10)
        await life.stop()
    assert keys(await line.found()) == list(range(10))


@pytest.mark.parametrize("former", [{"generation": 10_000}, {"id": "somebody"}], ids=["generation", "member"])
async def test_offsets_of_a_former_owner(
    make_line: MakeLine, monkeypatch: pytest.MonkeyPatch, former: dict[str, Any]
) -> None:
    """The group refuses them, and the flow ends, which may begin again; the next owner aborts, and nothing is twice."""
    line = make_line(**EARLY)
    await line.send(records(5))
    with monkeypatch.context() as patch:
        assigned = GroupConsumer.on_partitions_assigned

        async def late(consumer: GroupConsumer, partitions: set[TopicPartition]) -> None:
            await assigned(consumer, partitions)
            consumer.member = consumer.member._replace(**former)

        patch.setattr(GroupConsumer, "on_partitions_assigned", late)
        async with line.life() as life:
            with pytest.raises(ClusterError, match="the group has given the partitions to another member") as caught:
                await asyncio.wait_for(asyncio.shield(life.task), 30)
    assert caught.value.retriable
    async with line.life() as life:
        await life.until(lambda: life.stats.transactions > 0 and life.stats.records_out == 5)
        await life.stop()
    assert keys(await line.found()) == list(range(5))


async def test_time_out_over_that_of_the_brokers_is_refused(make_line: MakeLine) -> None:
    """Where brokers allow no transaction of that length, nothing is read, and the sentence says how long one may be."""
    line = make_line(**{"producer.transaction.timeout.ms": HOUR})
    with pytest.raises(ConfigurationError, match=r"transaction\.max\.timeout\.ms of the brokers, which is 900,000"):
        await plan_pipeline(line.settings.client, line.pipeline)


def end(life: Life) -> int:
    """The offset that is committed of partition 0, as the flow knows it."""
    return max((at[1] or 0 for at in life.flow.report.positions.values()), default=0)


def chunks_of(uuid: str) -> list[Sent]:
    """The chunks of a message of three."""
    record = Record(uuid.encode(), uuid.encode() * 2_500, (), STAMP)
    chunks = Chunking(1_300).split(record, uuid)
    return [(0, chunk.key, chunk.value, list(chunk.headers), STAMP) for chunk in chunks]
