"""Attempts at a record while its store is down, slow to come back, or refuses for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest
from aiokafka import TopicPartition

from app.attempts import Attempts
from app.lane import Lane
from app.settings import PipelineSettings, parse
from app.stages import Chain
from app.stats import PipelineStats
from tests.app.test_ending import Read
from transforms.errors import PayloadStoreError
from transforms.record import RecordLike

DOWN = PayloadStoreError("down", retriable=True)
REFUSED = PayloadStoreError("access denied", retriable=False)


@dataclass
class Storing:
    """A stage that fails with these errors, one a try, before it succeeds; `tried` is called at each try."""

    errors: list[PayloadStoreError]
    tried: Callable[[], None] = lambda: None
    name: str = "offload"

    def wants(self, record: RecordLike) -> bool:
        """Every record."""
        return True

    def moves(self, record: RecordLike) -> bool:
        """Every record."""
        return True

    blocks = moves

    def reserve_bytes(self, record: RecordLike) -> int:
        """None."""
        return 0

    def apply(self, record: RecordLike, _source: RecordLike) -> Sequence[RecordLike]:
        """The record as it is."""
        self.tried()
        if self.errors:
            raise self.errors.pop(0)
        return (record,)


@pytest.fixture
def executor() -> Iterator[Executor]:
    """A thread."""
    with ThreadPoolExecutor(1) as threads:
        yield threads


def settings() -> PipelineSettings:
    """A pipeline that tries again soon."""
    table = {
        "topics": ["raw"],
        "output.topic": "orders",
        "transforms": ["offload"],
        "large.message.payload.store.class": "memory",
        "errors.retry.delay.max.ms": 1,
    }
    (pipeline,) = parse({"bootstrap.servers": "nowhere:1", "pipeline": {"p": table}}).pipelines
    return pipeline


def made(
    stage: Storing, executor: Executor, stats: PipelineStats, *, timeout_ms: int, unstalled: Callable[[], None]
) -> Attempts:
    """Attempts with this stage alone."""
    pipeline = replace(settings(), store_timeout_ms=timeout_ms)
    return Attempts(Chain([stage], "orders", 1_000_000), executor, pipeline, stats=stats, unstalled=unstalled)


async def test_attempts_go_on_until_the_store_is_back(executor: Executor) -> None:
    """A store that is down is tried again; while it is, the flow is degraded and says why, and afterwards no more."""
    stats, lane, record = PipelineStats(), Lane(TopicPartition("raw", 3), 3), Read()
    seen: list[str | None] = []
    stage = Storing([DOWN] * 3, lambda: seen.append(attempts.degraded))
    attempts = made(stage, executor, stats, timeout_ms=60_000, unstalled=lambda: None)
    results = await asyncio.wait_for(attempts.apply(lane, record), 10)
    assert (list(results), seen, attempts.degraded) == ([record], [None, "down", "down", "down"], None)
    assert (stats.store_errors, stats.retries, stats.offloaded_records, stats.offloaded_bytes) == (3, 3, 1, 1)
    assert lane.stalled == 0


async def test_attempts_stall_the_lane_beyond_the_time_budget(executor: Executor) -> None:
    """The partition is not read on while its store call takes longer than it may, and is afterwards."""
    lane = Lane(TopicPartition("raw", 3), 3)
    stalled: list[int] = []
    seen: list[int] = []
    stage = Storing([DOWN] * 2, lambda: seen.append(lane.stalled))
    attempts = made(stage, executor, PipelineStats(), timeout_ms=0, unstalled=lambda: stalled.append(lane.stalled))
    await asyncio.wait_for(attempts.apply(lane, Read()), 10)
    assert (seen, stalled) == ([0, 1, 1], [0])


async def test_attempts_end_where_the_store_refuses(executor: Executor) -> None:
    """What cannot pass by itself is not tried again, and is no reason to call the flow degraded."""
    stats, lane = PipelineStats(), Lane(TopicPartition("raw", 3), 3)
    attempts = made(Storing([REFUSED]), executor, stats, timeout_ms=60_000, unstalled=lambda: None)
    with pytest.raises(PayloadStoreError, match="access denied"):
        await asyncio.wait_for(attempts.apply(lane, Read()), 10)
    assert (stats.store_errors, stats.retries, attempts.degraded) == (1, 0, None)


async def test_attempts_that_are_cancelled_leave_no_lane_stalled(executor: Executor) -> None:
    """A partition that is lost in the middle leaves nothing behind."""
    lane = Lane(TopicPartition("raw", 3), 3)
    stalled, loop = asyncio.Event(), asyncio.get_running_loop()

    def tried() -> None:
        if lane.stalled:
            loop.call_soon_threadsafe(stalled.set)

    stage = Storing([DOWN] * 10_000, tried)
    attempts = made(stage, executor, PipelineStats(), timeout_ms=0, unstalled=lambda: None)
    task = asyncio.create_task(attempts.apply(lane, Read()))
    await asyncio.wait_for(stalled.wait(), 10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (task.cancelled(), lane.stalled) == (True, 0)


def test_attempts_at_once_raise_what_the_chain_raises(executor: Executor) -> None:
    """Work that blocks nobody is done where it is asked for, once, and counted like any other."""

    async def apply() -> tuple[Sequence[RecordLike], PipelineStats]:
        stats = PipelineStats()
        attempts = made(Storing([REFUSED]), executor, stats, timeout_ms=60_000, unstalled=lambda: None)
        with pytest.raises(PayloadStoreError, match="access denied"):
            attempts.apply_now(Read())
        return attempts.apply_now(Read()), stats

    results, stats = asyncio.run(apply())
    assert (list(results), stats.offloaded_records, stats.retries) == ([Read()], 1, 0)
