"""The transactions of a lane: what each record costs that goes through them, and when one ends before its time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, ProducerFenced

from app.cluster.preflight import Plan
from app.config.parsing import parse
from app.kafka.batches.bounds import Bounds
from app.kafka.broker_health import BrokerHealth
from app.kafka.flow_clients import FlowClients
from app.kafka.producer import ProducerControls
from app.kafka.source_batch import ReadRecord
from app.kafka.topics import Topic
from app.kafka.troubles import Troubles
from app.kafka.writer import Writer
from app.pipeline.budget import Budget, Share
from app.pipeline.delivery import ExactlyOnce
from app.pipeline.lane import Lane, Skipped, Working
from app.pipeline.lanes import Lanes
from app.pipeline.offset_reset import OffsetReset
from app.pipeline.pace import Pace
from app.pipeline.parts import Parts
from app.pipeline.stats import PipelineStats
from app.pipeline.termination import DefectError, Termination
from app.pipeline.transaction import Transaction
from transforms.record import Record

RECORD = Record(b"k", b"v", (), 1)


@pytest.fixture(autouse=True)
def without_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a transaction begin without a coordinator."""
    monkeypatch.setattr(ProducerControls, "begin_transaction", lambda _: None)


def parts_of(
    boundary: str = "poll",
    carry_epochs: Callable[[AIOKafkaClient], None] = lambda _: None,
    caught_up: Callable[[TopicPartition], bool] = lambda _: True,
) -> Parts:
    """Where a pipeline without lanes writes, whose consumer lets clients carry epochs so."""
    table = {"topics": ["raw"], "output.topic": "orders", "transforms": ["assemble"]}
    guarantee: dict[str, object] = {"processing.guarantee": "exactly_once", "transaction.boundary.type": boundary}
    guarantee["transaction.boundary.interval.ms"] = 59_000  # none ends by its age, however busy the machine is
    settings = parse({"bootstrap.servers": "nowhere:1", "pipeline": {"p": {**table, **guarantee}}})
    plan = Plan("p", (), Topic("orders", 1, 1_000_000, "delete"), None)
    brokers, termination = BrokerHealth(["orders"], 1.0, Troubles("p")), Termination("p", lambda: None)
    (pipeline,) = settings.pipelines
    clients = FlowClients(settings.client, pipeline)
    clients._source = source = cast(Any, SimpleNamespace(carry_epochs=carry_epochs, caught_up=caught_up))
    share = Share(Budget(100_000))
    lanes = Lanes(share, None)
    reset = OffsetReset(source, pipeline, lanes, stats=PipelineStats(), renewed=())
    return Parts(pipeline, plan, clients, source, brokers, lanes, reset, share, PipelineStats(), termination, time.time)


@asynccontextmanager
async def made(
    boundary: str = "poll",
    *,
    pace: Pace | None = None,
    caught_up: Callable[[TopicPartition], bool] = lambda _: True,
) -> AsyncIterator[tuple[Transaction, Lane]]:
    """The transaction of a lane that no broker hears of."""
    parts = parts_of(boundary, caught_up=caught_up)
    parts.lanes.open(TopicPartition("raw", 0), 0)
    (lane,) = parts.lanes
    pace = pace or Pace(per_second=1_000, at_once=10, under_way=1)
    transaction = Transaction(parts, lane, Bounds(), pace)
    try:
        yield transaction, lane
    finally:
        transaction.discard()
        await transaction.output.writer.stop()


async def test_what_it_holds_is_given_back_once() -> None:
    """When it is given up, with what waits; a batch that becomes durable later gives nothing back again."""
    async with made() as (transaction, _):
        share = transaction._parts.share
        share.take(7)
        transaction.append(transaction.lane, RECORD, 0, 1, 0)
        transaction.append(transaction.lane, RECORD, 1, 2, 0)
        transaction._give(1)
        assert share.used == 6
        transaction.discard()
        assert share.used == 4
        transaction._give(2)
        assert share.used == 4


@contextmanager
def ends(transaction: Transaction) -> Iterator[list[float]]:
    """When the transaction was asked to end."""
    times: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction, "end", lambda: times.append(asyncio.get_running_loop().time()))
        yield times


async def test_it_ends_when_nothing_more_is_at_hand() -> None:
    """As soon as what is written goes out; without records there is nothing to end."""
    async with made() as (transaction, _):
        with ends(transaction) as ended:
            transaction.flush()
            assert ended == []
            transaction.append(transaction.lane, RECORD, 0, 1, 0)
            assert ended == []
            transaction.flush()
        assert len(ended) == 1


@pytest.mark.parametrize("what", ["read", "slot", "behind", "interval", "offsets"])
async def test_it_waits_for_what_is_at_hand(what: str) -> None:
    """For what waits to be admitted, what a stage works on, what the leader has; or if age and size alone count.

    An offset alone has no reader that waits for it.
    """
    boundary = "interval" if what == "interval" else "poll"
    async with made(boundary, caught_up=lambda _: what != "behind") as (transaction, lane):
        with ends(transaction) as ended:
            if what == "offsets":
                transaction.write(lane, Skipped(ReadRecord("raw", 0, 0, 1)))
            else:
                transaction.append(transaction.lane, RECORD, 0, 1, 0)
            lane.read = cast(Any, what == "read")
            if what == "slot":
                lane.items.append(Working(ReadRecord("raw", 0, 1, 1), 1))
            transaction.flush()
        assert ended == []


async def test_it_waits_for_its_turn_and_looks_again() -> None:
    """What has come while the pace let it wait is waited for, too; then it asks anew."""
    pace = Pace(per_second=100, at_once=1, under_way=1)
    async with made(pace=pace) as (transaction, lane):
        with ends(transaction) as ended:
            transaction.append(transaction.lane, RECORD, 0, 1, 0)
            pace.ask(lambda: True)
            transaction.flush()
            lane.read = cast(Any, True)
            asked = asyncio.Event()
            pace.ask(lambda: bool(asked.set()))  # type: ignore[func-returns-value]
            await asyncio.wait_for(asked.wait(), 10)
            assert ended == []
            lane.read = cast(Any, False)
            transaction.flush()
        assert len(ended) == 1


async def test_nothing_is_committed_behind_a_record_that_was_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for the next transaction is not in the lane any more: those behind a gap must not be committed."""
    commits: list[object] = []

    async def commit(offsets: object) -> None:
        commits.append(offsets)

    def fail(*_: object) -> None:
        raise ValueError("a defect")

    async with made() as (transaction, _):
        monkeypatch.setattr(transaction.output.writer, "flush", partial(asyncio.sleep, 0))
        monkeypatch.setattr(transaction.output.writer, "commit", commit)
        transaction.append(transaction.lane, RECORD, 0, 1, 0)
        transaction.end()
        monkeypatch.setattr(transaction.output, "append", fail)
        for offset in (1, 2):
            transaction.append(transaction.lane, RECORD, offset, 1, 0)
        await transaction.finish()
        assert isinstance(transaction._parts.termination.error, DefectError)
        monkeypatch.undo()
        assert (len(commits), transaction.idle) == (1, False)


@pytest.mark.parametrize(
    ("failure", "aborts"), [(None, True), (KafkaError("it broke"), True), (ProducerFenced(), False)]
)
async def test_a_fenced_producer_aborts_nothing(
    monkeypatch: pytest.MonkeyPatch,
    failure: KafkaError | None,
    aborts: bool,  # noqa: FBT001
) -> None:
    """Its transaction is over; and the brokers of a producer that stops are not watched any more."""
    aborted: list[bool] = []
    forgotten: list[AIOKafkaClient] = []

    async def abort(*_: object) -> None:
        aborted.append(True)

    monkeypatch.setattr(ProducerControls, "abort_transaction", abort)
    monkeypatch.setattr(BrokerHealth, "forget", lambda _, client: forgotten.append(client))
    async with made() as (transaction, _):
        writer = transaction.output.writer
        writer.failure = failure
        await transaction.stop()
        assert (aborted, forgotten) == ([True] * aborts, [writer.client])


async def test_offsets_in_transactions_carry_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer's epochs go with what the producer of each lane commits, from its start on."""
    carried: list[object] = []
    started: list[object] = []

    async def start(producer: Writer) -> None:
        assert producer.client in carried
        started.append(producer.client)

    monkeypatch.setattr(Writer, "start", start)
    parts = parts_of(carry_epochs=carried.append)
    for number in range(2):
        parts.lanes.open(TopicPartition("raw", number), 0)
    delivery = ExactlyOnce(parts)
    try:
        await delivery.assign([*parts.lanes])
        assert len(started) == 2
    finally:
        await delivery.stop()
