"""Attempts at a record while its store is down, slow to come back, or refuses for good."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from app.config.parsing import parse
from app.config.pipeline import TRANSFORMS
from app.config.settings import PipelineSettings
from app.kafka.troubles import OF_STORE, Troubles
from app.pipeline.chain import Chain, build
from app.pipeline.lane import Lane
from app.pipeline.retries import Retries
from app.pipeline.runtime import Runtime
from app.pipeline.stats import PipelineStats
from app.pipeline.work import Step, Store, Thread, Work
from app.web.metrics import COUNTERS
from stores.store import PayloadStore
from tests.app.pipeline.chains import begun, sink
from tests.app.pipeline.lanes import lane_of
from tests.app.pipeline.runtimes import running_on
from tests.app.pipeline.test_termination import Read
from transforms.errors import (
    PayloadNotFoundError,
    PayloadStoreAccessError,
    PayloadStoreError,
    PayloadUnavailableError,
    PayloadUnfitError,
    ReferenceRefusedError,
)
from transforms.record import RecordLike
from transforms.record_batch import RecordBatch
from transforms.wrapper import MessageWrapper

DOWN = PayloadStoreError("down", retriable=True)
REFUSED = PayloadStoreError("access denied", retriable=False)


@dataclass
class Storing:
    """A stage that fails with these errors, one a try, before it succeeds; `tried` is called at each try."""

    errors: list[PayloadStoreError]
    tried: Callable[[], None] = lambda: None
    name: str = "offload"
    asks: bool = True

    small_bytes: float = field(default=-1.0, init=False)

    def wants_any(self, batch: RecordBatch, *, whole: bool) -> bool:
        """See `Stage`."""
        return True

    def plan(self, record: RecordLike, source: RecordLike, codec: int) -> Step:
        """It asks the store, or takes a thread."""
        kind = Store if self.asks else Thread
        return kind(lambda: self.apply(record), 0, self.name)

    def apply(self, record: RecordLike) -> Sequence[RecordLike]:
        """The record as it is."""
        self.tried()
        if self.errors:
            raise self.errors.pop(0)
        return (record,)


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    """It has one thread for the store."""
    with running_on(1) as made_for_test:
        yield made_for_test


def settings(transforms: Sequence[str] = ("offload",)) -> PipelineSettings:
    """A pipeline that tries again soon."""
    table = {
        "topics": ["raw"],
        "output.topic": "orders",
        "transforms": list(transforms),
        "large.message.payload.store.class": "memory",
        "errors.retry.delay.max.ms": 1,
    }
    (pipeline,) = parse({"bootstrap.servers": "nowhere:1", "pipeline": {"p": table}}).pipelines
    return pipeline


def made(
    stage: Storing, runtime: Runtime, stats: PipelineStats, *, timeout_ms: int, unstalled: Callable[[], None]
) -> Retries:
    """Attempts with this stage alone."""
    pipeline = replace(settings(), store_timeout_ms=timeout_ms)
    return Retries(
        Chain([stage], sink(1_000_000)), runtime, pipeline, stats=stats, troubles=Troubles("p"), unstalled=unstalled
    )


def degraded(retries: Retries) -> str | None:
    """What is reported of the store."""
    return retries._troubles.text(*OF_STORE)


async def applied(retries: Retries, lane: Lane, record: Read) -> Sequence[RecordLike]:
    """All the work of the chain on a record."""
    work = begun(retries._chain._chain, record)
    while work.step is not None:
        work = await retries.apply(lane, record, work)
    return retries.finish(record, work)


@pytest.mark.parametrize("name", [each for each in TRANSFORMS if each != "assemble"])
async def test_each_transform_is_counted(name: str, runtime: Runtime) -> None:
    """What a stage has made of a record counts in a metric of its own; `lane_assembler` counts for `assemble`."""
    stats, record = PipelineStats(), Read()
    work = Work(record, 0, (record,), applied=(name,))
    made(Storing([]), runtime, stats, timeout_ms=60_000, unstalled=lambda: None).finish(record, work)
    assert [attribute for _, attribute, _ in COUNTERS if getattr(stats, attribute) and name[:4] in attribute]


async def test_retries_go_on_until_the_store_is_back(runtime: Runtime) -> None:
    """A store that is down is tried again; while it is, the flow is degraded and says why, and afterwards no more."""
    stats, lane, record = PipelineStats(), lane_of(3, 3), Read()
    seen: list[str | None] = []
    stage = Storing([DOWN] * 3, lambda: seen.append(degraded(retries)))
    retries = made(stage, runtime, stats, timeout_ms=60_000, unstalled=lambda: None)
    results = await asyncio.wait_for(applied(retries, lane, record), 10)
    assert (list(results), seen, degraded(retries)) == ([record], [None, "down", "down", "down"], None)
    assert (stats.store_errors, stats.retries, stats.offloaded_records, stats.offloaded_bytes) == (3, 3, 1, 1)
    assert lane.stalled == 0


async def test_retries_stall_the_lane_beyond_the_time_budget(runtime: Runtime) -> None:
    """The partition is not read on while its store call takes longer than it may, and is afterwards."""
    lane = lane_of(3, 3)
    stalled: list[int] = []
    seen: list[int] = []
    stage = Storing([DOWN] * 2, lambda: seen.append(lane.stalled))
    retries = made(stage, runtime, PipelineStats(), timeout_ms=0, unstalled=lambda: stalled.append(lane.stalled))
    await asyncio.wait_for(applied(retries, lane, Read()), 10)
    assert (seen[1:], stalled) == ([1, 1], [0])


async def test_retries_end_where_the_store_refuses(runtime: Runtime) -> None:
    """What cannot pass by itself is not tried again, and is no reason to call the flow degraded."""
    stats, lane = PipelineStats(), lane_of(3, 3)
    retries = made(Storing([REFUSED]), runtime, stats, timeout_ms=60_000, unstalled=lambda: None)
    with pytest.raises(PayloadStoreError, match="access denied"):
        await asyncio.wait_for(applied(retries, lane, Read()), 10)
    assert (stats.store_errors, stats.retries, degraded(retries)) == (1, 0, None)


@pytest.mark.parametrize("error", [PayloadNotFoundError("a"), ReferenceRefusedError("a", "b")])
async def test_retries_of_a_record_that_is_wrong_are_no_errors_of_the_store(
    runtime: Runtime, error: PayloadStoreError
) -> None:
    """A missing payload, and a reference that is refused, are no errors of the store, also of one that has worked."""
    stats, lane = PipelineStats(offloaded_records=1), lane_of(3, 3)
    retries = made(Storing([error] * 9), runtime, stats, timeout_ms=60_000, unstalled=lambda: None)
    for _ in range(9):
        with pytest.raises(type(error)):
            await asyncio.wait_for(applied(retries, lane, Read()), 10)
    assert (stats.store_errors, stats.retries, retries._state.down) == (0, 0, False)


async def test_retries_wait_for_what_was_withdrawn(runtime: Runtime) -> None:
    """A store that has worked for the pipeline is waited for, whatever the reason, which is on the pages."""
    stats, lane = PipelineStats(), lane_of(3, 3)
    seen: list[str | None] = []
    stage = Storing([], lambda: seen.append(degraded(retries)))
    retries = made(stage, runtime, stats, timeout_ms=60_000, unstalled=lambda: None)
    await asyncio.wait_for(applied(retries, lane, Read()), 10)
    stage.errors = [PayloadStoreAccessError("access denied"), PayloadStoreError("the certificate has expired")]
    await asyncio.wait_for(applied(retries, lane, Read()), 10)
    assert (seen, stats.retries) == ([None, None, "access denied", "the certificate has expired"], 2)
    stage.errors = [PayloadUnfitError("too large")]  # no other record meets it
    with pytest.raises(PayloadUnfitError):
        await asyncio.wait_for(applied(retries, lane, Read()), 10)


async def test_retries_end_where_the_store_never_let_the_pipeline_in(runtime: Runtime) -> None:
    """What has never worked is for the user to set right."""
    retries = made(
        Storing([PayloadStoreAccessError("access denied")]),
        runtime,
        PipelineStats(),
        timeout_ms=60_000,
        unstalled=lambda: None,
    )
    lane = lane_of(3, 3)
    with pytest.raises(PayloadStoreAccessError, match="access denied"):
        await asyncio.wait_for(applied(retries, lane, Read()), 10)


async def test_retries_wait_for_a_store_that_has_passed_the_check_of_the_start(runtime: Runtime) -> None:
    """Before the first payload, a refusal ends the pipeline only if the store still passes that check, twice."""
    stage, stats, lane = Storing([REFUSED] * 3), PipelineStats(), lane_of(3, 3)
    store = Checked(REFUSED)

    def retries() -> Retries:
        chain, checked = Chain([stage], sink(1_000_000)), cast("PayloadStore", store)
        return Retries(
            chain, runtime, settings(), stats=stats, troubles=Troubles("p"), unstalled=lambda: None, store=checked
        )

    await asyncio.wait_for(applied(retries(), lane, Read()), 10)
    assert (stats.retries, store.errors) == (3, [])
    stats.offloaded_records, stage.errors = 0, [REFUSED]  # its trouble is over when the check is made
    await asyncio.wait_for(applied(retries(), lane, Read()), 10)
    stats.offloaded_records, stage.errors = 0, [REFUSED] * 2
    with pytest.raises(PayloadStoreError, match="access denied"):
        await asyncio.wait_for(applied(retries(), lane, Read()), 10)


async def test_retries_of_many_records_do_not_storm_a_store_that_is_down() -> None:
    """While the store is down a hundred records ask it no more often than one would; when it is back all go on."""
    lane, stats = lane_of(3, 3), PipelineStats()
    # A call takes a while, as each does: else all are made before the first failure is known.
    stage = Storing([DOWN] * 10_000, tried=lambda: time.sleep(0.02))
    pipeline = replace(settings(), retry_delay_max_ms=100)
    with running_on(4) as runtime:
        retries = Retries(
            Chain([stage], sink(1_000_000)),
            runtime,
            pipeline,
            stats=stats,
            troubles=Troubles("p"),
            unstalled=lambda: None,
        )
        everyone = asyncio.gather(*(applied(retries, lane, Read()) for _ in range(100)))
        async with asyncio.timeout(20):
            while stats.retries < 5:  # noqa: ASYNC110  # it is no event
                await asyncio.sleep(0.001)
            asyncio.get_running_loop().call_later(0.5, stage.errors.clear)
            await everyone
    # 5 before the outage begins, 4 threads that were at it then, and one each 100 ms.
    assert (stats.offloaded_records, degraded(retries)) == (100, None)
    assert 5 <= stats.retries <= 20


class Checked:
    """A store that says whether it is up."""

    def __init__(self, *errors: PayloadStoreError) -> None:
        self.errors = [*errors]

    def check(self, *, writing: bool = True) -> None:
        """See `Check`."""
        if self.errors:
            raise self.errors.pop(0)


async def test_retries_end_for_one_record_while_the_store_is_up(runtime: Runtime) -> None:
    """After `errors.retry.timeout` a record is given up for which the store fails, if it answers others."""
    pipeline = replace(settings(), retry_timeout_ms=50)
    store = cast(PayloadStore, Checked(*[DOWN] * 3))
    stage = Storing([DOWN] * 10_000, tried=lambda: time.sleep(0.005))
    chain, stats = Chain([stage], sink(1_000_000)), PipelineStats()
    retries = Retries(
        chain, runtime, pipeline, stats=stats, troubles=Troubles("p"), unstalled=lambda: None, store=store
    )
    began_s = time.monotonic()
    with pytest.raises(
        PayloadUnavailableError, match=r"failed \d+ times .* errors.retry.timeout allows: down"
    ) as caught:
        await asyncio.wait_for(applied(retries, lane_of(3, 3), Read()), 10)
    assert caught.value.tries >= 3 + 2  # while it is down for all, and the first and last behind that
    assert time.monotonic() - began_s > 0.05
    assert degraded(retries) is None


@dataclass
class Slow(Storing):
    """Three records take long; another one fails three times, and each time one of them has just ended."""

    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    release: list[threading.Event] = field(default_factory=lambda: [threading.Event() for _ in range(3)])
    ended: list[threading.Event] = field(default_factory=lambda: [threading.Event() for _ in range(3)])
    failed: int = 0

    def apply(self, record: RecordLike) -> Sequence[RecordLike]:
        """See `Storing`."""
        assert isinstance(record, Read)
        if record.offset < 3:
            self.begun.release()
            self.release[record.offset].wait(30)
        elif self.failed < 3:
            self.release[self.failed].set()
            self.ended[self.failed].wait(30)
            self.failed += 1
            raise DOWN
        return (record,)


async def test_retries_go_on_though_calls_end_that_began_before_the_outage() -> None:
    """A long download that ends while the store fails does not say that it is up."""
    stats, lane, loop = PipelineStats(), lane_of(3, 3), asyncio.get_running_loop()
    pipeline, slow = replace(settings(), retry_timeout_ms=0), Slow([])
    store = cast(PayloadStore, Checked(*[DOWN] * 100))

    async def download(offset: int) -> None:
        await applied(retries, lane, Read(offset))
        slow.ended[offset].set()

    with running_on(4) as runtime:
        chain = Chain([slow], sink(1_000_000))
        retries = Retries(
            chain, runtime, pipeline, stats=stats, troubles=Troubles("p"), unstalled=lambda: None, store=store
        )
        downloads = [asyncio.create_task(download(offset)) for offset in range(3)]
        try:
            for _ in downloads:
                assert await loop.run_in_executor(None, slow.begun.acquire, True, 10)
            await asyncio.wait_for(applied(retries, lane, Read(7)), 10)
        finally:
            for release in slow.release:
                release.set()
        await asyncio.gather(*downloads)
    assert stats.retries == 3


async def test_retries_go_on_while_the_store_is_down_for_all(runtime: Runtime) -> None:
    """`errors.retry.timeout` gives no record up while the store is down."""
    pipeline = replace(settings(), retry_timeout_ms=0)
    store = cast(PayloadStore, Checked(*[DOWN] * 100))
    chain, stats = Chain([Storing([DOWN] * 20)], sink(1_000_000)), PipelineStats()
    retries = Retries(
        chain, runtime, pipeline, stats=stats, troubles=Troubles("p"), unstalled=lambda: None, store=store
    )
    await asyncio.wait_for(applied(retries, lane_of(3, 3), Read()), 10)
    assert stats.retries == 20


async def test_retries_keep_the_threads_of_asyncio_free_of_a_store_that_hangs() -> None:
    """Records that fail ask once together whether the store is up; a job of another pipeline does not wait for that."""
    loop, asked, release = asyncio.get_running_loop(), threading.Semaphore(0), threading.Event()

    class Hanging(Checked):
        def check(self, *, writing: bool = True) -> None:
            asked.release()
            release.wait(30)

    chain, stats = Chain([Storing([DOWN] * 4)], sink(1_000_000)), PipelineStats()
    pipeline = replace(settings(), retry_timeout_ms=60_000)
    loop.set_default_executor(ThreadPoolExecutor(1))
    with running_on(4) as runtime:
        store = cast(PayloadStore, Hanging())
        retries = Retries(
            chain, runtime, pipeline, stats=stats, troubles=Troubles("p"), unstalled=lambda: None, store=store
        )
        lane = lane_of(3, 3)
        trials = [asyncio.create_task(applied(retries, lane, Read())) for _ in range(4)]
        try:
            async with asyncio.timeout(10):
                while stats.retries < 4:  # noqa: ASYNC110  # it is no event
                    await asyncio.sleep(0.001)
                assert await runtime.threads.call(asked.acquire, True, 10)
                await loop.run_in_executor(None, int)
            trials.pop().cancel()  # which must not take the answer from the others
        finally:
            release.set()
        await asyncio.wait_for(asyncio.gather(*trials), 10)
    assert not asked.acquire(blocking=False)


async def test_retries_stay_degraded_while_any_record_waits() -> None:
    """One payload that cannot be had is a reason to say so, though others can; and the last to wait takes it along."""
    lane = lane_of(3, 3)
    with running_on(1) as runtime:
        retries = made(Storing([DOWN] * 2), runtime, PipelineStats(), timeout_ms=60_000, unstalled=lambda: None)
        bad = asyncio.create_task(applied(retries, lane, Read()))
        async with asyncio.timeout(10):
            while degraded(retries) is None:  # noqa: ASYNC110  # it is no event
                await asyncio.sleep(0.001)
            await applied(retries, lane, Read())
        bad.cancel()
        await asyncio.gather(bad, return_exceptions=True)
    assert degraded(retries) is None


async def test_retries_say_that_a_store_is_silent() -> None:
    """A call that never returns is noticed when the store's time is over: the lane is stalled, and the reason said."""
    lane, release = lane_of(3, 3), threading.Event()

    def silent() -> None:
        release.wait(30)

    with running_on(1) as runtime:
        stage = Storing([], silent)
        retries = made(stage, runtime, PipelineStats(), timeout_ms=50, unstalled=lambda: None)
        task = asyncio.create_task(applied(retries, lane, Read()))
        try:
            async with asyncio.timeout(10):
                while not lane.stalled:  # noqa: ASYNC110  # likewise
                    await asyncio.sleep(0.001)
            reason = degraded(retries)
        finally:
            release.set()
        await asyncio.wait_for(task, 10)
    told = "the store has not answered for 50 ms what it was asked for topic raw, partition 3, offset 7"
    assert (reason, lane.stalled, degraded(retries)) == (told, 0, None)


async def test_retries_that_wait_for_a_thread_are_not_silence() -> None:
    """Where others are answered, a record that waits for its turn stalls nothing, however long that takes."""
    lane = lane_of(3, 3)
    seen: list[int] = []

    def tried() -> None:
        time.sleep(0.05)
        seen.append(lane.stalled)

    with running_on(1) as runtime:
        retries = made(Storing([], tried), runtime, PipelineStats(), timeout_ms=1_000, unstalled=lambda: None)
        await asyncio.wait_for(asyncio.gather(*(applied(retries, lane, Read()) for _ in range(30))), 20)
    assert seen == [0] * 30


async def test_retries_take_a_missing_payload_for_an_answer(runtime: Runtime) -> None:
    """A store that says that a payload is not there is not down: the outage ends."""
    lane = lane_of(3, 3)
    stage = Storing([*[DOWN] * 6, PayloadNotFoundError("memory://gone")])
    retries = made(stage, runtime, PipelineStats(), timeout_ms=60_000, unstalled=lambda: None)
    with pytest.raises(PayloadNotFoundError):
        await asyncio.wait_for(applied(retries, lane, Read()), 10)
    stage.errors = [DOWN]
    await asyncio.wait_for(asyncio.gather(*(applied(retries, lane, Read()) for _ in range(3))), 10)
    assert degraded(retries) is None


async def test_retries_that_are_cancelled_leave_no_lane_stalled(runtime: Runtime) -> None:
    """A partition that is lost in the middle leaves nothing behind."""
    lane = lane_of(3, 3)
    stalled, loop = asyncio.Event(), asyncio.get_running_loop()

    def tried() -> None:
        if lane.stalled:
            loop.call_soon_threadsafe(stalled.set)

    stage = Storing([DOWN] * 10_000, tried)
    retries = made(stage, runtime, PipelineStats(), timeout_ms=0, unstalled=lambda: None)
    task = asyncio.create_task(applied(retries, lane, Read()))
    await asyncio.wait_for(stalled.wait(), 10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (task.cancelled(), lane.stalled) == (True, 0)


async def test_retries_say_which_call_hangs_while_others_are_answered() -> None:
    """One payload whose call never ends is noticed though the store answers for others, and stalls its lane alone."""
    stuck, others = lane_of(3, 3), lane_of(4, 4)
    hanging, release = threading.Event(), threading.Event()

    def tried() -> None:
        if not hanging.is_set():
            hanging.set()
            release.wait(30)

    with running_on(2) as runtime:
        retries = made(Storing([], tried), runtime, PipelineStats(), timeout_ms=100, unstalled=lambda: None)
        task = asyncio.create_task(applied(retries, stuck, Read(offset=7)))
        try:
            async with asyncio.timeout(10):
                while not hanging.is_set():  # noqa: ASYNC110  # a thread sets it
                    await asyncio.sleep(0.001)
                while not stuck.stalled:
                    await applied(retries, others, Read())
            reason = degraded(retries)
        finally:
            release.set()
        await asyncio.wait_for(task, 10)
    assert reason is not None
    assert reason.endswith("what it was asked for topic raw, partition 3, offset 7")
    assert (stuck.stalled, others.stalled, degraded(retries)) == (0, 0, None)


async def test_retries_without_the_store_wait_for_no_thread_of_it() -> None:
    """What asks no store goes on while every thread that may ask it hangs."""
    release = threading.Event()
    with running_on(1) as runtime:
        hanging = runtime.threads.call(release.wait, 30)
        splitting = Storing([], name="chunk", asks=False)
        retries = made(splitting, runtime, PipelineStats(), timeout_ms=60_000, unstalled=lambda: None)
        lane = lane_of(3, 3)
        try:
            await asyncio.wait_for(applied(retries, lane, Read()), 10)
            assert not hanging.done()
        finally:
            release.set()
    assert degraded(retries) is None


async def test_retries_watch_what_else_may_wait_for_the_store(runtime: Runtime) -> None:
    """A dead letter that is large goes to the store as well; where that hangs, it is said, and the lane stalled."""
    lane = lane_of(3, 3)
    retries = made(Storing([]), runtime, PipelineStats(), timeout_ms=20, unstalled=lambda: None)
    with retries.watching(lane, Read()):
        async with asyncio.timeout(10):
            while not lane.stalled:  # noqa: ASYNC110  # it is no event
                await asyncio.sleep(0.001)
        reason = degraded(retries)
    told = "the store has not answered for 20 ms what it was asked for topic raw, partition 3, offset 7"
    assert (reason, lane.stalled, degraded(retries)) == (told, 0, None)


class DownStore:
    """A store that is down."""

    def publish(self, topic: str, data: bytes) -> str:
        """Fails."""
        raise DOWN

    def download(self, full_path: str) -> bytes:
        """Fails."""
        raise DOWN


@pytest.mark.parametrize("transforms", [["offload", "wrap"], ["unwrap", "offload"]])
async def test_retries_of_a_record_that_is_only_copied_wait_for_no_store(
    transforms: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A wrapper is copied on a thread; the record is no probe of the store that is down, and says nothing of it."""
    pipeline = replace(settings(transforms), threshold_bytes=200_000, retry_delay_max_ms=60_000)
    chain = build(pipeline, cast(PayloadStore, DownStore()), sink(10_000_000), PipelineStats())
    lane = lane_of(3, 3)

    def copied(size: int) -> Read:
        value = b"v" * size
        return Read(value=MessageWrapper({}, value).serialize() if "unwrap" in transforms else value)

    with running_on(8) as runtime, caplog.at_level(logging.INFO):
        retries = Retries(
            chain, runtime, pipeline, stats=PipelineStats(), troubles=Troubles("p"), unstalled=lambda: None
        )
        waiting = [asyncio.create_task(applied(retries, lane, copied(300_000))) for _ in range(5)]
        async with asyncio.timeout(10):
            while not retries._state.down:  # noqa: ASYNC110  # it is no event
                await asyncio.sleep(0.001)
            (result,) = await applied(retries, lane, copied(100_000))
        assert result.value is not None
        assert retries._state.down
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    assert "answers again" not in caplog.text
