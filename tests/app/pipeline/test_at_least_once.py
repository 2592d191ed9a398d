"""The commits of at-least-once delivery: one after the other, whoever asks for them; and none past what is missing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException

from app.cluster.preflight import Plan
from app.config.parsing import parse
from app.kafka.broker_health import BrokerHealth
from app.kafka.clients import ClusterError
from app.kafka.flow_clients import FlowClients
from app.kafka.source_batch import ReadRecord
from app.kafka.topics import Topic
from app.kafka.troubles import Troubles
from app.pipeline.budget import Budget, Share
from app.pipeline.delivery import AtLeastOnce
from app.pipeline.lanes import Lanes
from app.pipeline.offset_reset import OffsetReset
from app.pipeline.parts import Parts
from app.pipeline.stats import PipelineStats
from app.pipeline.termination import Termination

PARTITION = TopicPartition("raw", 0)


class Bench:
    """The delivery of a pipeline with one lane, whose consumer commits when it is let.

    Attributes:
        committed: the offsets that the group has taken, in order.
        may: lets a commit through.
    """

    def __init__(self) -> None:
        table = {"topics": ["raw"], "output.topic": "orders", "transforms": ["offload"]}
        store = {"large.message.payload.store.class": "memory"}
        settings = parse({"bootstrap.servers": "nowhere:1", "pipeline": {"p": {**table, **store}}})
        plan = Plan("p", (), Topic("orders", 1, 1_000_000, "delete"), None)
        brokers, self.termination = BrokerHealth(["orders"], 1.0, Troubles("p")), Termination("p", lambda: None)
        (pipeline,), stats = settings.pipelines, PipelineStats()
        clients = FlowClients(settings.client, pipeline)
        share = Share(Budget(100_000))
        self.lanes = lanes = Lanes(share, None)
        lanes.open(PARTITION, 0)
        (self.lane,) = lanes
        self.committed: list[int] = []
        self.asked = 0
        self.may = asyncio.Event()
        clients._source = source = cast(Any, SimpleNamespace(commit=self._commit))
        reset = OffsetReset(source, pipeline, lanes, stats=stats, renewed=())
        self.delivery = AtLeastOnce(
            Parts(pipeline, plan, clients, source, brokers, lanes, reset, share, stats, self.termination, time.time)
        )

    async def _commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        self.asked += 1
        await self.may.wait()  # as if it were tried again
        self.committed.append(offsets[PARTITION][0])


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Reaches no broker."""
    made = Bench()
    yield made
    await made.delivery.stop()


async def test_an_older_commit_does_not_follow(bench: Bench) -> None:
    """A revocation commits while a regular commit is tried again: it waits for that, and its offset is the last."""
    tracker = bench.lane.tracked(0)
    tracker.released = 100
    regular = asyncio.create_task(bench.delivery.commit())
    await asyncio.sleep(0)
    tracker.released = 200
    last = asyncio.create_task(bench.delivery.commit())
    await asyncio.sleep(0)
    assert bench.asked == 1
    bench.may.set()
    await asyncio.gather(regular, last)
    assert bench.committed == [100, 200]


def batch(offset: int, rows: Callable[[], object]) -> Any:
    """A batch that does not go whole."""
    return SimpleNamespace(offset=offset, codec=0, batch=None, goes_whole=lambda *_: False, rows=rows, merged_from=0)


async def test_a_batch_that_cannot_be_read_ends_the_flow(bench: Bench) -> None:
    """Nothing behind it is admitted, and the commit does not pass it: the records are read again."""

    def unreadable() -> object:
        raise CorruptRecordException("broken")

    bench.lane.tracked(7)
    with pytest.raises(ClusterError, match="reading topic raw"):
        bench.delivery.forward(bench.lane, batch(7, unreadable), 10)
    bench.lane.committed, bench.lane.read_to = 7, 9
    assert bench.lane.to_commit() is None
    assert bench.lane.busy


async def test_an_error_of_another_partition_makes_no_gap(bench: Bench) -> None:
    """What leaves in the same turn as the record that ended the flow leaves in order: each batch and each record."""
    first, second = (ReadRecord("raw", 0, offset, 1, b"k", b"v") for offset in (7, 8))
    bench.termination.fail(ValueError("of another partition"))
    bench.delivery.forward(bench.lane, batch(7, lambda: [first]), 10)
    bench.delivery.append(bench.lane, second, 8, 10, 0)
    (outbox,) = bench.delivery._outboxes.values()
    assert outbox._filling is not None
    assert outbox._filling.load.offsets == [7, 8]
