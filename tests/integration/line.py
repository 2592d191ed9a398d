"""A pipeline of a test that delivers exactly once: two topics, and one flow of it at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, TopicPartition

from app.cluster.preflight import Plan, plan_pipeline
from app.config.parsing import parse
from app.config.settings import PipelineSettings, Settings
from app.kafka.clients import admin
from app.kafka.flow_clients import FlowClients
from app.kafka.troubles import Troubles
from app.pipeline.budget import Budget
from app.pipeline.chain import build
from app.pipeline.flow import Flow
from app.pipeline.stats import PipelineStats
from stores.registry import open_store
from tests.app.pipeline.runtimes import running_on
from tests.integration.topics import Found, Sent, read_all, send
from transforms.identifiers import transactional_id

STAMP = 1_700_000_000_000
_STABLE_S = 30.0
# A transaction ends because all that is at hand is in it, or with the flow.
EARLY = {"transaction.boundary.interval.ms": 800_000, "producer.transaction.timeout.ms": 900_000}
# Nothing but the end of the flow ends a transaction.
LONG = {**EARLY, "transaction.boundary.type": "interval"}


class Life:
    """One flow of a pipeline, its stats, and what its budget holds."""

    def __init__(self, flow: Flow, stats: PipelineStats, budget: Budget, task: asyncio.Task[None]) -> None:
        self.flow = flow
        self.stats = stats
        self.budget = budget
        self.task = task

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for something; fails with what the flow has failed with."""
        async with asyncio.timeout(30):
            while not condition():
                if self.task.done():
                    self.task.result()
                    raise AssertionError("the flow has ended")
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """As SIGTERM does."""
        self.flow.stop()
        await asyncio.wait_for(self.task, 30)


class Line:
    """A pipeline from one topic to another."""

    def __init__(
        self, broker: str, folder: Path, source: str, sink: str, transform: str, keys: Mapping[str, object]
    ) -> None:
        self.broker = broker
        self.source = source
        self.sink = sink
        store = {"large.message.payload.store.class": "filesystem", "filesystem.root": str(folder)}
        table = {
            "topics": [source],
            "output.topic": sink,
            "transforms": [transform],
            "processing.guarantee": "exactly_once",
            **(store if transform in ("offload", "inflate") else {}),
            **keys,
        }
        self.settings: Settings = parse({"bootstrap.servers": broker, "pipeline": {sink: table}})
        self.pipeline: PipelineSettings = self.settings.pipelines[0]

    @property
    def id(self) -> str:
        """The transactional id of partition 0."""
        return transactional_id(self.pipeline.name, self.source, 0)

    @asynccontextmanager
    async def life(self, plan: Plan | None = None) -> AsyncIterator[Life]:
        """A flow that runs; where it has not ended, it ends as with a failure: nothing is finished or committed."""
        stats, budget, joined = PipelineStats(), Budget(50_000_000), asyncio.Event()
        plan = plan or await plan_pipeline(self.settings.client, self.pipeline)
        store = open_store(self.pipeline.store) if self.pipeline.store else None
        with running_on(2) as runtime:
            flow = Flow(
                FlowClients(self.settings.client, self.pipeline),
                self.pipeline,
                plan,
                build(self.pipeline, store, plan.sink, stats),
                budget=budget,
                runtime=runtime,
                stats=stats,
                troubles=Troubles(self.pipeline.name),
                graceful_timeout_s=10.0,
                joined=joined.set,
            )
            task = asyncio.create_task(flow.run())
            try:
                yield Life(flow, stats, budget, task)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def send(self, records: list[Sent]) -> None:
        """Writes to the source."""
        await asyncio.to_thread(send, self.broker, self.source, records)

    async def found(self, topic: str | None = None, isolation: str = "read_committed") -> list[Found]:
        """What stands in partition 0 of the sink, or of another topic."""
        return (await asyncio.to_thread(read_all, self.broker, topic or self.sink, isolation)).get(0, [])

    async def committed(self) -> tuple[int, str]:
        """What is committed of partition 0: the offset, and what stands beside it.

        A transaction has ended when its end is in the log, and its offset is seen a moment later: this waits for that
        (`require_stable` of KIP-447, which librdkafka asks for). Another client reads the metadata: confluent-kafka
        (2.16.1) reads to the next NUL, and leaves it out.
        """
        await asyncio.to_thread(self._wait_until_stable)
        async with admin(self.settings.client) as client:
            found = await client.list_consumer_group_offsets(self.pipeline.group_id)
        committed = found.get(AioTopicPartition(self.source, 0))
        return (0, "") if committed is None else (max(0, committed.offset), committed.metadata)

    def _wait_until_stable(self) -> None:
        with Consumer({"bootstrap.servers": self.broker, "group.id": self.pipeline.group_id}) as consumer:
            (found,) = consumer.committed([TopicPartition(self.source, 0)], timeout=_STABLE_S)
        assert found.error is None


MakeLine = Callable[..., Line]


def records(count: int, size: int = 10, start: int = 0) -> list[Sent]:
    """Records of partition 0, whose keys are their numbers."""
    return [(0, b"%d" % number, b"x" * size, [], STAMP) for number in range(start, start + count)]


def keys(found: list[Found]) -> list[int]:
    """The numbers of records."""
    return [int(record.key or b"-1") for record in found]
