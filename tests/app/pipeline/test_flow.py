"""A flow that is to end while its clients wait, without a cluster."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from app.cluster.preflight import Plan
from app.kafka.broker_health import BrokerHealth
from app.kafka.clients import ClusterError
from app.kafka.consumer import GroupConsumer
from app.kafka.flow_clients import FlowClients
from app.kafka.topics import Topic
from app.kafka.troubles import STORE, Troubles
from app.kafka.writer import Writer
from app.pipeline.budget import Budget
from app.pipeline.chain import Chain
from app.pipeline.committed_offsets import CommittedOffsets
from app.pipeline.delivery import AtLeastOnce
from app.pipeline.flow import Flow
from app.pipeline.lanes import Lanes
from app.pipeline.stats import PipelineStats
from app.pipeline.topic_watcher import TopicChangedError, TopicWatcher
from tests.app.configurations import HEAD, ORDERS, settings_of
from tests.app.pipeline.chains import memory
from tests.app.pipeline.runtimes import running_on
from transforms.errors import WideloadError


class Waiting:
    """A client that does not come to an end with what it is asked for."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def __call__(self, *_: object, **__: object) -> None:
        self.begun.set()
        await asyncio.Event().wait()


class Begun:
    """A client that has nothing to wait for, and notes that it was called."""

    def __init__(self, called: list[bool] | None = None) -> None:
        self._called = [] if called is None else called

    async def __call__(self, *_: object, **__: object) -> None:
        self._called.append(True)


@pytest.fixture
async def flow(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Flow]:
    """Its clients have begun, and have no cluster. A refusal taught it that its sink takes less than is configured."""
    for owner in (Writer, GroupConsumer):
        monkeypatch.setattr(owner, "start", Begun())
    monkeypatch.setattr(TopicWatcher, "watch", Waiting())
    monkeypatch.setattr(CommittedOffsets, "known", True)
    monkeypatch.setattr(GroupConsumer, "check_fetcher", lambda _: None)
    monkeypatch.setattr(GroupConsumer, "group", "orders")
    settings = settings_of(HEAD + ORDERS)
    (pipeline,) = settings.pipelines
    topics = [Topic(name, 1, 1_000_000, "delete") for name in (*pipeline.topics, pipeline.output_topic)]
    plan = Plan(pipeline.name, (topics[0],), topics[1], None)
    with running_on(1) as runtime:
        yield Flow(
            FlowClients(settings.client, pipeline),
            pipeline,
            dataclasses.replace(plan, sink=dataclasses.replace(plan.sink, max_message_bytes=3_999)),
            Chain([], dataclasses.replace(plan.sink, max_message_bytes=3_999)),
            found=plan,
            store=memory(),
            budget=Budget(1_000_000),
            runtime=runtime,
            stats=PipelineStats(),
            troubles=Troubles(pipeline.name, runtime.monotonic),
            graceful_timeout_s=1.0,
            joined=lambda: None,
        )


async def test_a_limit_that_a_refusal_taught_is_not_raised_by_the_next_look(flow: Flow) -> None:
    """The watcher goes by what the cluster said: else the flow would begin anew every few seconds, for ever."""
    assert flow.topic_watcher._topics["orders"].max_message_bytes == 1_000_000
    assert flow._poll_loop._admission._limit_bytes == 3_999
    assert await flow._retries._state.is_up(), "it asks its store: only so a record is known that fails alone"
    flow.stop()
    await asyncio.wait_for(flow.run(), 20)  # closes its clients


@pytest.mark.parametrize("fails", [False, True])
async def test_an_end_waits_for_no_rebalance(flow: Flow, monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    """A poll waits until the slowest member has joined again, for minutes; a stop or a failure ends it sooner."""
    waiting = Waiting()
    monkeypatch.setattr(cast(Any, flow._source).consumer, "getmany", waiting)
    running = asyncio.create_task(flow.run())
    await asyncio.wait_for(waiting.begun.wait(), 20)
    if fails:
        flow._termination.fail(ClusterError("a write has failed", retriable=True))
        with pytest.raises(ClusterError, match="a write has failed"):
            await asyncio.wait_for(running, 20)
        return
    flow.stop()
    await asyncio.sleep(0)  # the poll is on its way out
    flow.stop()
    await asyncio.wait_for(running, 20)


async def test_a_restart_waits_for_no_store_that_fails(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens the store again, mostly with other keys: the old ones finish no record that waits for them."""
    monkeypatch.setattr("app.pipeline.flow._STORE_S", 0.0)
    monkeypatch.setattr(Lanes, "busy", True)
    flow._troubles.note(STORE, None, "the keys are refused")
    flow._graceful_timeout_s = 3_600.0
    flow.stop(renewing_store=True)
    await asyncio.wait_for(flow._drain(), 20)
    flow.stop()
    monkeypatch.setattr(Lanes, "busy", False)
    await asyncio.wait_for(flow.run(), 20)


@pytest.mark.parametrize(("topic", "gives_up"), [(0, True), (1, False)], ids=["source", "sink"])
@pytest.mark.parametrize("same_log", [True, False])
async def test_a_source_that_has_changed_lets_a_static_member_leave(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, topic: int, *, gives_up: bool, same_log: bool
) -> None:
    """Else the group gives it the partitions that it had, and looks for no others: new ones would be read by nobody."""
    given_up: list[bool] = []
    written: list[bool] = []
    monkeypatch.setattr(GroupConsumer, "give_up_place", lambda _: given_up.append(True))
    monkeypatch.setattr(flow, "_commit_written", Begun(written))
    name = (flow.settings.topics[0], flow.settings.output_topic)[topic]
    flow._termination.fail(TopicChangedError(name, "it has changed", same_log=same_log))
    with pytest.raises(TopicChangedError):
        await asyncio.wait_for(flow.run(), 20)
    assert bool(given_up) is gives_up
    assert bool(written) is same_log


@pytest.mark.parametrize(
    ("owner", "task"),
    [
        (TopicWatcher, "watch"),
        (BrokerHealth, "silent"),
        (GroupConsumer, "replaced"),
        (AtLeastOnce, "_commit_regularly"),
    ],
)
@pytest.mark.parametrize("error", [IndexError("tuple index out of range"), None])
async def test_a_task_that_ends_by_itself_ends_the_flow(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, owner: type[object], task: str, error: Exception | None
) -> None:
    """In silence nobody would see any more what it looks for: partitions, brokers, another member, commits."""

    async def ends(*_: object) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(cast(Any, flow._source).consumer, "getmany", Waiting())
    monkeypatch.setattr(owner, task, ends)
    with pytest.raises(WideloadError, match=f"unexpected IndexError: {error}" if error else None) as caught:
        await asyncio.wait_for(flow.run(), 20)
    if error is None and task in ("watch", "_commit_regularly"):
        assert "has ended, although it was not stopped" in str(caught.value)


async def test_a_producer_that_cannot_be_stopped_keeps_no_consumer(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that goes on would stay in the group, with its partitions, which nobody reads."""
    stop_producer, stop_consumer = flow._delivery.stop, flow._source.stop
    stopped: list[str] = []

    async def fails() -> None:
        await stop_producer()
        raise IndexError("a defect")

    async def stops() -> None:
        await stop_consumer()
        stopped.append("consumer")

    monkeypatch.setattr(flow._delivery, "stop", fails)
    monkeypatch.setattr(flow._source, "stop", stops)
    flow.stop()
    with pytest.raises(IndexError, match="a defect"):
        await asyncio.wait_for(flow.run(), 20)
    assert stopped == ["consumer"]


@pytest.mark.parametrize("silence", [False, True], ids=["stop", "silence"])
@pytest.mark.parametrize("client", [AtLeastOnce, GroupConsumer])
async def test_a_client_that_starts_holds_up_no_end(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, client: type[object], *, silence: bool
) -> None:
    """It waits as long as no broker answers: they may be at other addresses by now, and the next flow asks all."""

    async def silent(*_: object) -> str:
        await waiting.begun.wait()
        return "no broker answers"

    waiting = Waiting()
    monkeypatch.setattr(client, "start", waiting)
    if silence:
        monkeypatch.setattr(BrokerHealth, "silent", silent)
        with pytest.raises(ClusterError, match=r"no broker answers; bootstrap\.servers is asked again"):
            await asyncio.wait_for(flow.run(), 20)
        return
    running = asyncio.create_task(flow.run())
    await asyncio.wait_for(waiting.begun.wait(), 20)
    flow.stop()
    await asyncio.wait_for(running, 20)
