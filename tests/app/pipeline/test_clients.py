"""A whole flow with the clients of a test: no broker, no connection, and no thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar, TypeVarTuple

import pytest

from app.cluster.preflight import Plan
from app.kafka.batches.batch import Builder, Load
from app.kafka.batches.outbox import Outbox
from app.kafka.broker_health import BrokerHealth
from app.kafka.consumer import Rebalances
from app.kafka.errors import KafkaError, NoOffsetForPartitionError
from app.kafka.fetched import ReadAhead
from app.kafka.leader_epochs import Cut
from app.kafka.source_batch import SourceBatch, decoded
from app.kafka.structs import OffsetAndMetadata, RecordMetadata, TopicPartition
from app.kafka.topics import Topic
from app.pipeline.budget import Budget
from app.pipeline.chain import build
from app.pipeline.flow import Flow
from app.pipeline.runtime import Runtime, Threads
from app.pipeline.stats import PipelineStats
from stores.registry import open_store
from tests.app.configurations import HEAD, ORDERS, settings_of
from tests.built_batches import built
from transforms.record import Record, RecordLike
from transforms.record_batch import RecordBatch

L = TypeVar("L", bound=Load)
T = TypeVar("T")
Args = TypeVarTuple("Args")

PLACE = TopicPartition("raw", 0)


class _Source:
    """One partition, from its first record to its last. A `Source`."""

    rebalancing = False
    trouble = None

    def __init__(self, records: Sequence[RecordLike], committed: dict[TopicPartition, tuple[int, str]]) -> None:
        self._data = built(0, records)
        self._end = len(records)
        self._committed = committed
        self._at: int | None = None
        self._interrupted = asyncio.Event()

    async def start(self, listener: Rebalances) -> None:
        await listener.on_partitions_assigned({PLACE})

    async def keep_membership(self) -> None:
        pass

    async def replaced(self) -> None:
        await asyncio.Event().wait()

    async def is_replaced(self) -> bool:
        return False

    def give_up_place(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def poll(
        self, partitions: Iterable[TopicPartition], timeout_ms: int
    ) -> Mapping[TopicPartition, Sequence[SourceBatch]]:
        assert PLACE in partitions or not partitions
        if self._at is None:
            raise NoOffsetForPartitionError(PLACE)
        if self._at < self._end and not self._interrupted.is_set():
            at, self._at = self._at, self._end
            return {PLACE: [SourceBatch(PLACE, at, RecordBatch.read(memoryview(self._data)))]}
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._interrupted.wait(), timeout_ms / 1000)
        return {}

    def interrupt(self) -> None:
        self._interrupted.set()

    def unread(self, polled: Mapping[TopicPartition, Sequence[SourceBatch]]) -> None:
        raise NotImplementedError

    def pause(self, partition: TopicPartition, offset: int | None) -> None:
        raise NotImplementedError

    def resume(self, partition: TopicPartition) -> None:
        raise NotImplementedError

    def position(self, partition: TopicPartition) -> int | None:
        assert partition == PLACE
        return self._at

    def seek(self, partition: TopicPartition, offset: int) -> bool:
        assert partition == PLACE
        self._at = offset
        return True

    begin = seek

    async def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        assert partition == PLACE
        return 0, self._end

    def ends(self) -> Mapping[TopicPartition, int | None]:
        return {PLACE: self._end}

    def caught_up(self, partition: TopicPartition) -> bool:
        assert partition == PLACE
        return self._at == self._end

    def cut(self, partition: TopicPartition) -> Cut | None:
        """The log was not cut."""

    async def compare(self, offsets: Mapping[TopicPartition, int], within_s: float) -> None:
        raise NotImplementedError

    async def send(self, request: Any) -> Any:
        raise KafkaError(f"nobody answers {request}")

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        self._committed |= offsets

    async def commits(
        self, partitions: Collection[TopicPartition], *, stable: bool = False
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        assert stable or partitions
        return {place: OffsetAndMetadata(*self._committed[place]) for place in partitions if place in self._committed}

    async def known(self, topic: str) -> bool:
        raise NotImplementedError


class _Writer:
    """Takes each batch at its next turn. A `Writer`."""

    failure: BaseException | None = None

    def __init__(
        self, written: list[RecordLike], committed: dict[TopicPartition, tuple[int, str]], *, transactional: bool
    ) -> None:
        self._written = written
        self._committed = committed
        self._transactional = transactional
        self._open: list[RecordLike] | None = None
        self._outboxes: dict[TopicPartition, Outbox[Any]] = {}

    async def start(self) -> None:
        pass

    def outbox(
        self, topic: str, partition: int, make_load: Callable[[], L], *, limit_bytes: int | None = None
    ) -> Outbox[L]:
        place = TopicPartition(topic, partition)
        assert limit_bytes is not None

        def builder(codec: int) -> Builder:
            return Builder(limit_bytes, codec, transactional=self._transactional)

        return self._outboxes.setdefault(
            place, Outbox(place, builder, make_load, self._send, codec=0, transactional=self._transactional)
        )

    def _send(self, outbox: Outbox[Any]) -> None:
        asyncio.get_running_loop().call_soon(self._take, outbox)

    def _take(self, outbox: Outbox[Any]) -> None:
        while (batch := outbox.take()) is not None:
            records = [record for _, record in decoded(RecordBatch.read(memoryview(batch.builder.built())))]
            assert (self._open is not None) == self._transactional
            (self._written if self._open is None else self._open).extend(records)
            metadata = RecordMetadata(*outbox.partition, outbox.partition, 0, 0, 0, 0)
            batch.load.delivered(metadata, batch.records, batch.uncompressed_bytes)

    def press(self) -> None:
        for outbox in self._outboxes.values():
            self._take(outbox)

    async def flush(self) -> None:
        self.press()

    settled = flush

    def drop(self) -> Sequence[Any]:
        return [batch.load for outbox in self._outboxes.values() for batch in outbox.clear()]

    def discard(self) -> None:
        self.drop()

    def begin(self) -> None:
        assert self._open is None
        self._open = []

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        assert self._open is not None
        self._written += self._open
        self._committed |= offsets
        self._open = None

    async def stop(self) -> None:
        self.discard()


class _Clients:
    """A log to read, a list to write to, and what the group has committed. `Clients`."""

    def __init__(self, records: Sequence[RecordLike]) -> None:
        self._records = records
        self.written: list[RecordLike] = []
        self.committed: dict[TopicPartition, tuple[int, str]] = {}

    def source(self, brokers: BrokerHealth, read_ahead: ReadAhead) -> _Source:
        assert brokers.trouble is None
        assert read_ahead is not None
        return _Source(self._records, self.committed)

    def writer(self, brokers: BrokerHealth, *, transactional_id: str | None = None, **_: Any) -> _Writer:
        assert brokers.trouble is None
        return _Writer(self.written, self.committed, transactional=transactional_id is not None)


class _Loop(Threads):
    """Runs each call at the next turn of the event loop."""

    def call(self, work: Callable[[*Args], T], *args: *Args) -> asyncio.Future[T]:
        """See `Threads`."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[T] = loop.create_future()
        loop.call_soon(lambda: ended.set_result(work(*args)))
        return ended

    compute = call


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
async def test_a_flow_runs_on_the_clients_that_it_is_given(guarantee: str) -> None:
    """It finds where to begin, lets records pass, offloads others, writes both in order, commits, and ends."""
    settings = settings_of(f'{HEAD}{ORDERS}processing.guarantee = "{guarantee}"\noffset.flush.interval.ms = 1\n')
    (pipeline,) = settings.pipelines
    topics = [Topic(name, 1, 1_000_000, "delete") for name in ("raw", "orders")]
    store, stats = open_store(pipeline.store), PipelineStats()
    values = (b"small", b"x" * 1_200_000, b"behind")
    clients = _Clients([Record(b"k", value, (), 1_700_000_000_000) for value in values])
    flow = Flow(
        clients,
        pipeline,
        Plan("orders", (topics[0],), topics[1], None),
        build(pipeline, store, 1_000_000, stats),
        store=store,
        budget=Budget(10_000_000),
        runtime=Runtime(_Loop(1), monotonic=lambda: 0.0, time=lambda: 1_700_000_000.0),
        stats=stats,
        graceful_timeout_s=20.0,
        joined=lambda: None,
    )
    running = asyncio.create_task(flow.run())
    async with asyncio.timeout(20):
        while len(clients.written) < len(values) and not running.done():  # noqa: ASYNC110  # it is no event
            await asyncio.sleep(0.001)
        flow.stop()
        await running
    first, reference, behind = (record.value for record in clients.written)
    assert (first, behind) == (values[0], values[2])
    assert reference is not None
    assert store.download(reference.decode()) == values[1]
    assert clients.committed == {PLACE: (3, "")}
