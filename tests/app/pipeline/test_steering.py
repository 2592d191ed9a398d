"""What is asked of a pipeline, on its way through a topic that does not answer as it should."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Never, cast

import pytest

from app.kafka.clients import ClusterError
from app.kafka.topic_log import UnacknowledgedError
from app.pipeline import steering
from app.pipeline.report import SteeringError
from app.pipeline.steering import GroupSteering
from transforms.control_record import Request, TargetStateRequest
from transforms.errors import ConfigurationError


class Topic:
    """A `ControlTopic` that fails as it is told to."""

    name = "control"

    def __init__(self, error: Exception | None = None) -> None:
        self.targets = {"g": "PAUSED"}
        self.listener: Callable[[Request], None] | None = None
        self.error = error
        self.broker: asyncio.Event | None = None  # writes wait for it
        self.written: list[Request] = []
        self.follows = 0

    async def write(self, request: Request) -> asyncio.Event:
        if self.error is not None:
            raise self.error
        if self.broker is not None:
            await self.broker.wait()
        self.written.append(request)
        return asyncio.Event()

    async def follow(self, ready: Callable[[], None]) -> Never:
        self.follows += 1
        if self.follows % 2:
            raise ClusterError("the broker is away", retriable=True)
        if self.follows == 2:
            raise ValueError("a defect")
        ready()
        await asyncio.Event().wait()
        raise AssertionError


async def begun() -> None:
    """Lets what was asked for begin."""
    for _ in range(3):
        await asyncio.sleep(0)


def steered(topic: Topic) -> tuple[GroupSteering, Any, list[str]]:
    """Steering by this topic, and a pipeline, with what it was asked for."""
    asked: list[str] = []
    pipeline = SimpleNamespace(settings=SimpleNamespace(group_id="g"), steer=asked.append, status="RUNNING")
    return GroupSteering(cast(Any, topic), [cast(Any, pipeline)]), pipeline, asked


async def test_what_the_topic_says_holds_before_the_pipelines_begin() -> None:
    """A pipeline that is paused there is so from the beginning."""
    assert steered(Topic())[2] == ["PAUSED"]


@pytest.mark.parametrize(
    ("error", "retriable", "told"),
    [
        (ClusterError("no broker", retriable=True), True, "control.topic control: the request was not written: no"),
        (ClusterError("no right", retriable=False), False, "control.topic control: the request was not written: no"),
        (ConfigurationError("ssl.ca.location", "is gone"), False, "the request was not written: ssl.ca.location"),
        (
            UnacknowledgedError("topic control: [Error 9] ReplicaNotAvailableError", retriable=False),
            False,
            "ReplicaNotAvailableError; whether the request was written is not known, and it may still take effect",
        ),
        (None, True, "whether the request was written is not known, and it may still take effect: look at the status"),
    ],
)
async def test_a_request_that_kafka_does_not_take(
    error: Exception | None,
    retriable: bool,  # noqa: FBT001
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is told, and no pipeline has obeyed; a request that was written but not read back counts as not known."""
    monkeypatch.setattr(steering, "_ANSWER_S", 0.05)
    control, pipeline, asked = steered(Topic(error))
    with pytest.raises(SteeringError, match=told) as refused:
        await control.steer(pipeline, "STOPPED")
    assert refused.value.retriable == retriable
    assert asked == ["PAUSED"]
    await control.on_stop()


async def test_requests_are_written_in_the_order_in_which_they_were_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write is not overtaken; who only waited for it is told, and never written."""
    topic = Topic()
    topic.broker = asyncio.Event()
    control, pipeline, _ = steered(topic)
    first = asyncio.create_task(control.steer(pipeline, "PAUSED"))
    await begun()
    with monkeypatch.context() as hurried:
        hurried.setattr(steering, "_ANSWER_S", 0.05)
        second = asyncio.create_task(control.steer(pipeline, "STARTED"))
        await begun()
    third = asyncio.create_task(control.steer(pipeline, "STOPPED"))
    with pytest.raises(SteeringError, match="within 20 s; the request was not written: ask again"):
        await second
    topic.broker.set()
    async with asyncio.timeout(20):
        while len(topic.written) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert topic.written == [TargetStateRequest("g", "PAUSED"), TargetStateRequest("g", "STOPPED")]
    await control.on_stop()
    await asyncio.gather(first, third, return_exceptions=True)


async def test_a_request_that_was_answered_is_not_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a pause that nobody waits for any more would come into effect after a resume; and it holds up no other."""
    monkeypatch.setattr(steering, "_ANSWER_S", 0.05)
    topic = Topic()
    topic.broker = asyncio.Event()
    control, pipeline, _ = steered(topic)
    with pytest.raises(SteeringError, match="is not known, and it may still take effect: look at the status"):
        await control.steer(pipeline, "PAUSED")
    topic.broker.set()
    with pytest.raises(SteeringError, match="is not known"):  # it is written, and never read
        await control.steer(pipeline, "STARTED")
    assert topic.written == [TargetStateRequest("g", "STARTED")]
    await control.on_stop()


async def test_a_worker_that_stops_answers_at_once() -> None:
    """Requests that wait get 503; so do those that come later, and nothing is written for them."""
    topic = Topic()
    topic.broker = asyncio.Event()
    control, pipeline, _ = steered(topic)
    asked = [asyncio.create_task(control.steer(pipeline, "PAUSED")) for _ in range(2)]
    await begun()
    async with asyncio.timeout(5):
        await control.on_stop()
        first, second = await asyncio.gather(*asked, return_exceptions=True)
        with pytest.raises(SteeringError, match="the worker stops; ask another worker") as refused:
            await control.steer(pipeline, "PAUSED")
    assert refused.value.retriable
    assert "the worker stops; whether the request was written is not known" in str(first)
    assert "the worker stops; the request was not written" in str(second)
    assert topic.written == []


async def test_a_worker_that_stops_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for the topic any more."""
    monkeypatch.setattr(steering, "_FIRST_DELAY_S", 1_000)
    control, _, _ = steered(Topic())
    starting = asyncio.create_task(control.on_start())
    await begun()
    async with asyncio.timeout(5):
        await control.on_stop()
        await starting
    assert control._ready.is_set()


async def test_a_topic_that_cannot_be_read_is_read_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker starts all the same, says so once, and goes on when the topic is there."""
    monkeypatch.setattr(steering, "_READY_S", 0.01)
    monkeypatch.setattr(steering, "_FIRST_DELAY_S", 0.02)
    caplog.set_level("INFO")
    topic = Topic()
    control, _, _ = steered(topic)
    await control.on_start()
    async with asyncio.timeout(20):
        while "is read again" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await control.on_stop()
    assert topic.follows == 4
    assert caplog.text.count("cannot be read, so no request arrives: the broker is away") == 1
    assert "pipelines begin as it was when the worker started" in caplog.text
    assert "unexpected error" in caplog.text
