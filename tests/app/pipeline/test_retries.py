"""Attempts at a record while its store is down, slow to come back, or refuses for good."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from app.config.pipeline import TRANSFORMS
from app.kafka.troubles import OF_STORE, Troubles
from app.pipeline.chain import Chain
from app.pipeline.lane import Lane
from app.pipeline.retries import Retries
from app.pipeline.runtime import Runtime
from app.pipeline.stats import PipelineStats
from app.pipeline.store_state import StoreState
from app.pipeline.work import Step, Store, Thread, Work
from app.web.metrics import COUNTERS
from tests.app.pipeline.chains import Refusing, begun, chain_of, settings_of, sink
from tests.app.pipeline.hurried import Timed, hurried, timed
from tests.app.pipeline.lanes import lane_of
from tests.app.pipeline.runtimes import SHARED, running_on
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
DENIED = PayloadStoreAccessError("access denied")


@dataclass
class Storing:
    """A stage that fails with these errors, one a try, before it succeeds; `tried` is called at each try."""

    errors: list[PayloadStoreError] = field(default_factory=list)
    tried: Callable[[], object] = lambda: None
    kind: type[Step] = Store
    small_bytes: float = field(default=-1.0, init=False)

    def wants_any(self, batch: RecordBatch, *, whole: bool) -> bool:
        """See `Stage`."""
        return True

    def plan(self, record: RecordLike, source: RecordLike, codec: int) -> Step:
        """It asks the store, or takes a thread."""
        return self.kind(lambda: self.apply(record), 0, "offload")

    def apply(self, record: RecordLike) -> Sequence[RecordLike]:
        """The record as it is."""
        self.tried()
        if self.errors:
            raise self.errors.pop(0)
        return (record,)


class Checked:
    """A store that fails so when it is asked whether it is up."""

    def __init__(self, *errors: PayloadStoreError) -> None:
        self.errors = [*errors]
        self.asked = 0

    def check(self, *, writing: bool = True) -> None:
        """See `Check`."""
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)


class Bench:
    """Retries of a stage or a chain, and a lane; on a hurried loop, unless there is a runtime."""

    def __init__(
        self,
        stage: Storing | Chain,
        runtime: Runtime | None = None,
        *,
        store: Checked | None = None,
        stats: PipelineStats | None = None,
        threads: Timed | None = None,
        **fields: Any,
    ) -> None:
        self.chain = stage if isinstance(stage, Chain) else Chain([stage], sink(1_000_000))
        self.stats, self.lane, self.troubles = stats or PipelineStats(), lane_of(3, 3), Troubles("p")
        self.unstalled: list[int] = []
        self.threads = threads or Timed()
        fields = {"retry_delay_max_ms": 1, "store_timeout_ms": 60_000, "retry_timeout_ms": -1, **fields}
        pipeline = replace(settings_of(["offload"]), **fields)
        self.retries = Retries(
            self.chain,
            runtime or timed(self.threads),
            pipeline,
            stats=self.stats,
            troubles=self.troubles,
            unstalled=lambda: self.unstalled.append(self.lane.stalled),
            store=cast(Any, store),
        )

    @property
    def degraded(self) -> str | None:
        """What is reported of the store."""
        return self.troubles.text(*OF_STORE)

    async def applied(self, record: Read | None = None, lane: Lane | None = None) -> Sequence[RecordLike]:
        """All the work of the chain on a record."""
        record = record or Read()
        work = begun(self.chain, record)
        async with asyncio.timeout(600):
            while work.step is not None:
                work = await self.retries.apply(lane or self.lane, record, work)
        return self.retries.finish(record, work)

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits for a condition."""
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110  # it is no event
                await asyncio.sleep(0.001)


@pytest.mark.parametrize("name", [each for each in TRANSFORMS if each != "assemble"])
@hurried
async def test_each_transform_is_counted(name: str) -> None:
    """What a stage has made of a record counts in a metric of its own; `lane_assembler` counts for `assemble`."""
    bench, record = Bench(Storing()), Read()
    bench.retries.finish(record, Work(record, 0, (record,), applied=(name,)))
    assert [attribute for _, attribute, _ in COUNTERS if getattr(bench.stats, attribute) and name[:4] in attribute]


@hurried
async def test_retries_go_on_until_the_store_is_back() -> None:
    """A store that is down is tried again; while it is, the flow is degraded and says why, and afterwards no more."""
    seen: list[str | None] = []
    bench = Bench(Storing([DOWN] * 3, lambda: seen.append(bench.degraded)))
    assert list(await bench.applied()) == [Read()]
    assert (seen, bench.degraded) == ([None, "down", "down", "down"], None)
    stats = bench.stats
    assert (stats.store_errors, stats.retries, stats.offloaded_records, stats.offloaded_bytes) == (3, 3, 1, 1)
    assert (bench.lane.stalled, bench.unstalled) == (0, [])


@hurried
async def test_retries_stall_the_lane_beyond_the_time_budget() -> None:
    """The partition is not read on while its store call takes longer than it may, and is afterwards."""
    seen: list[int] = []
    bench = Bench(Storing([DOWN] * 2, lambda: seen.append(bench.lane.stalled)), store_timeout_ms=0)
    await bench.applied()
    assert (seen[1:], bench.unstalled) == ([1, 1], [0])
    bench = Bench(Storing([DOWN] * 10_000), store_timeout_ms=0)
    task = asyncio.create_task(bench.applied())
    await bench.until(lambda: bench.lane.stalled)
    task.cancel()  # as when the partition is lost
    await asyncio.gather(task, return_exceptions=True)
    assert (task.cancelled(), bench.lane.stalled) == (True, 0)


@pytest.mark.parametrize(
    ("error", "worked", "counted"),
    [
        (REFUSED, 0, 1),
        (DENIED, 0, 1),
        (PayloadUnfitError("too large"), 1, 1),  # no other record meets it
        (PayloadNotFoundError("a"), 1, 0),
        (ReferenceRefusedError("a", "b"), 1, 0),
    ],
)
@hurried
async def test_retries_end_where_nothing_can_pass(error: PayloadStoreError, worked: int, counted: int) -> None:
    """What has never worked is for the user to set right; what is wrong with a record is no error of the store."""
    bench = Bench(Storing([error] * 9), stats=PipelineStats(offloaded_records=worked))
    for _ in range(9):
        with pytest.raises(type(error)):
            await bench.applied()
    assert (bench.stats.store_errors, bench.stats.retries, bench.degraded) == (9 * counted, 0, None)
    assert not bench.retries._state.down


@hurried
async def test_retries_wait_for_what_was_withdrawn() -> None:
    """A store that has worked for the pipeline is waited for, whatever the reason, which is on the pages."""
    seen: list[str | None] = []
    stage = Storing([DENIED, PayloadStoreError("the certificate has expired")], lambda: seen.append(bench.degraded))
    bench = Bench(stage, stats=PipelineStats(offloaded_records=1))
    await bench.applied()
    assert (seen, bench.stats.retries) == ([None, "access denied", "the certificate has expired"], 2)


@pytest.mark.parametrize(
    ("refusals", "checks", "retries"), [(3, [REFUSED], 3), (1, [], 1), (2, [], None), (2, [DOWN], 2)]
)
@hurried
async def test_retries_wait_for_a_store_that_has_passed_the_check_of_the_start(
    refusals: int, checks: list[PayloadStoreError], retries: int | None
) -> None:
    """Before the first payload, a refusal ends the pipeline only if the store still passes that check, twice."""
    bench = Bench(Storing([REFUSED] * refusals), store=Checked(*checks))
    if retries is None:
        with pytest.raises(PayloadStoreError, match="access denied"):
            await bench.applied()
    else:
        await bench.applied()
        assert bench.stats.retries == retries


@hurried
async def test_retries_of_many_records_do_not_storm_a_store_that_is_down() -> None:
    """While the store is down a hundred records ask it no more often than one would; when it is back all go on."""
    stage = Storing([DOWN] * 10_000)
    bench = Bench(stage, threads=Timed(4, 0.02), retry_delay_max_ms=100)
    asyncio.get_running_loop().call_later(1.05, stage.errors.clear)
    await asyncio.gather(*(bench.applied() for _ in range(100)))
    # 5 before the outage begins, 3 that were at it then; when all others have had their threads, one each 120 ms.
    assert (bench.stats.retries, bench.stats.offloaded_records, bench.degraded) == (8 + 5, 100, None)
    assert asyncio.get_running_loop().time() < 2, "not one after the other"


@pytest.mark.parametrize(("down", "tries"), [(0, 11), (3, 14)])
@hurried
async def test_retries_end_for_one_record_while_the_store_is_up(down: int, tries: int) -> None:
    """After `errors.retry.timeout` a record is given up for which the store fails, if it answers others."""
    bench = Bench(
        Storing([DOWN] * 10_000), store=Checked(*[DOWN] * down), threads=Timed(1, 0.005), retry_timeout_ms=100
    )
    with pytest.raises(
        PayloadUnavailableError, match=r"failed \d+ times .* errors.retry.timeout allows: down"
    ) as caught:
        await bench.applied()
    assert (caught.value.tries, bench.degraded) == (tries, None)


@hurried
async def test_retries_go_on_though_calls_end_that_began_before_the_outage() -> None:
    """A long download that ends while the store fails does not say that it is up: no record is given up for it."""
    stage = Storing()
    bench = Bench(stage, store=Checked(*[DOWN] * 100), threads=Timed(8), retry_timeout_ms=0)
    await asyncio.sleep(1)
    bench.threads.takes = [5.0, 6.0, 7.0, 4.0, 0.0, 1.5, 0.0, 1.0]
    downloads = [asyncio.create_task(bench.applied()) for _ in range(3)]
    await asyncio.sleep(0)
    failing = asyncio.create_task(bench.applied())
    asyncio.get_running_loop().call_later(3, stage.errors.extend, [DOWN])
    for at_s in (5.1, 6.1):
        asyncio.get_running_loop().call_later(at_s, stage.errors.extend, [DOWN])
    await asyncio.gather(*downloads, failing)
    assert bench.stats.retries == 3


@hurried
async def test_retries_go_on_while_the_store_is_down_for_all() -> None:
    """`errors.retry.timeout` gives no record up while the store is down."""
    bench = Bench(Storing([DOWN] * 20), store=Checked(*[DOWN] * 100), retry_timeout_ms=0)
    await bench.applied()
    assert bench.stats.retries == 20


@hurried
async def test_retries_ask_once_together_whether_the_store_is_up() -> None:
    """Records that fail at the same time share the answer; one that is given up does not take it along."""
    store = Checked()
    bench = Bench(Storing([DOWN] * 4), store=store, threads=Timed(8, 0.01), retry_timeout_ms=60_000)
    bench.threads.takes = [0.01] * 4 + [1.0]
    trials = [asyncio.create_task(bench.applied()) for _ in range(4)]
    await asyncio.sleep(0.5)
    trials.pop().cancel()
    await asyncio.gather(*trials)
    assert (store.asked, bench.stats.retries) == (1, 4)


@hurried
async def test_retries_stay_degraded_while_any_record_waits() -> None:
    """One payload that cannot be had is a reason to say so, though others can; and the last to wait takes it along."""
    stage = Storing([DOWN])
    bench = Bench(stage, retry_delay_max_ms=1_000)
    bad = asyncio.create_task(bench.applied())
    await bench.until(lambda: bench.degraded)
    await bench.applied()
    assert bench.degraded == "down"
    bad.cancel()
    await asyncio.gather(bad, return_exceptions=True)
    assert bench.degraded is None


@hurried
async def test_retries_that_wait_for_a_thread_are_not_silence() -> None:
    """Where others are answered, a record that waits for its turn stalls nothing, however long that takes."""
    seen: list[int] = []
    bench = Bench(Storing([], lambda: seen.append(bench.lane.stalled)), threads=Timed(1, 0.9), store_timeout_ms=1_000)
    await asyncio.gather(*(bench.applied() for _ in range(30)))
    assert (seen, bench.degraded) == ([0] * 30, None)


@hurried
async def test_retries_take_a_missing_payload_for_an_answer() -> None:
    """A store that says that a payload is not there is not down: the outage ends."""
    stage = Storing([*[DOWN] * 6, PayloadNotFoundError("memory://gone")])
    bench = Bench(stage)
    with pytest.raises(PayloadNotFoundError):
        await bench.applied()
    assert (bench.retries._state.down, bench.degraded) == (False, None)


async def test_retries_say_which_call_hangs_while_others_are_answered() -> None:
    """One payload whose call never ends is noticed though the store answers for others, and stalls its lane alone."""
    others = lane_of(4, 4)
    hanging, release = threading.Event(), threading.Event()

    def tried() -> None:
        if not hanging.is_set():
            hanging.set()
            release.wait(30)

    with running_on(2) as runtime:
        bench = Bench(Storing([], tried), runtime, store_timeout_ms=100)
        task = asyncio.create_task(bench.applied())
        try:
            await bench.until(hanging.is_set)
            async with asyncio.timeout(10):
                while not bench.lane.stalled:
                    await bench.applied(lane=others)
            reason = bench.degraded
        finally:
            release.set()
        await asyncio.wait_for(task, 10)
    assert reason == "the store has not answered for 100 ms what it was asked for topic raw, partition 3, offset 7"
    assert (bench.lane.stalled, others.stalled, bench.degraded) == (0, 0, None)


@hurried
async def test_retries_without_the_store_wait_for_no_thread_of_it() -> None:
    """What asks no store goes on while every thread that may ask it hangs."""
    bench = Bench(Storing(kind=Thread), threads=Timed(1, 3_600))
    hanging = bench.threads.call(int)
    await bench.applied()
    assert (hanging.done(), bench.degraded) == (False, None)
    hanging.cancel()


@hurried
async def test_retries_watch_what_else_may_wait_for_the_store() -> None:
    """A dead letter that is large goes to the store as well; where that hangs, it is said, and the lane stalled."""
    bench = Bench(Storing(), store_timeout_ms=20)
    with bench.retries.watching(bench.lane, Read()):
        await asyncio.sleep(0.019)
        assert bench.lane.stalled == 0
        await asyncio.sleep(0.002)
        assert bench.lane.stalled == 1
        told = bench.degraded
    assert told == "the store has not answered for 20 ms what it was asked for topic raw, partition 3, offset 7"
    assert (bench.lane.stalled, bench.degraded) == (0, None)


@pytest.mark.parametrize("transforms", [["offload", "wrap"], ["unwrap", "offload"]])
def test_retries_of_a_record_that_is_only_copied_wait_for_no_store(
    transforms: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A wrapper is copied on a thread; the record is no probe of the store that is down, and says nothing of it."""
    caplog.set_level(logging.INFO)

    def copied(size: int) -> Read:
        return Read(value=MessageWrapper({}, b"v" * size).serialize() if "unwrap" in transforms else b"v" * size)

    @hurried
    async def run() -> None:
        chain = chain_of(transforms, Refusing(down=True), large_message_threshold_bytes=200_000)
        bench = Bench(chain, threads=Timed(8), retry_delay_max_ms=60_000)
        waiting = [asyncio.create_task(bench.applied(copied(300_000))) for _ in range(5)]
        await bench.until(lambda: bench.retries._state.down)
        (result,) = await bench.applied(copied(100_000))
        assert result.value is not None
        assert bench.retries._state.down
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    run()
    assert "answers again" not in caplog.text


# --- whether the store is up -----------------------------------------------------------------------------------------


def state(delay_max_ms: int) -> StoreState:
    """With this longest delay."""
    settings = replace(settings_of(["offload"]), retry_delay_max_ms=delay_max_ms)
    return StoreState(settings, None, PipelineStats(), SHARED.threads)


def down(breaker: StoreState, failures: int = 5) -> None:
    """Lets so many calls fail."""
    for _ in range(failures):
        breaker.failed(probing=False)


async def test_breaker_opens_after_failures_in_a_row() -> None:
    """A store that fails now and then is asked by all; one that fails five times running is down."""
    breaker = state(60000)
    down(breaker, 4)
    breaker.answered()
    down(breaker, 4)
    assert not breaker.down
    down(breaker, 1)
    assert breaker.down


async def test_breaker_lets_one_ask_and_all_go_on_when_it_ends() -> None:
    """While it lasts one record at a time asks, each another one; with the first answer all others may ask at once."""
    breaker = state(1)
    down(breaker)
    asking, asked = 0, []
    answers = iter([False, False, True])

    async def ask(name: int) -> None:
        nonlocal asking
        tries = 0
        while True:
            async with breaker.turn(tries) as probing:
                asking += probing
                assert asking <= 1
                asked.append((name, probing))
                await asyncio.sleep(0)
                asking -= probing
                if not probing or next(answers):
                    breaker.answered()
                    return
                breaker.failed(probing=True)
                tries += 1

    await asyncio.wait_for(asyncio.gather(*map(ask, range(4))), 10)
    assert asked[:3] == [(0, True), (1, True), (2, True)]
    assert sorted(asked[3:]) == [(0, False), (1, False), (3, False)]
    assert not breaker.down


@hurried
async def test_breaker_asks_less_and_less_often() -> None:
    """The wait between two calls doubles, up to the longest that is allowed; a call that is late changes nothing."""
    breaker, clock = state(450), asyncio.get_running_loop().time
    down(breaker)
    waits = []
    for _ in range(3):
        before = clock()
        async with breaker.turn(0) as probing:
            assert probing
            waits.append(clock() - before)
            breaker.failed(probing=False)
            breaker.failed(probing=True)
    assert waits == pytest.approx([0.2, 0.4, 0.45])


@hurried
async def test_breaker_of_one_payload_holds_up_no_other_for_long() -> None:
    """Where one payload alone cannot be had, a record that comes then asks soon, not after the waits of that one."""
    breaker = state(60000)
    down(breaker)
    for _ in range(8):
        breaker.failed(probing=True)  # it waits for most of a minute by now

    async def bad() -> None:
        tries = 9
        while True:
            async with breaker.turn(tries) as probing:
                breaker.failed(probing=probing)
                tries += 1

    waiting = asyncio.create_task(bad())
    await asyncio.sleep(0)
    async with asyncio.timeout(10), breaker.turn(0) as probing:
        assert probing
        breaker.answered()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()


async def test_breaker_turn_that_is_cancelled_is_the_next_ones() -> None:
    """A partition that is lost while its record was to ask leaves the turn to another."""
    breaker = state(1)
    down(breaker)
    entered = asyncio.Event()

    async def hold() -> None:
        async with breaker.turn(0):
            entered.set()
            await asyncio.Event().wait()

    holder = asyncio.create_task(hold())
    await asyncio.wait_for(entered.wait(), 10)
    holder.cancel()
    await asyncio.gather(holder, return_exceptions=True)
    async with asyncio.timeout(10), breaker.turn(0) as probing:
        assert probing


@hurried
async def test_pause_is_none_before_the_first_try() -> None:
    """Only what has failed waits, and no longer than is allowed."""
    clock = asyncio.get_running_loop().time
    await state(60_000).pause(0)
    assert clock() == 0
    await state(60_000).pause(50)
    assert clock() == pytest.approx(60)
