"""Exactly once where the cluster, or the group, is in the way: what is told, what goes on, and what is left behind."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.errors import TopicAuthorizationFailedError
from aiokafka.producer.sender import Sender

from app.cluster import coordinator
from app.cluster.preflight import plan_pipeline
from app.kafka.clients import ClusterError, admin
from app.kafka.consumer import GroupConsumer
from app.kafka.topics import topics
from app.local.broker import EmbeddedBroker
from app.pipeline import transaction
from app.pipeline.exactly_once import ExactlyOnce
from app.pipeline.lane import Lane
from app.pipeline.learned_limits import UnfitError
from app.pipeline.offset_tracker import OffsetTracker
from tests.integration.line import LONG, Life, Line, MakeLine, keys, records
from transforms.errors import ConfigurationError, RecordUnfitError


def delivery_of(life: Life) -> ExactlyOnce:
    """The delivery of a flow."""
    assert isinstance(life.flow._delivery, ExactlyOnce)
    return life.flow._delivery


def senders() -> int:
    """Transactional producers that run in this event loop, whoever knows of them."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return names.count("Sender._sender_routine")


async def test_new_group_waits_for_its_producers(make_line: MakeLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that has committed nothing waits for its coordinator beyond the time of a poll; that is no failure."""
    line = make_line()
    await line.send(records(5))
    may, assign = asyncio.Event(), ExactlyOnce.assign

    async def late(delivery: ExactlyOnce, lanes: Sequence[Lane]) -> None:
        await may.wait()
        await assign(delivery, lanes)

    monkeypatch.setattr(ExactlyOnce, "assign", late)
    async with line.life() as life:
        consumer = life.flow._consumer
        consumer._membership_s = 0.0  # a poll is due each time
        place = TopicPartition(line.source, 0)
        await life.until(lambda: consumer.consumer._fetcher is not None)
        await life.until(lambda: place in consumer.consumer._fetcher._records)  # that there is no offset
        await life.until(lambda: place not in consumer.consumer._fetcher._records)
        may.set()
        await life.until(lambda: life.stats.records_out == 5)
        await life.stop()
    assert keys(await line.found()) == list(range(5))


async def test_rebalance_upon_rebalance_leaves_no_producer(make_line: MakeLine) -> None:
    """A producer that is being stopped is stopped to the end, though the group moves on again and again meanwhile."""
    line = make_line(**LONG)
    await line.send(records(5))
    async with line.life() as life:
        await life.until(lambda: life.stats.records_out == 5)
        delivery = delivery_of(life)
        (each,) = delivery._of.values()
        assert senders() == 1
        giving_up = asyncio.create_task(delivery.assign([]))
        while not giving_up.done():
            await asyncio.sleep(0)
            giving_up.cancel()
        await life.until(lambda: senders() == 0)
        assert each._producer.client not in life.flow._brokers._clients
    assert await asyncio.wait_for(line.found(), 20) == []  # it was aborted, not left to its time-out


async def test_producer_that_does_not_start_is_let_go(make_line: MakeLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer whose partition goes before it has started is stopped, and watched no more."""
    line = make_line()
    await line.send(records(5))
    async with line.life() as life:
        await life.until(lambda: life.stats.transactions == 1)
        (each,) = delivery_of(life)._of.values()
        await life.until(lambda: each.idle)
        watched = len(life.flow._brokers._clients)
        starting = asyncio.Event()

        async def never(each: transaction.Transaction) -> None:
            starting.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patched:
            patched.setattr(transaction.Transaction, "start", never)
            other = Lane(TopicPartition(line.source, 1), 0)
            assigning = asyncio.create_task(delivery_of(life).assign([*life.flow._lanes, other]))
            await asyncio.wait_for(starting.wait(), 20)
            assert len(life.flow._brokers._clients) == watched + 1
            assigning.cancel()
            await asyncio.gather(assigning, return_exceptions=True)
        await life.until(lambda: len(life.flow._brokers._clients) == watched)
        await life.stop()


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
async def test_stop_while_a_start_is_looked_up(
    make_line: MakeLine, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    """A flow that is to stop does not wait for brokers that are asked where a partition begins, and do not answer."""
    line = make_line(**{"processing.guarantee": guarantee})
    await line.send(records(5))
    asked = asyncio.Event()

    async def never(*_: object) -> tuple[int, int]:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(GroupConsumer, "bounds", never)
    async with line.life() as life:
        await life.until(asked.is_set)
        await life.stop()


async def test_assignment_at_the_end_of_a_flow(make_line: MakeLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flow that has ended, and is given partitions while it leaves the group, takes no transactional id any more."""
    line = make_line()
    await line.send(records(5))
    stop = GroupConsumer.stop
    async with line.life() as life:
        await life.until(lambda: life.stats.transactions == 1)
        looked_up = life.flow._delivery.offsets._looking_up

        async def while_the_group_moves(consumer: GroupConsumer) -> None:
            await life.flow.on_partitions_assigned({TopicPartition(line.source, 0)})
            await stop(consumer)

        monkeypatch.setattr(GroupConsumer, "stop", while_the_group_moves)
        await life.stop()
        assert life.flow._delivery.offsets._looking_up is looked_up
        assert senders() == 0


@pytest.mark.parametrize("more", [True, False], ids=["more is written", "it is to end"])
async def test_transaction_that_has_failed(make_line: MakeLine, more: bool) -> None:  # noqa: FBT001
    """Where a transaction has failed unseen, what is to be done with it fails so that the flow may begin again."""
    line = make_line(**LONG)
    await line.send(records(5))
    async with line.life() as life:
        await life.until(lambda: life.stats.records_out == 5)
        (each,) = delivery_of(life)._of.values()
        each._producer._txn_manager.error_transaction(TopicAuthorizationFailedError(line.sink))
        if more:
            await line.send(records(1, start=5))
        else:
            each.end()
        with pytest.raises(ClusterError, match="IllegalOperation") as caught:
            await asyncio.wait_for(asyncio.shield(life.task), 30)
    assert caught.value.retriable
    async with line.life() as life:
        await life.until(lambda: life.stats.records_out == 5 + more)
        await life.stop()
    assert keys(await line.found()) == list(range(5 + more))


async def test_transaction_that_does_not_end(make_line: MakeLine) -> None:
    """A transaction that no coordinator ends in its time ends the flow, which says so, and may begin again."""
    line = make_line(**LONG)
    guarantee = dataclasses.replace(line.pipeline.guarantee, interval_ms=50, timeout_ms=1_000)
    line.pipeline = dataclasses.replace(line.pipeline, guarantee=guarantee)
    async with line.life() as life:
        await life.until(lambda: life.flow._delivery.offsets.may_admit)
        (each,) = delivery_of(life)._of.values()
        each._producer.commit_transaction = asyncio.Event().wait
        await line.send(records(5))
        with pytest.raises(ClusterError, match=r"not ended in the 1 s of producer\.transaction\.timeout\.ms") as caught:
            await asyncio.wait_for(asyncio.shield(life.task), 30)
    assert caught.value.retriable
    assert await asyncio.wait_for(line.found(), 20) == []


async def test_refused_record_of_a_partition_that_has_gone(make_line: MakeLine) -> None:
    """A record that the sink refuses, of a partition that is another worker's by now, ends the flow as any other."""
    line = make_line()
    async with line.life() as life:
        await life.until(lambda: life.flow._delivery.offsets.may_admit)
        error = UnfitError(OffsetTracker(0), 0, RecordUnfitError(line.sink, "INVALID_TIMESTAMP"))
        life.flow._termination.fail(error)
        with pytest.raises(UnfitError) as caught:
            await asyncio.wait_for(asyncio.shield(life.task), 30)
    assert caught.value is error
    assert error.partition is None


async def test_partition_that_comes_back_while_its_start_is_looked_up(
    make_line: MakeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up that a rebalance has overtaken commits nothing: what others have committed meanwhile stays."""
    line = make_line(**{"consumer.auto.offset.reset": "latest"})
    await line.send(records(5))
    place = TopicPartition(line.source, 0)
    bounds = GroupConsumer.bounds
    overtaken: list[int] = []

    async with line.life() as life:

        async def slow(consumer: GroupConsumer, partition: TopicPartition) -> tuple[int, int]:
            found = await bounds(consumer, partition)
            if not overtaken:
                # As after two rebalances: the partition is here again, another worker has had it.
                overtaken.append(1)
                life.flow._lanes.discard([place])
                life.flow._lanes.open(place, 0)
                (lane,) = life.flow._lanes
                delivery_of(life)._of[place].take(lane)
                await consumer.commit({place: (3, "")})
            return found

        monkeypatch.setattr(GroupConsumer, "bounds", slow)
        await life.until(lambda: life.stats.records_out == 2)
        await life.stop()
    assert keys(await line.found()) == [3, 4]


async def test_no_coordinator_for_a_producer(make_line: MakeLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that no coordinator lets begin ends the flow in its time, with a reason, and leaves nothing behind."""
    monkeypatch.setattr(transaction, "_START_S", 0.5)
    monkeypatch.setattr(Sender, "_do_init_pid", lambda *_: asyncio.Event().wait())
    line = make_line()
    async with line.life() as life:
        told = r"starting a transactional producer: .* no coordinator in 0\.5 s; .* transaction\.state\.log\.min\.isr"
        with pytest.raises(ClusterError, match=told) as caught:
            await asyncio.wait_for(asyncio.shield(life.task), 30)
        await asyncio.sleep(0)
        assert len(life.flow._brokers._clients) == 1, "the consumer's"
    assert caught.value.retriable


async def test_fewer_brokers_than_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer brokers than the log of transactions has replicas are told at start, with the properties to lower."""
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
