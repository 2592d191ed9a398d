"""A pipeline that is steered while its flow fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from aiokafka import TopicPartition

from app.cluster.preflight import Plan
from app.kafka.clients import ClusterError
from app.kafka.topics import Topic
from app.pipeline import service
from app.pipeline.budget import Budget
from app.pipeline.service import Pipeline
from tests.app.configurations import HEAD, ORDERS, settings_of
from transforms.errors import WideloadError

_PLAN = Plan("orders", (Topic("raw", 1, 1_000_000, "delete"),), Topic("orders", 1, 1_000_000, "delete"), None)


class _FailingFlow:
    """A flow that fails while it finishes its records, as with one that can never succeed."""

    degraded = awaited = progress = refused = None
    holding = renewing = False
    left: ClassVar[dict[TopicPartition, tuple[int, int]]] = {}
    joins = True
    error: ClassVar[Exception] = WideloadError("a record can never succeed")

    def __init__(self, *_: Any, joined: Callable[[], None], **__: Any) -> None:
        self._joined = joined
        self._asked = asyncio.Event()

    def stop(self) -> None:
        self._asked.set()

    def hold(self, *, held: bool) -> None:
        pass

    async def run(self) -> None:
        if self.joins:
            self._joined()
        await self._asked.wait()
        raise self.error


@asynccontextmanager
async def running(monkeypatch: pytest.MonkeyPatch, ended: list[Pipeline]) -> AsyncIterator[Pipeline]:
    """A pipeline that runs, with flows that fail when they are to end."""

    async def look(*_: object, **__: object) -> Plan:
        return _PLAN

    monkeypatch.setattr(service, "Flow", _FailingFlow)
    monkeypatch.setattr(service, "plan_pipeline", look)
    settings = settings_of(HEAD + ORDERS)
    pipeline = Pipeline(settings, settings.pipelines[0], plan=_PLAN, budget=Budget(1), ended=ended.append)
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
        pipeline.begin_anew()
        assert pipeline.status == "RESTARTING"
        await until(lambda: pipeline.flow is not first and pipeline.status == "RUNNING")
        assert not ended
        assert pipeline.flow is not None
        pipeline.flow.stop()
        await until(lambda: pipeline.status == "FAILED")
        assert ended == [pipeline]


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
