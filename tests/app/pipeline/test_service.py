"""A pipeline that is steered while its flow fails."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from aiokafka import TopicPartition

from app.cluster.preflight import Plan
from app.kafka.batches.outbox import RecordRefusedError
from app.kafka.clients import ClusterError, security_arguments
from app.kafka.flow_clients import FlowClients
from app.kafka.source_batch import ReadRecord
from app.kafka.topics import Topic
from app.pipeline import pipeline_store, service
from app.pipeline.budget import Budget
from app.pipeline.chain import Chain
from app.pipeline.learned_limits import LearnedLimits, LimitError, UnfitError
from app.pipeline.runtime import Runtime, Threads
from app.pipeline.service import Pipeline
from stores import registry
from stores.keys import Key, Value
from stores.memory import MemoryStore
from tests.app.configurations import HEAD, ORDERS, STORE, settings_of
from transforms.errors import PayloadStoreError, RecordUnfitError, WideloadError

_PLAN = Plan("orders", (Topic("raw", 1, 1_000_000, "delete"),), Topic("orders", 1, 1_000_000, "delete"), None)
_REFUSED = ReadRecord("raw", 0, 5, 0, b"k", b"v", ())
_AWAY = ClusterError("the broker is away", retriable=True)


class _Flow:
    """A flow that fails while it finishes its records. Remembers what it was made of."""

    made: ClassVar[list[_Flow]] = []
    error: ClassVar[BaseException] = _AWAY
    left: ClassVar[dict[TopicPartition, tuple[int, int]]] = {}
    joins: ClassVar[bool] = True
    degraded = awaited = progress = refused = trouble = None
    holding = renewing = renews_store = False

    def __init__(
        self,
        clients: FlowClients,
        _: object,
        plan: Plan,
        chain: Chain,
        *,
        found: Plan,
        store: object,
        runtime: Runtime,
        joined: Callable[[], None],
        **__: Any,
    ) -> None:
        self.client, self.store, self.threads = clients._client, store, runtime.threads
        self.limits = plan.sink.max_message_bytes, found.sink.max_message_bytes
        self.sends_refused = chain.passes(_REFUSED)
        self._joined = joined
        self._asked = asyncio.Event()
        self.made.append(self)

    def stop(self, *, renewing_store: bool = False) -> None:
        self.renews_store = renewing_store
        self._asked.set()

    def pause(self, *, paused: bool) -> None:
        pass

    async def run(self) -> None:
        if self.joins:
            self._joined()
        await self._asked.wait()
        raise self.error


class _Kept(MemoryStore):
    """A store that notes its account, and whether it was closed; `at` is called at each opening."""

    KEYS = (*MemoryStore.KEYS, Key("kept.account", "string", "", default=""))
    opened: ClassVar[list[_Kept]] = []
    at: ClassVar[Callable[[int], object]] = staticmethod(lambda _: None)

    def open(self, values: Mapping[str, Value | None]) -> None:
        """See `Store.open`."""
        super().open(values)
        self.account, self.closed = values["kept.account"], False
        self.opened.append(self)
        _Kept.at(len(self.opened))

    def close(self) -> None:
        """See `Store.close`."""
        self.closed = True


_KEPT = ORDERS.replace('"memory"', '"kept"')


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "Flow", _Flow)
    monkeypatch.setattr(service, "_FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(_Flow, "made", [])
    monkeypatch.setattr(_Kept, "opened", [])
    monkeypatch.setitem(registry._BUILT_IN, "kept", f"{__name__}:_Kept")


class _Running(Pipeline):
    """A pipeline that runs."""

    ended: list[Pipeline]

    async def next_flow(self, end: Callable[[], None]) -> None:
        """Ends the flow, and waits for the next one."""
        before = self.flow
        end()
        await until(lambda: self.flow is not before and self.status == "RUNNING")

    def fail(self) -> None:
        """Lets the flow end by its error."""
        assert self.flow is not None
        self.flow.stop()

    def again(self, asked: str) -> None:
        """Restarts the pipeline, or stops and starts it."""
        if asked == "restart":
            self.request_restart()
        else:
            self.steer("STOPPED")
            self.steer("STARTED")


@asynccontextmanager
async def running(
    *, plan: Plan = _PLAN, later: Plan = _PLAN, keys: str = "", orders: str = ORDERS
) -> AsyncIterator[_Running]:
    """A pipeline that runs, with flows that fail when they are to end; all but the first one by the `later` plan."""

    async def look(*_: object, **__: object) -> Plan:
        return later

    settings = settings_of(HEAD + keys + orders)
    runtime, ended = Runtime(Threads(settings.store_threads)), list[Pipeline]()
    pipeline = _Running(
        settings, settings.pipelines[0], plan=plan, budget=Budget(1), ended=ended.append, runtime=runtime
    )
    pipeline.ended = ended
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "plan_pipeline", look)
        await pipeline.on_start()
        try:
            await until(lambda: pipeline.status == "RUNNING")
            yield pipeline
        finally:
            await pipeline.on_stop()


async def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_pipeline_that_has_stopped_leaves_no_task() -> None:
    """What only watches has ended too: it would use clients and a store that are closed."""
    before = asyncio.all_tasks()
    async with running(orders=ORDERS.replace("offload", "wrap").replace(STORE, "")):
        assert len(asyncio.all_tasks()) > len(before)
    assert asyncio.all_tasks() == before


async def test_a_stop_is_one_though_the_last_records_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline that is stopped does not end the worker as one that has failed; the error is told."""
    monkeypatch.setattr(_Flow, "error", WideloadError("a record can never succeed"))
    async with running() as pipeline:
        pipeline.steer("STOPPED")
        await until(lambda: pipeline.status == "STOPPED")
        assert (pipeline.ended, pipeline.last_error) == ([], "a record can never succeed")
        pipeline.steer("STARTED")
        await until(lambda: pipeline.status == "RUNNING")


async def test_a_restart_is_one_though_the_last_records_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for a new beginning gets one, with the store of its chain; the flow after it may fail for good."""
    monkeypatch.setattr(_Flow, "error", WideloadError("a record can never succeed"))
    async with running() as pipeline:
        monkeypatch.setattr(pipeline, "failing_since", 0.5)  # it has recovered from that
        pipeline.request_restart()
        assert (pipeline.failing_since, pipeline.status, _Flow.made[0].renews_store) == (None, "RESTARTING", True)
        await pipeline.next_flow(lambda: None)
        assert not pipeline.ended
        pipeline.fail()
        await until(lambda: pipeline.status == "FAILED")
        assert pipeline.ended == [pipeline]
    assert [type(flow.store) for flow in _Flow.made] == [MemoryStore] * 2


async def test_a_restart_follows_what_a_library_has_cancelled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The pipeline has failed with a reason; without its task, it would be starting for ever when it is asked to."""
    monkeypatch.setattr(_Flow, "error", asyncio.CancelledError("by a library"))
    async with running() as pipeline:
        pipeline.fail()
        await until(lambda: pipeline.status == "FAILED")
        assert (pipeline.ended, pipeline.last_error) == ([pipeline], "unexpected CancelledError: by a library")
        assert "Traceback" in caplog.text
        pipeline.request_restart()
        await until(lambda: pipeline.status == "RUNNING")


async def test_the_last_line_tells_what_the_last_flow_in_the_group_has_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A flow after it that never came into the group has read nothing, so it has nothing to tell."""
    caplog.set_level("INFO")
    monkeypatch.setattr(_Flow, "left", {TopicPartition("raw", 0): (7, 3)})
    async with running() as pipeline:
        monkeypatch.setattr(_Flow, "joins", False)
        pipeline.fail()
        await until(lambda: len(_Flow.made) > 1)
        monkeypatch.setattr(_Flow, "left", {})
    assert "not committed, and read again: 3 from topic raw, partition 0, offset 7 on" in caplog.text


@pytest.mark.parametrize("asked", ["restart", "stop"])
async def test_a_restart_opens_the_store_again(tmp_path: Path, asked: str) -> None:
    """With what its secret files have then; a new beginning that nobody has asked for keeps it. It waits for files."""
    account = tmp_path / "account"
    account.write_text("old")
    async with running(orders=f'{_KEPT}kept.account = "${{file:{account}}}"') as pipeline:
        account.write_text("new")
        await pipeline.next_flow(pipeline.fail)
        assert [each.account for each in _Kept.opened] == ["old"]
        await pipeline.next_flow(lambda: pipeline.again(asked))
        old, new = _Kept.opened
        assert [(each.account, each.closed) for each in (old, new)] == [("old", True), ("new", False)]
        assert [flow.store for flow in _Flow.made] == [old, old, new]
        account.unlink()
        pipeline.again(asked)
        await until(lambda: "kept.account: file" in (pipeline.last_error or ""))
        assert pipeline.status == "RESTARTING"
        account.write_text("newer")
        await until(lambda: pipeline.status == "RUNNING")
        assert ([each.account for each in _Kept.opened], pipeline.ended) == (["old", "new", "newer"], [])
    assert all(each.closed for each in _Kept.opened)


async def test_a_restart_that_is_asked_for_during_the_look_at_the_cluster_opens_the_store_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look may last as long as brokers are away, and the store is open meanwhile, as it was before."""
    looks, answered = asyncio.Event(), asyncio.Event()

    async def look(*_: object, **__: object) -> Plan:
        looks.set()
        await answered.wait()
        return _PLAN

    async with running(orders=_KEPT) as pipeline:
        monkeypatch.setattr(service, "plan_pipeline", look)
        pipeline.fail()
        await looks.wait()
        pipeline.request_restart()
        await pipeline.next_flow(answered.set)
        assert [each.closed for each in _Kept.opened] == [True, False]


async def test_a_restart_has_threads_though_calls_of_the_store_hang() -> None:
    """No time-out ends a call on a disk that is gone: it holds its thread after the disk is back, and the restart."""
    begun, over = threading.Semaphore(0), threading.Event()

    def hang() -> None:
        begun.release()
        over.wait()

    try:
        async with running(keys="store.threads = 2\n") as pipeline:
            hanging = [_Flow.made[0].threads.call(hang) for _ in range(2)]
            for _ in hanging:  # what has not begun is cancelled
                assert await asyncio.to_thread(begun.acquire, timeout=20)
            await pipeline.next_flow(pipeline.request_restart)
            assert await asyncio.wait_for(_Flow.made[1].threads.call(lambda: "done"), 20) == "done"
            assert not any(each.done() for each in hanging)
    finally:
        over.set()


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_store_that_cannot_be_opened_again_is_waited_for(
    *, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """Whatever its class raises then, it has worked before; if it hangs, it holds up neither the loop nor its own."""
    over = threading.Event()

    def at(time: int) -> None:
        if time == 2 and not hangs:
            raise PayloadStoreError("the service is away", retriable=False)
        if time == 2:
            over.wait(10)

    monkeypatch.setattr(_Kept, "at", at)
    if hangs:
        monkeypatch.setattr(pipeline_store, "_OPEN_S", 0.1)
    async with running(orders=_KEPT) as pipeline:
        await pipeline.next_flow(pipeline.request_restart)
        told = "that has not ended within" if hangs else "the service is away"
        assert f"the store cannot be opened: {told}" in (pipeline.last_error or "")
        assert (len(_Kept.opened), pipeline.ended) == (3, [])
        over.set()


@asynccontextmanager
async def _refused(monkeypatch: pytest.MonkeyPatch, plan: Plan = _PLAN, later: Plan = _PLAN) -> AsyncIterator[_Running]:
    """A pipeline whose sink has just refused a record."""
    with monkeypatch.context() as patch:
        error = UnfitError(TopicPartition("raw", 0), 5, RecordUnfitError("orders", "its timestamp", 0))
        patch.setattr(_Flow, "error", error)
        async with running(plan=plan, later=later) as pipeline:
            await pipeline.next_flow(pipeline.fail)
            patch.setattr(_Flow, "error", _AWAY)
            yield pipeline


@pytest.mark.parametrize("asked", ["restart", "stop"])
async def test_a_record_that_was_refused_is_sent_again_when_the_pipeline_is_restarted(
    monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """Whoever restarts it, or stops and starts it, may have mended the topic; no other new beginning sends it."""
    async with _refused(monkeypatch) as pipeline:
        await pipeline.next_flow(pipeline.fail)
        await pipeline.next_flow(lambda: pipeline.again(asked))
        assert [flow.sends_refused for flow in _Flow.made] == [True, False, False, True]


@pytest.mark.parametrize(("renewed", "again"), [("raw", True), ("more", False)])
async def test_a_record_that_was_refused_is_not_that_of_a_topic_that_was_created_anew(
    *, monkeypatch: pytest.MonkeyPatch, renewed: str, again: bool
) -> None:
    """There another record has its offset; what was refused of other topics is still known."""

    def plan(topic_id: str) -> Plan:
        names = {"raw": "r", "more": "m", renewed: topic_id}
        return replace(
            _PLAN, sources=tuple(Topic(name, 1, 1_000_000, "delete", id=each) for name, each in names.items())
        )

    async with _refused(monkeypatch, plan("old"), plan("new")):
        assert [flow.sends_refused for flow in _Flow.made] == [True, again]


async def test_a_limit_that_a_refusal_taught_stands_beside_that_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow goes by the first one, and tells from the second one whether the limit was changed."""
    monkeypatch.setattr(_Flow, "error", LimitError(RecordRefusedError("orders", 0, 4_000)))
    async with running() as pipeline:
        await pipeline.next_flow(pipeline.fail)
        assert [flow.limits for flow in _Flow.made] == [(1_000_000, 1_000_000), (3_999, 1_000_000)]


async def test_certificates_that_are_being_replaced_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were right when the worker started, so the pipeline does not fail for good; nor if it is started now.

    The clients of a flow share a context, as to load the authorities takes time; the next flow loads them again.
    """
    load = ssl.create_default_context
    replacing = False

    def loaded(*, cafile: str | None = None) -> ssl.SSLContext:
        if replacing:
            raise ssl.SSLError("no start line")
        return load(cafile=cafile)

    monkeypatch.setattr(ssl, "create_default_context", loaded)
    async with running(keys='security.protocol = "SSL"\n') as pipeline:
        replacing = True
        pipeline.fail()
        await until(lambda: "ssl.ca.location" in (pipeline.last_error or ""))
        pipeline.steer("STOPPED")
        await until(lambda: pipeline.status == "STOPPED")
        restarts = pipeline.stats.restarts
        pipeline.steer("STARTED")
        await until(lambda: pipeline.stats.restarts > restarts or bool(pipeline.ended))
        replacing = False
        await until(lambda: pipeline.status == "RUNNING" or bool(pipeline.ended))
        contexts = [[security_arguments(flow.client)["ssl_context"] for _ in range(2)] for flow in _Flow.made]
        assert (len(contexts), pipeline.ended) == (2, [])
        assert [first is second for first, second in contexts] == [True, True]
        assert contexts[0][0] is not contexts[1][0]


# --- what refusals tell of the limit of a topic ----------------------------------------------------------------------


def plan_of(sink: int, dead: int = 9_000) -> Plan:
    """A plan with these limits."""
    return Plan("p", (), Topic("sink", 1, sink, "delete"), Topic("dead", 1, dead, "delete"))


def limits_of(plan: Plan) -> tuple[int, int]:
    """The limits of a plan."""
    assert plan.dead_letters is not None
    return plan.sink.max_message_bytes, plan.dead_letters.max_message_bytes


def limit_error(topic: str, size: int) -> LimitError:
    """The refusal of a record of that size."""
    return LimitError(RecordRefusedError(topic, 0, size))


def test_limit_that_does_not_explain_the_refusal_is_the_refused_size() -> None:
    """Else the record that was refused would be let through again, for ever; also where it was not lowered enough."""
    learned_limits = LearnedLimits()
    assert limits_of(learned_limits.applied(plan_of(5_000))) == (5_000, 9_000)
    learned_limits.learn(plan_of(5_000), limit_error("sink", 4_000))
    assert limits_of(learned_limits.applied(plan_of(5_000))) == (3_999, 9_000)
    learned_limits.learn(plan_of(4_500), limit_error("sink", 4_400))
    assert limits_of(learned_limits.applied(plan_of(4_500))) == (4_399, 9_000)
    assert limits_of(learned_limits.applied(plan_of(5_000))) == (5_000, 9_000)
    learned_limits.learn(plan_of(1, 9_000), limit_error("dead", 9_000))
    assert limits_of(learned_limits.applied(plan_of(1))) == (1, 8_999)


def test_limit_that_was_lowered_is_the_new_one() -> None:
    """Where the configuration explains the refusal, it alone counts; once the limit from before is back, that does."""
    learned_limits = LearnedLimits()
    learned_limits.learn(plan_of(5_000), limit_error("sink", 4_000))
    for limit in (3_000, 5_000):
        assert limits_of(learned_limits.applied(plan_of(limit))) == (limit, 9_000)
    learned_limits.learn(plan_of(5_000), limit_error("sink", 4_000))
    learned_limits.sizes.clear()
    assert limits_of(learned_limits.applied(plan_of(5_000))) == (5_000, 9_000)


def test_a_record_that_is_refused_for_what_it_is_is_remembered() -> None:
    """By its place; if its dead letter is refused as well, nothing more can be done for it, and both are said."""
    learned_limits = LearnedLimits()
    first = UnfitError(TopicPartition("raw", 1), 7, RecordUnfitError("sink", "its timestamp is old"))
    second = UnfitError(TopicPartition("raw", 1), 7, RecordUnfitError("dead", "so it is here"))
    lost = UnfitError(None, 7, RecordUnfitError("sink", "its timestamp is old"))
    for error in (first, lost):
        learned_limits.learn(plan_of(5_000), error)
        assert (str(error), error.retriable) == ("topic sink refuses the record: its timestamp is old", True)
    assert learned_limits.unfit == {("raw", 1, 7): first.error}
    with pytest.raises(ClusterError) as caught:
        learned_limits.learn(plan_of(5_000), second)
    said = str(caught.value)
    assert said.startswith("topic raw, partition 1, offset 7: topic sink refuses the record: its timestamp is old; ")
    assert said.endswith(": topic dead refuses the record: so it is here")
    assert not caught.value.retriable
    learned_limits.forget_unfit(["other"])
    assert learned_limits.unfit == {("raw", 1, 7): first.error}
    learned_limits.forget_unfit(["raw"])
    assert learned_limits.unfit == {}
    refused = RecordRefusedError("sink", 0, 4_000)
    assert (str(LimitError(refused)), LimitError(refused).retriable) == (str(refused), True)
