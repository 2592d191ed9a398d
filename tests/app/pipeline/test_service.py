"""A pipeline that is steered while its flow fails."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
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
from app.pipeline.learned_limits import LimitError, UnfitError
from app.pipeline.runtime import Runtime, Threads
from app.pipeline.service import Pipeline
from stores import registry
from stores.keys import Key, Value
from stores.memory import MemoryStore
from tests.app.configurations import HEAD, ORDERS, STORE, settings_of
from transforms.errors import PayloadStoreError, RecordUnfitError, WideloadError

_PLAN = Plan("orders", (Topic("raw", 1, 1_000_000, "delete"),), Topic("orders", 1, 1_000_000, "delete"), None)

_REFUSED = ReadRecord("raw", 0, 5, 0, b"k", b"v", ())


class _FailingFlow:
    """A flow that fails while it finishes its records, as with one that can never succeed."""

    degraded = awaited = progress = refused = trouble = None
    holding = renewing = False
    left: ClassVar[dict[TopicPartition, tuple[int, int]]] = {}
    joins = True
    error: ClassVar[Exception] = WideloadError("a record can never succeed")

    def __init__(self, *_: Any, joined: Callable[[], None], **__: Any) -> None:
        self._joined = joined
        self._asked = asyncio.Event()

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


class _RefusedFlow(_FailingFlow):
    """Of each flow, `sent` has whether it would send a record that the sink has refused."""

    sent: ClassVar[list[bool]] = []

    def __init__(self, clients: object, settings: object, plan: Plan, chain: Chain, **more: Any) -> None:
        super().__init__(clients, settings, plan, chain, **more)
        self.sent.append(chain.passes(_REFUSED))


class _LimitedFlow(_FailingFlow):
    """A flow whose sink refuses a record; `limits` has, of each flow, that of its plan and that of the cluster."""

    error: ClassVar[Exception] = LimitError(RecordRefusedError("orders", 0, 4_000))
    limits: ClassVar[list[tuple[int, int]]] = []

    def __init__(self, clients: object, settings: object, plan: Plan, *rest: Any, found: Plan, **more: Any) -> None:
        super().__init__(clients, settings, plan, *rest, **more)
        self.limits.append((plan.sink.max_message_bytes, found.sink.max_message_bytes))


class _SecureFlow(_FailingFlow):
    """A flow with two clients; `contexts` has, of each flow, what they use for TLS."""

    contexts: ClassVar[list[tuple[ssl.SSLContext, ssl.SSLContext]]] = []

    def __init__(self, clients: FlowClients, *rest: Any, **more: Any) -> None:
        super().__init__(clients, *rest, **more)
        first, second = (security_arguments(clients._client)["ssl_context"] for _ in range(2))
        self.contexts.append((first, second))


class _AskingFlow(_FailingFlow):
    """A flow that asks its store whether it is up."""

    stores: ClassVar[list[object]] = []

    def __init__(self, *rest: Any, store: object = None, **more: Any) -> None:
        super().__init__(*rest, **more)
        self.stores.append(store)


@asynccontextmanager
async def running(
    monkeypatch: pytest.MonkeyPatch,
    ended: list[Pipeline],
    flow: type[_FailingFlow] = _FailingFlow,
    plan: Plan = _PLAN,
    later: Plan = _PLAN,
    keys: str = "",
    orders: str = ORDERS,
) -> AsyncIterator[Pipeline]:
    """A pipeline that runs, with flows that fail when they are to end; all but the first one by the `later` plan."""

    async def look(*_: object, **__: object) -> Plan:
        return later

    monkeypatch.setattr(service, "Flow", flow)
    monkeypatch.setattr(service, "plan_pipeline", look)
    settings = settings_of(HEAD + keys + orders)
    runtime = Runtime(Threads(settings.store_threads))
    pipeline = Pipeline(
        settings, settings.pipelines[0], plan=plan, budget=Budget(1), ended=ended.append, runtime=runtime
    )
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
            await asyncio.sleep(0.01)


async def test_a_pipeline_that_has_stopped_leaves_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only watches has ended too: it would use clients and a store that are closed."""
    before = asyncio.all_tasks()
    without_store = ORDERS.replace("offload", "wrap").replace(STORE, "")
    async with running(monkeypatch, [], orders=without_store):
        assert len(asyncio.all_tasks()) > len(before)
    assert asyncio.all_tasks() == before


async def test_a_stop_is_one_though_the_last_records_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline that is stopped does not end the worker as one that has failed; the error is told."""
    ended: list[Pipeline] = []
    async with running(monkeypatch, ended) as pipeline:
        pipeline.steer("STOPPED")
        await until(lambda: pipeline.status == "STOPPED")
        assert (ended, pipeline.last_error) == ([], "a record can never succeed")
        pipeline.steer("STARTED")
        await until(lambda: pipeline.status == "RUNNING")


async def test_a_restart_is_one_though_the_last_records_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for a new beginning gets one; the flow after it may fail for good."""
    ended: list[Pipeline] = []
    async with running(monkeypatch, ended) as pipeline:
        first = pipeline.flow
        monkeypatch.setattr(pipeline, "failing_since", 0.5)  # it has recovered from that
        pipeline.begin_anew()
        assert pipeline.failing_since is None
        assert (pipeline.status, getattr(first, "renews_store", False)) == ("RESTARTING", True)
        await until(lambda: pipeline.flow is not first and pipeline.status == "RUNNING")
        assert not ended
        assert pipeline.flow is not None
        pipeline.flow.stop()
        await until(lambda: pipeline.status == "FAILED")
        assert ended == [pipeline]


async def test_a_restart_follows_what_a_library_has_cancelled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The pipeline has failed with a reason; without its task, it would be starting for ever when it is asked to."""
    monkeypatch.setattr(_FailingFlow, "error", asyncio.CancelledError("by a library"))
    ended: list[Pipeline] = []
    async with running(monkeypatch, ended) as pipeline:
        assert pipeline.flow is not None
        pipeline.flow.stop()
        await until(lambda: pipeline.status == "FAILED")
        assert (ended, pipeline.last_error) == ([pipeline], "unexpected CancelledError: by a library")
        assert "Traceback" in caplog.text
        pipeline.begin_anew()
        await until(lambda: pipeline.status == "RUNNING")


async def test_the_last_line_tells_what_the_last_flow_in_the_group_has_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A flow after it that never came into the group has read nothing, so it has nothing to tell."""
    caplog.set_level("INFO")
    monkeypatch.setattr(_FailingFlow, "left", {TopicPartition("raw", 0): (7, 3)})
    monkeypatch.setattr(_FailingFlow, "error", ClusterError("the broker is away", retriable=True))
    async with running(monkeypatch, []) as pipeline:
        first = pipeline.flow
        monkeypatch.setattr(_FailingFlow, "joins", False)
        assert first is not None
        first.stop()
        await until(lambda: pipeline.flow is not first)
        monkeypatch.setattr(_FailingFlow, "left", {})
    assert pipeline.flow is not first
    assert "not committed, and read again: 3 from topic raw, partition 0, offset 7 on" in caplog.text


async def test_a_flow_has_the_store_of_its_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks it whether it is up: else `errors.retry.timeout` would end for no record that fails alone."""
    monkeypatch.setattr(_AskingFlow, "stores", [])
    async with running(monkeypatch, [], _AskingFlow):
        assert [type(store) for store in _AskingFlow.stores] == [MemoryStore]


class _Kept(MemoryStore):
    """A store that notes with which account it was opened, and whether it was closed."""

    KEYS = (*MemoryStore.KEYS, Key("kept.account", "string", "", default=""))
    opened: ClassVar[list[_Kept]] = []

    def open(self, values: Mapping[str, Value | None]) -> None:
        """See `Store.open`."""
        super().open(values)
        self.account, self.closed = values["kept.account"], False
        self.opened.append(self)

    def close(self) -> None:
        """See `Store.close`."""
        self.closed = True


@pytest.mark.parametrize("asked", ["restart", "stop"])
async def test_a_restart_opens_the_store_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: str) -> None:
    """With what its secret files have then; a new beginning that nobody has asked for keeps it. It waits for files."""
    ended: list[Pipeline] = []
    account = tmp_path / "account"
    account.write_text("old")
    monkeypatch.setattr(service, "_FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(_AskingFlow, "stores", [])
    monkeypatch.setattr(_AskingFlow, "error", ClusterError("the broker is away", retriable=True))
    monkeypatch.setattr(_Kept, "opened", [])
    monkeypatch.setitem(registry._BUILT_IN, "kept", f"{__name__}:_Kept")
    orders = ORDERS.replace('"memory"', f'"kept"\nkept.account = "${{file:{account}}}"')

    def again() -> None:
        if asked == "restart":
            pipeline.begin_anew()
        else:
            pipeline.steer("STOPPED")
            pipeline.steer("STARTED")

    async with running(monkeypatch, ended, _AskingFlow, orders=orders) as pipeline:
        assert pipeline.flow is not None
        account.write_text("new")
        await _next_flow(pipeline, pipeline.flow.stop)
        assert [each.account for each in _Kept.opened] == ["old"]
        await _next_flow(pipeline, again)
        assert [(each.account, each.closed) for each in _Kept.opened] == [("old", True), ("new", False)]
        assert [getattr(store, "account", None) for store in _AskingFlow.stores] == ["old", "old", "new"]
        account.unlink()
        again()
        await until(lambda: pipeline.last_error is not None and "kept.account: file" in pipeline.last_error)
        assert pipeline.status == "RESTARTING"
        account.write_text("newer")
        await until(lambda: pipeline.status == "RUNNING")
        assert ([each.account for each in _Kept.opened], ended) == (["old", "new", "newer"], [])
    assert all(each.closed for each in _Kept.opened)


async def test_a_restart_that_is_asked_for_during_the_look_at_the_cluster_opens_the_store_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look may last as long as brokers are away, and the store is open meanwhile, as it was before."""
    monkeypatch.setattr(service, "_FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(_FailingFlow, "error", ClusterError("the broker is away", retriable=True))
    monkeypatch.setattr(_Kept, "opened", [])
    monkeypatch.setitem(registry._BUILT_IN, "kept", f"{__name__}:_Kept")
    looks, answered = asyncio.Event(), asyncio.Event()

    async def look(*_: object, **__: object) -> Plan:
        looks.set()
        await answered.wait()
        return _PLAN

    async with running(monkeypatch, [], orders=ORDERS.replace('"memory"', '"kept"')) as pipeline:
        monkeypatch.setattr(service, "plan_pipeline", look)
        first = pipeline.flow
        assert first is not None
        first.stop()
        await looks.wait()
        pipeline.begin_anew()
        answered.set()
        await until(lambda: pipeline.flow is not first and pipeline.status == "RUNNING")
        assert [each.closed for each in _Kept.opened] == [True, False]


class _WorkingFlow(_FailingFlow):
    """A flow that gives work to the threads of its store."""

    def __init__(self, *rest: Any, runtime: Runtime, **more: Any) -> None:
        super().__init__(*rest, runtime=runtime, **more)
        self.runtime = runtime


async def test_a_restart_has_threads_though_calls_of_the_store_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time-out ends a call on a disk that is gone: it holds its thread after the disk is back, and the restart."""
    begun, over = threading.Semaphore(0), threading.Event()

    def hang() -> None:
        begun.release()
        over.wait()

    try:
        async with running(monkeypatch, [], _WorkingFlow, keys="store.threads = 2\n") as pipeline:
            before: Any = pipeline.flow
            hanging = [before.runtime.threads.call(hang) for _ in range(2)]
            for _ in hanging:  # what has not begun is cancelled
                assert await asyncio.to_thread(begun.acquire, timeout=20)
            await _next_flow(pipeline, pipeline.begin_anew)
            after: Any = pipeline.flow
            assert await asyncio.wait_for(after.runtime.threads.call(lambda: "done"), 20) == "done"
            assert not any(each.done() for each in hanging)
    finally:
        over.set()


class _Away(_Kept):
    """A store that asks its service when it is opened, and gets no answer the second time."""

    def open(self, values: Mapping[str, Value | None]) -> None:
        """See `Store.open`."""
        super().open(values)
        if len(self.opened) == 2:
            raise PayloadStoreError("the service is away", retriable=False)


async def test_a_store_that_cannot_be_opened_again_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its class raises then, it has worked before."""
    ended: list[Pipeline] = []
    monkeypatch.setattr(service, "_FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(_Kept, "opened", [])
    monkeypatch.setitem(registry._BUILT_IN, "away", f"{__name__}:_Away")
    async with running(monkeypatch, ended, orders=ORDERS.replace('"memory"', '"away"')) as pipeline:
        await _next_flow(pipeline, pipeline.begin_anew)
        assert (len(_Kept.opened), ended) == (3, [])


class _Stuck(_Kept):
    """A store that asks its service when it is opened, and waits for the answer the second time."""

    over: ClassVar[threading.Event]

    def open(self, values: Mapping[str, Value | None]) -> None:
        """See `Store.open`."""
        super().open(values)
        if len(self.opened) == 2:
            self.over.wait(10)


async def test_a_store_that_hangs_when_it_is_opened_holds_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the loop of all pipelines, nor its own one for ever: a later attempt may succeed."""
    monkeypatch.setattr(service, "_FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(pipeline_store, "_OPEN_S", 0.1)
    monkeypatch.setattr(_Kept, "opened", [])
    monkeypatch.setattr(_Stuck, "over", threading.Event(), raising=False)
    monkeypatch.setitem(registry._BUILT_IN, "stuck", f"{__name__}:_Stuck")
    async with running(monkeypatch, [], orders=ORDERS.replace('"memory"', '"stuck"')) as pipeline:
        pipeline.begin_anew()
        await until(lambda: "that has not ended within" in (pipeline.last_error or ""))
        await until(lambda: pipeline.status == "RUNNING")
        _Stuck.over.set()


async def _next_flow(pipeline: Pipeline, end: Callable[[], None]) -> None:
    """Ends the flow, and waits for the next one."""
    before = pipeline.flow
    end()
    await until(lambda: pipeline.flow is not before and pipeline.status == "RUNNING")


@asynccontextmanager
async def _refused(
    monkeypatch: pytest.MonkeyPatch, plan: Plan = _PLAN, later: Plan = _PLAN
) -> AsyncIterator[tuple[Pipeline, list[bool]]]:
    """A pipeline whose sink has just refused a record, and, of each flow, whether it would send that record."""
    sent: list[bool] = []
    monkeypatch.setattr(service, "_FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(_RefusedFlow, "sent", sent)
    error = UnfitError(TopicPartition("raw", 0), 5, RecordUnfitError("orders", "its timestamp", 0))
    monkeypatch.setattr(_RefusedFlow, "error", error)
    async with running(monkeypatch, [], _RefusedFlow, plan, later) as pipeline:
        assert pipeline.flow is not None
        await _next_flow(pipeline, pipeline.flow.stop)
        monkeypatch.setattr(_RefusedFlow, "error", ClusterError("the broker is away", retriable=True))
        yield pipeline, sent


@pytest.mark.parametrize("asked", ["restart", "stop"])
async def test_a_record_that_was_refused_is_sent_again_when_the_pipeline_is_restarted(
    monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """Whoever restarts it, or stops and starts it, may have mended the topic; no other new beginning sends it."""

    def stop_and_start() -> None:
        pipeline.steer("STOPPED")
        pipeline.steer("STARTED")

    async with _refused(monkeypatch) as (pipeline, sent):
        assert pipeline.flow is not None
        await _next_flow(pipeline, pipeline.flow.stop)
        assert sent == [True, False, False]
        await _next_flow(pipeline, pipeline.begin_anew if asked == "restart" else stop_and_start)
        assert sent == [True, False, False, True]


@pytest.mark.parametrize(("renewed", "again"), [("raw", True), ("more", False)])
async def test_a_record_that_was_refused_is_not_that_of_a_topic_that_was_created_anew(
    monkeypatch: pytest.MonkeyPatch,
    renewed: str,
    again: bool,  # noqa: FBT001
) -> None:
    """There another record has its offset; what was refused of other topics is still known."""

    def plan(topic_id: str) -> Plan:
        names = {"raw": "r", "more": "m", renewed: topic_id}
        sources = tuple(Topic(name, 1, 1_000_000, "delete", id=each) for name, each in names.items())
        return Plan("orders", sources, _PLAN.sink, None)

    async with _refused(monkeypatch, plan("old"), plan("new")) as (_, sent):
        assert sent == [True, again]


async def test_a_limit_that_a_refusal_taught_stands_beside_that_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow goes by the first one, and tells from the second one whether the limit was changed."""
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(service, "_FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(_LimitedFlow, "limits", limits)
    async with running(monkeypatch, [], _LimitedFlow) as pipeline:
        assert pipeline.flow is not None
        await _next_flow(pipeline, pipeline.flow.stop)
        assert limits == [(1_000_000, 1_000_000), (3_999, 1_000_000)]


@asynccontextmanager
async def _secure(
    monkeypatch: pytest.MonkeyPatch, ended: list[Pipeline]
) -> AsyncIterator[tuple[Pipeline, list[tuple[ssl.SSLContext, ssl.SSLContext]]]]:
    """A pipeline over TLS, and the contexts of its flows, which end by an error that may pass."""
    contexts: list[tuple[ssl.SSLContext, ssl.SSLContext]] = []
    monkeypatch.setattr(service, "_FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(_SecureFlow, "contexts", contexts)
    monkeypatch.setattr(_SecureFlow, "error", ClusterError("the broker is away", retriable=True))
    async with running(monkeypatch, ended, _SecureFlow, keys='security.protocol = "SSL"\n') as pipeline:
        yield pipeline, contexts


async def test_the_clients_of_a_flow_share_a_tls_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """To load the authorities takes time on the event loop; the next flow loads them again, as files are replaced."""
    async with _secure(monkeypatch, []) as (pipeline, contexts):
        assert pipeline.flow is not None
        await _next_flow(pipeline, pipeline.flow.stop)
        assert [first is second for first, second in contexts] == [True, True]
        assert contexts[0][0] is not contexts[1][0]


async def test_certificates_that_are_being_replaced_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were right when the worker started, so the pipeline does not fail for good; nor if it is started now."""
    ended: list[Pipeline] = []
    load = ssl.create_default_context
    replacing = False

    def loaded(*, cafile: str | None = None) -> ssl.SSLContext:
        if replacing:
            raise ssl.SSLError("no start line")
        return load(cafile=cafile)

    monkeypatch.setattr(ssl, "create_default_context", loaded)
    async with _secure(monkeypatch, ended) as (pipeline, contexts):
        assert pipeline.flow is not None
        replacing = True
        pipeline.flow.stop()
        await until(lambda: pipeline.last_error is not None and "ssl.ca.location" in pipeline.last_error)
        pipeline.steer("STOPPED")
        await until(lambda: pipeline.status == "STOPPED")
        restarts = pipeline.stats.restarts
        pipeline.steer("STARTED")
        await until(lambda: pipeline.stats.restarts > restarts or bool(ended))
        replacing = False
        await until(lambda: pipeline.status == "RUNNING" or bool(ended))
        assert (len(contexts), ended) == (2, [])
