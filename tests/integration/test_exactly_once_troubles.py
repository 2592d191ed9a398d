"""Exactly once where the cluster, or the group, is in the way: what is told, what goes on, and what is left behind."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic
from aiokafka.errors import TopicAuthorizationFailedError

from app.cli import main
from app.cluster import coordinator
from app.cluster.preflight import plan_pipeline
from app.kafka.clients import ClusterError, admin
from app.kafka.topics import topics
from app.local.broker import EmbeddedBroker
from app.pipeline.transaction import Transaction
from tests.integration.line import LONG, Line, MakeLine, keys, records
from tests.integration.worker_process import toml
from transforms.errors import ConfigurationError


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
