"""What is asked of a pipeline, on its way through a topic that does not answer as it should."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Never, cast

import pytest

from app.kafka.clients import ClusterError
from app.kafka.topic_log import UnacknowledgedError
from app.pipeline.report import SteeringError
from app.pipeline.steering import GroupSteering
from tests.app.pipeline.hurried import hurried
from transforms.control_record import Request, TargetStateRequest
from transforms.errors import ConfigurationError

NOT_KNOWN = "whether the request was written is unknown, and it may still take effect"


class Topic:
    """A `ControlTopic` that fails as it is told to; its writes wait for the broker, if there is one."""

    name = "control"

    def __init__(self, error: Exception | None = None, broker: asyncio.Event | None = None) -> None:
        self.targets = {"g": "PAUSED"}
        self.listener: Callable[[Request], None] | None = None
        self.error = error
        self.broker = broker
        self.written: list[Request] = []
        self.follows = 0
        self.reads = False

    async def write(self, request: Request) -> asyncio.Event:
        if self.error is not None:
            raise self.error
        if self.broker is not None:
            await self.broker.wait()
        self.written.append(request)
        read = asyncio.Event()
        if self.listener is not None and self.reads:
            self.listener(request)
            read.set()
        return read

    async def follow(self, ready: Callable[[], None]) -> Never:
        await asyncio.sleep(60)
        self.follows += 1
        if self.follows % 2:
            raise ClusterError("the broker is away", retriable=True)
        if self.follows == 2:
            raise ValueError("a defect")
        ready()
        await asyncio.Event().wait()
        raise AssertionError


def steered(topic: Topic) -> tuple[GroupSteering, Any, list[str]]:
    """Steering by this topic, and a pipeline, with what it was asked for: what the topic says, before it begins."""
    asked: list[str] = []
    pipeline = SimpleNamespace(settings=SimpleNamespace(group_id="g"), steer=asked.append, status="RUNNING")
    control = GroupSteering(cast(Any, topic), [cast(Any, pipeline)])
    assert asked == ["PAUSED"]
    return control, pipeline, asked


@pytest.mark.parametrize(
    ("error", "retriable", "told"),
    [
        (ClusterError("no broker", retriable=True), True, "control.topic control: the request was not written: no"),
        (ClusterError("no right", retriable=False), False, "control.topic control: the request was not written: no"),
        (ConfigurationError("ssl.ca.location", "is gone"), False, "the request was not written: ssl.ca.location"),
        (
            UnacknowledgedError("topic control: [Error 9] ReplicaNotAvailableError", retriable=False),
            False,
            f"ReplicaNotAvailableError; {NOT_KNOWN}",
        ),
        (None, True, f"Kafka has not answered within 20 s; {NOT_KNOWN}: check the status"),
    ],
)
@hurried
async def test_a_request_that_kafka_does_not_take(*, error: Exception | None, retriable: bool, told: str) -> None:
    """It is told, and no pipeline has obeyed; a request that was written but not read back counts as not known."""
    control, pipeline, asked = steered(Topic(error))
    with pytest.raises(SteeringError, match=told) as refused:
        await control.steer(pipeline, "STOPPED")
    assert refused.value.retriable == retriable
    assert asked == ["PAUSED"]
    await control.on_stop()


@hurried
async def test_a_request_that_was_written_and_read_is_obeyed() -> None:
    """Then it is answered; a restart of failed pipelines alone is none for one that runs. A defect is told as it is."""
    topic = Topic()
    topic.reads = True
    control, pipeline, asked = steered(topic)
    pipeline.request_restart = lambda: asked.append("anew")
    await control.steer(pipeline, "STOPPED")
    await control.request_restart(pipeline, only_failed=True)
    await control.request_restart(pipeline, only_failed=False)
    assert asked == ["PAUSED", "STOPPED", "anew"]
    topic.error = KeyError("a defect")
    with pytest.raises(KeyError, match="a defect"):
        await control.steer(pipeline, "STOPPED")
    await control.on_stop()


@hurried
async def test_requests_are_written_in_the_order_in_which_they_were_asked() -> None:
    """A write is not overtaken; what was answered is not written later, and holds up no other."""
    topic = Topic(broker=asyncio.Event())
    control, pipeline, _ = steered(topic)
    first, second = (asyncio.create_task(control.steer(pipeline, target)) for target in ("PAUSED", "STARTED"))
    await asyncio.sleep(9)
    third = asyncio.create_task(control.steer(pipeline, "STOPPED"))
    await asyncio.sleep(12)
    assert topic.broker is not None
    topic.broker.set()
    with pytest.raises(SteeringError, match=NOT_KNOWN):
        await first
    with pytest.raises(SteeringError, match="within 20 s; the request was not written: retry"):
        await second
    with pytest.raises(SteeringError, match=NOT_KNOWN):  # it is written, and never read
        await third
    assert topic.written == [TargetStateRequest("g", "STOPPED")]
    await control.on_stop()


@hurried
async def test_a_worker_that_stops_answers_at_once() -> None:
    """Requests that wait get 503; so do those that come later, and nothing is written for them."""
    topic = Topic(broker=asyncio.Event())
    control, pipeline, _ = steered(topic)
    asked = [asyncio.create_task(control.steer(pipeline, "PAUSED")) for _ in range(2)]
    await asyncio.sleep(0.1)
    await control.on_stop()
    first, second = await asyncio.gather(*asked, return_exceptions=True)
    with pytest.raises(SteeringError, match="the worker stops; ask another worker") as refused:
        await control.steer(pipeline, "PAUSED")
    assert (refused.value.retriable, topic.written, asyncio.get_running_loop().time() < 1) == (True, [], True)
    assert f"the worker stops; {NOT_KNOWN}" in str(first)
    assert "the worker stops; the request was not written" in str(second)


@hurried
async def test_a_worker_that_stops_while_it_starts() -> None:
    """It does not wait for the topic any more."""
    control, _, _ = steered(Topic())
    starting = asyncio.create_task(control.on_start())
    await asyncio.sleep(0)
    await control.on_stop()
    await starting
    assert asyncio.get_running_loop().time() == 0


def test_a_topic_that_cannot_be_read_is_read_again(caplog: pytest.LogCaptureFixture) -> None:
    """The worker starts all the same, says so once, and goes on when the topic is there."""
    caplog.set_level("INFO")
    topic = Topic()

    @hurried
    async def run() -> None:
        control, _, _ = steered(topic)
        await control.on_start()
        await asyncio.sleep(600)
        await control.on_stop()

    run()
    assert topic.follows == 4
    assert caplog.text.count("cannot be read, so no request arrives: the broker is away") == 1
    assert "pipelines begin as it was when the worker started" in caplog.text
    assert "unexpected error" in caplog.text
    assert "is read again" in caplog.text
