"""Exactly once where the cluster, or the group, is in the way: what is told, what goes on, and what is left behind."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import TopicAuthorizationFailedError
from aiokafka.producer.sender import Sender
from aiokafka.protocol.metadata import MetadataRequest

from app.cli import main
from app.cluster import coordinator
from app.cluster.preflight import plan_pipeline
from app.kafka import transactions
from app.kafka.broker_health import BrokerHealth
from app.kafka.clients import ClusterError, admin
from app.kafka.consumer import GroupConsumer
from app.kafka.gate import Gate
from app.kafka.topics import topics
from app.local.broker import EmbeddedBroker
from app.pipeline.delivery import ExactlyOnce
from app.pipeline.lane import Lane
from app.pipeline.learned_limits import UnfitError
from app.pipeline.transaction import Transaction
from tests.app.pipeline.lanes import lane_of
from tests.integration.line import LONG, Line, MakeLine, keys, records
from tests.integration.worker_process import toml
from transforms.errors import ConfigurationError, RecordUnfitError


@pytest.fixture
def assigned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ExactlyOnce, list[Lane]]]:
    """Each delivery that was given lanes, with them, in the order of these calls."""
    calls: list[tuple[ExactlyOnce, list[Lane]]] = []
    assign = ExactlyOnce.assign

    async def noted(delivery: ExactlyOnce, lanes: Sequence[Lane]) -> None:
        calls.append((delivery, list(lanes)))
        await assign(delivery, lanes)

    monkeypatch.setattr(ExactlyOnce, "assign", noted)
    return calls


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Transaction]:
    """Those whose producers have started."""
    transactions: list[Transaction] = []
    start = Transaction.start

    async def noted(each: Transaction) -> None:
        await start(each)
        transactions.append(each)

    monkeypatch.setattr(Transaction, "start", noted)
    return transactions


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[AIOKafkaClient]:
    """The clients whose brokers are watched: that of the consumer, and of each producer that is there."""
    clients: list[AIOKafkaClient] = []
    watch, forget = BrokerHealth.watch, BrokerHealth.forget

    def begun(health: BrokerHealth, client: AIOKafkaClient, *others: Any) -> None:
        watch(health, client, *others)
        clients.append(client)

    def ended(health: BrokerHealth, client: AIOKafkaClient) -> None:
        forget(health, client)
        clients.remove(client)

    monkeypatch.setattr(BrokerHealth, "watch", begun)
    monkeypatch.setattr(BrokerHealth, "forget", ended)
    return clients


def senders() -> int:
    """Transactional producers that run in this event loop, whoever knows of them."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return names.count("Sender._sender_routine")


async def test_new_group_waits_for_its_producers(make_line: MakeLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that has committed nothing waits for its coordinator, and stays in its group meanwhile."""
    line = make_line()
    await line.send(records(5))
    may, kept = asyncio.Event(), asyncio.Event()
    assign, keep_membership = ExactlyOnce.assign, GroupConsumer.keep_membership

    async def late(delivery: ExactlyOnce, lanes: Sequence[Lane]) -> None:
        await may.wait()
        await assign(delivery, lanes)

    async def noted(consumer: GroupConsumer) -> None:
        await keep_membership(consumer)
        kept.set()

    monkeypatch.setattr(ExactlyOnce, "assign", late)
    monkeypatch.setattr(GroupConsumer, "keep_membership", noted)
    async with line.life() as life:
        await life.until(kept.is_set)
        may.set()
        await life.until(lambda: life.stats.records_out == 5)
        await life.stop()
    assert keys(await line.found()) == list(range(5))


async def test_rebalance_upon_rebalance_leaves_no_producer(
    make_line: MakeLine, assigned: list[tuple[ExactlyOnce, list[Lane]]], watched: list[AIOKafkaClient]
) -> None:
    """A producer that is being stopped is stopped to the end, though the group moves on again and again meanwhile."""
    line = make_line(**LONG)
    await line.send(records(5))
    async with line.life() as life:
        await life.until(lambda: life.stats.records_out == 5)
        ((delivery, _),) = assigned
        assert (senders(), len(watched)) == (1, 2)
        giving_up = asyncio.create_task(delivery.assign([]))
        while not giving_up.done():
            await asyncio.sleep(0)
            giving_up.cancel()
        await life.until(lambda: senders() == 0)
        assert len(watched) == 1, "the consumer's"
    assert await asyncio.wait_for(line.found(), 20) == []  # it was aborted, not left to its time-out


async def test_producer_that_does_not_start_is_let_go(
    make_line: MakeLine,
    monkeypatch: pytest.MonkeyPatch,
    assigned: list[tuple[ExactlyOnce, list[Lane]]],
    started: list[Transaction],
    watched: list[AIOKafkaClient],
) -> None:
    """A producer whose partition goes before it has started is stopped, and watched no more."""
    line = make_line()
    await line.send(records(5))
    async with line.life() as life:
        await life.until(lambda: life.stats.transactions == 1)
        ((delivery, lanes),), (each,) = assigned, started
        await life.until(lambda: each.idle)
        assert len(watched) == 2
        starting = asyncio.Event()

        async def never(each: Transaction) -> None:
            starting.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patched:
            patched.setattr(Transaction, "start", never)
            other = lane_of(1, 0, topic=line.source)
            assigning = asyncio.create_task(delivery.assign([*lanes, other]))
            await asyncio.wait_for(starting.wait(), 20)
            assert len(watched) == 3
            assigning.cancel()
            await asyncio.gather(assigning, return_exceptions=True)
        await life.until(lambda: len(watched) == 2)
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


async def test_assignment_at_the_end_of_a_flow(
    make_line: MakeLine, monkeypatch: pytest.MonkeyPatch, assigned: list[tuple[ExactlyOnce, list[Lane]]]
) -> None:
    """A flow that has ended, and is given partitions while it leaves the group, takes no transactional id any more."""
    line = make_line()
    await line.send(records(5))
    stop = GroupConsumer.stop
    async with line.life() as life:
        await life.until(lambda: life.stats.transactions == 1)

        async def while_the_group_moves(consumer: GroupConsumer) -> None:
            await life.flow.on_partitions_assigned({TopicPartition(line.source, 0)})
            await stop(consumer)

        monkeypatch.setattr(GroupConsumer, "stop", while_the_group_moves)
        await life.stop()
        assert (len(assigned), senders()) == (1, 0)


@pytest.mark.parametrize("more", [True, False], ids=["more is written", "it is to end"])
async def test_transaction_that_has_failed(
    make_line: MakeLine,
    started: list[Transaction],
    more: bool,  # noqa: FBT001
) -> None:
    """Where a transaction has failed unseen, what is to be done with it fails so that the flow may begin again."""
    line = make_line(**LONG)
    await line.send(records(5))
    async with line.life() as life:
        await life.until(lambda: life.stats.records_out == 5)
        (each,) = started
        cast(Any, each.output.writer).producer._txn_manager.error_transaction(TopicAuthorizationFailedError(line.sink))
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


async def test_transaction_that_does_not_end(make_line: MakeLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that no coordinator ends in its time ends the flow, which says so, and may begin again."""
    line = make_line(**LONG)
    guarantee = dataclasses.replace(line.pipeline.guarantee, interval_ms=50, timeout_ms=1_000)
    line.pipeline = dataclasses.replace(line.pipeline, guarantee=guarantee)
    monkeypatch.setattr(AIOKafkaProducer, "commit_transaction", lambda _: asyncio.Event().wait())
    await line.send(records(5))
    async with line.life() as life:
        with pytest.raises(ClusterError, match=r"not ended in the 1 s of producer\.transaction\.timeout\.ms") as caught:
            await asyncio.wait_for(asyncio.shield(life.task), 30)
    assert caught.value.retriable
    assert await asyncio.wait_for(line.found(), 20) == []


async def test_refused_record_of_a_partition_that_has_gone(make_line: MakeLine, started: list[Transaction]) -> None:
    """A record that the sink refuses, of a partition that is another worker's by now, ends the flow as any other."""
    line = make_line()
    async with line.life() as life:
        await life.until(lambda: bool(started))
        error = UnfitError(None, 0, RecordUnfitError(line.sink, "INVALID_TIMESTAMP"))
        life.flow._termination.fail(error)
        with pytest.raises(UnfitError) as caught:
            await asyncio.wait_for(asyncio.shield(life.task), 30)
    assert caught.value is error


@pytest.mark.parametrize("look_up", [1, 2])
async def test_partition_that_comes_back_while_its_start_is_looked_up(
    make_line: MakeLine, monkeypatch: pytest.MonkeyPatch, started: list[Transaction], look_up: int
) -> None:
    """A look-up that a rebalance has overtaken commits nothing: what others have committed meanwhile stays.

    Another worker has committed by the first look-up, or by the second, which belongs to the new assignment.
    """
    line = make_line(**{"consumer.auto.offset.reset": "latest"})
    await line.send(records(5))
    place = TopicPartition(line.source, 0)
    bounds = GroupConsumer.bounds
    overtaken: list[int] = []

    async with line.life() as life:

        async def slow(consumer: GroupConsumer, partition: TopicPartition) -> tuple[int, int]:
            found = await bounds(consumer, partition)
            overtaken.append(1)
            if len(overtaken) == 1:
                # As after two rebalances: the partition is here again, another worker has had it.
                life.flow._lanes.discard([place])
                life.flow._lanes.open(place, 0)
                (lane,) = life.flow._lanes
                started[0].lane = lane
            if len(overtaken) == look_up:
                await consumer.commit({place: (3, "")})
            return found

        monkeypatch.setattr(GroupConsumer, "bounds", slow)
        await life.until(lambda: life.stats.records_out == 2)
        await life.stop()
    assert keys(await line.found()) == [3, 4]


async def test_no_coordinator_for_a_producer(
    make_line: MakeLine, monkeypatch: pytest.MonkeyPatch, watched: list[AIOKafkaClient]
) -> None:
    """A producer that no coordinator lets begin ends the flow in its time, with a reason, and leaves nothing behind."""
    monkeypatch.setattr(transactions, "_START_S", 0.5)
    monkeypatch.setattr(Sender, "_do_init_pid", lambda *_: asyncio.Event().wait())
    line = make_line()
    async with line.life() as life:
        told = r"starting a transactional producer: .* no coordinator in 0\.5 s; .* transaction\.state\.log\.min\.isr"
        with pytest.raises(ClusterError, match=told) as caught:
            await asyncio.wait_for(asyncio.shield(life.task), 30)
        await asyncio.sleep(0)
        assert len(watched) == 1, "the consumer's"
    assert caught.value.retriable


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
                    "; or give --processing-guarantee at_least_once, with which letters may be replayed twice\n"
                )


async def test_start_that_is_cancelled_leaves_no_connection(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose start is cancelled while a broker answers is closed with all its connections."""
    opened: list[AIOKafkaConnection] = []
    asked = asyncio.Event()
    send = AIOKafkaConnection.send

    def noted(connection: AIOKafkaConnection, request: Any, *args: Any, **options: Any) -> Any:
        if connection not in opened:
            opened.append(connection)
        if isinstance(request, MetadataRequest):
            asked.set()
        return send(connection, request, *args, **options)

    monkeypatch.setattr(AIOKafkaConnection, "send", noted)
    client = AIOKafkaClient(bootstrap_servers=broker)
    Gate.of(client)
    starting = asyncio.create_task(client.bootstrap())
    await asyncio.wait_for(asked.wait(), 30)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await client.close()
    assert len(opened) == 1
    assert not opened[0].connected()
