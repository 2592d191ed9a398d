"""Exactly once, a flow at a time, against a real broker: what a transaction has, when it ends, and what aborts it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic

from app.cli import main
from app.cluster import coordinator
from app.cluster.preflight import plan_pipeline
from app.kafka.clients import ClusterError, admin
from app.kafka.consumer import GroupConsumer
from app.kafka.topics import topics
from app.local.broker import EmbeddedBroker
from app.pipeline import topic_watcher
from app.pipeline.delivery import ExactlyOnce
from app.pipeline.lane import Lane
from app.pipeline.termination import RecordError
from tests.integration.limits import alter_configs
from tests.integration.line import EARLY, LONG, STAMP, Life, Line, MakeLine, keys, records
from tests.integration.topics import Sent
from tests.integration.way import MakeTopic
from tests.integration.worker_process import toml
from transforms.chunk import Chunking
from transforms.errors import ConfigurationError
from transforms.record import Record

HOUR = 3_600_000
FOREVER = {"retention.ms": "-1"}


async def test_transaction_ends_with_all_that_is_at_hand(make_line: MakeLine) -> None:
    """A record that comes alone is committed long before the interval is over; so is one that a stage works on.

    The mark of a transaction, with which the source may end, is no record, and is not waited for.
    """
    line = make_line(**EARLY, **{"large.message.threshold.bytes": 1_000})
    async with (
        line.life() as life,
        AIOKafkaProducer(bootstrap_servers=line.broker, transactional_id=f"{line.id}-source") as producer,
    ):
        for number in range(3):
            async with producer.transaction():
                for part, size in enumerate((10, 2_000)):
                    await producer.send(line.source, b"x" * size, b"%d" % (2 * number + part), partition=0)
            await life.until(lambda sent=2 * number + 2: life.stats.records_out == sent)  # type: ignore[misc]
            await life.until(lambda sent=number + 1: life.stats.transactions >= sent)  # type: ignore[misc]
            assert keys(await line.found()) == list(range(2 * number + 2))
            await producer.begin_transaction()
            await producer.send_and_wait(line.source, b"x", b"-1", partition=0)
            await producer.abort_transaction()
        await life.stop()
    assert life.stats.offloaded_records == 3


@pytest.mark.matrix
async def test_transactions_grow_with_the_flow(make_line: MakeLine) -> None:
    """Records that come one after the other, each in its own request, share transactions; none is lost or twice."""
    line = make_line(**EARLY)
    async with line.life() as life, AIOKafkaProducer(bootstrap_servers=line.broker) as producer:
        for number in range(400):
            await producer.send_and_wait(line.source, b"x" * 1_000, b"%d" % number, partition=0)
        await life.until(lambda: end(life) == 400)
        await life.stop()
    assert 1 < life.stats.transactions < 200
    assert keys(await line.found()) == list(range(400))
    assert await line.committed() == (400, "")


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


async def test_failure_aborts_and_a_stop_commits(make_line: MakeLine) -> None:
    """Records and offset of a transaction that does not end stay out of sight, and come once with the next flow.

    A flow that is asked to stop commits what is open; nothing is done again.
    """
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
        assert life.stats.transactions == 0
        await life.stop()
    assert keys(await line.found()) == list(range(20))
    assert await line.committed() == (20, "")
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
            await ended(life, r"another producer has the transactional\.id now")
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
        await ended(life, r"took longer than producer\.transaction\.timeout\.ms")
    async with line.life() as life:
        await life.until(lambda: life.stats.records_out == 10)
        await life.stop()
    assert keys(await line.found()) == list(range(10))


async def test_offsets_of_a_former_owner(make_line: MakeLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group refuses them, and the flow ends, which may begin again; the next owner aborts, and nothing is twice."""
    line = make_line(**EARLY)
    await line.send(records(5))
    with monkeypatch.context() as patch:
        assigned = GroupConsumer.on_partitions_assigned

        async def late(consumer: GroupConsumer, partitions: set[TopicPartition]) -> None:
            await assigned(consumer, partitions)
            consumer.member = consumer.member._replace(generation=10_000)

        patch.setattr(GroupConsumer, "on_partitions_assigned", late)
        async with line.life() as life:
            await ended(life, "the group has assigned the partitions to another member")
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


async def ended(life: Life, told: str) -> None:
    """Waits until a flow has failed so that it may begin again, with this reason."""
    with pytest.raises(ClusterError, match=told) as caught:
        await asyncio.wait_for(asyncio.shield(life.task), 30)
    assert caught.value.retriable


def chunks_of(uuid: str) -> list[Sent]:
    """The chunks of a message of three."""
    record = Record(uuid.encode(), uuid.encode() * 2_500, (), STAMP)
    chunks = Chunking(1_300).split(record, uuid)
    return [(0, chunk.key, chunk.value, list(chunk.headers), STAMP) for chunk in chunks]


async def test_transaction_that_does_not_end(make_line: MakeLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that no coordinator ends in its time ends the flow, which says so, and may begin again."""
    line = make_line(**LONG)
    guarantee = dataclasses.replace(line.pipeline.guarantee, interval_ms=50, timeout_ms=1_000)
    line.pipeline = dataclasses.replace(line.pipeline, guarantee=guarantee)
    monkeypatch.setattr(AIOKafkaProducer, "commit_transaction", lambda _: asyncio.Event().wait())
    await line.send(records(5))
    async with line.life() as life:
        await ended(life, r"not ended in the 1 s of producer\.transaction\.timeout\.ms")
    assert await asyncio.wait_for(line.found(), 20) == []


async def test_fewer_brokers_than_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fewer brokers than the log of transactions has replicas are told at start, with the properties to lower.

    A replay of dead letters writes nothing then, unless it may write at least once.
    """
    monkeypatch.setattr(coordinator, "_PATIENCE_S", 1.0)
    with EmbeddedBroker({"transaction.state.log.replication.factor": "3"}) as broker:
        line = Line(broker.bootstrap_servers, tmp_path, "in", "out", "chunk", {})
        async with admin(line.settings.client) as connection:
            answer = await connection.create_topics([NewTopic(name, 1, 1) for name in (line.source, line.sink)])
            assert [code for _, code, *_ in answer.topic_errors] == [0, 0], answer
            async with asyncio.timeout(30):
                while len(await topics(connection, [line.source, line.sink])) < 2:  # noqa: ASYNC110  # nobody tells
                    await asyncio.sleep(0.05)
        with pytest.raises(ConfigurationError, match=r"lower that and transaction\.state\.log\.min\.isr"):
            await plan_pipeline(line.settings.client, line.pipeline)
        head = {"bootstrap.servers": broker.bootstrap_servers}
        letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": line.sink}
        pipeline = {"topics": [line.source], "output.topic": "other", "transforms": ["chunk"], **letters}
        (tmp_path / "c.toml").write_text(toml(head, {"p": pipeline}))
        command = ["dlq", "replay", "-c", str(tmp_path / "c.toml"), "--to", line.source, "--yes"]
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            await producer.send_and_wait(line.sink, b"v", b"k")
        for arguments, status in ([], 2), (["--processing-guarantee", "at_least_once"], 0):
            with pytest.raises(SystemExit) as ended:
                await asyncio.to_thread(main, [*command, *arguments])
            out, err = capsys.readouterr()
            assert (ended.value.code or 0, '"replayed": 1,' in out) == (status, status == 0), err
            if status:
                assert err.startswith(
                    'wideload: --processing-guarantee: found "exactly_once", and the brokers have had'
                )
                assert err.endswith(
                    "; or use --processing-guarantee at_least_once, with which records may be replayed twice\n"
                )


async def test_a_pause_ends_the_transaction(make_line: MakeLine) -> None:
    """With exactly once, what was written before the pause is seen by readers during it."""
    line = make_line(**LONG)
    async with line.life() as life:
        await line.send(records(3))
        await life.until(lambda: life.stats.records_out == 3)
        assert life.stats.transactions == 0
        life.flow.pause(paused=True)
        await life.until(lambda: life.stats.transactions == 1)
        assert (await line.committed())[0] == 3
        await line.send(records(2, start=3))
        life.flow.pause(paused=False)
        await life.until(lambda: life.stats.records_out == 5)
        await life.stop()
    assert keys(await line.found()) == [0, 1, 2, 3, 4]


async def test_what_was_read_ahead_is_read_again(make_line: MakeLine) -> None:
    """Records that waited for room when the pause came take no memory during it, and are not lost."""
    line = make_line(**EARLY, **{"consumer.max.poll.records": 1})
    await line.send(records(2_000, size=20_000))
    async with line.life() as life:
        await life.until(lambda: life.stats.records_in > 0)
        life.flow.pause(paused=True)
        await life.until(lambda: life.flow.paused and life.flow.report.in_flight_bytes == 0)
        assert life.flow.report.read_ahead_bytes == 0
        read = life.stats.records_in
        assert read < 2_000
        life.flow.pause(paused=False)
        await life.until(lambda: life.stats.records_out == 2_000)
        await life.stop()
    assert keys(await line.found()) == list(range(2_000))
