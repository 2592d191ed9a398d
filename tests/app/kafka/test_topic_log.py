"""What is written to a log, while the cluster does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, ReplicaNotAvailableError, TopicAuthorizationFailedError

from app.config.settings import ClientSettings
from app.kafka import clients, producer, topic_reader
from app.kafka.clients import ClusterError
from app.kafka.topic_log import TopicLog, UnacknowledgedError
from app.pipeline import steering

LOG = TopicLog(ClientSettings("localhost:1"), "control", lambda *_: None, lambda _: None)


class UnansweredProducer(AIOKafkaProducer):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka's own, with a leader that takes requests and never answers; `requests` are those on their way."""

    requests: list[asyncio.Future[Any]]

    async def start(self) -> None:
        self.requests = []
        self._closes = self.client.close
        self.client.send = self._send
        self.client.close = self._close
        self.client._wait_on_metadata = self._partitions
        self.client.cluster.partitions_for_topic = lambda _: {0}
        self.client.cluster.leader_for_partition = lambda _: 0
        self._txn_manager.set_pid_and_epoch(7, 3)
        await self._sender.start()

    async def _partitions(self, _: str) -> set[int]:
        return {0}

    async def _send(self, *_: object, **__: object) -> Any:
        self.requests.append(asyncio.get_running_loop().create_future())
        return await self.requests[-1]

    async def _close(self) -> None:
        for each in self.requests:
            if not each.done():
                each.set_exception(KafkaConnectionError("closed"))
        await self._closes()


async def test_a_record_that_nobody_waits_for_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gives up gets away: aiokafka would try until a broker takes the record, however late."""
    made: list[Any] = []

    def make(**arguments: Any) -> Any:
        made.append(UnansweredProducer(**arguments))
        return made[-1]

    monkeypatch.setattr(clients, "AIOKafkaProducer", make)
    monkeypatch.setattr(producer, "_STOP_SENDER_S", 0.05)
    writing = asyncio.create_task(LOG.append(b"k", b"v"))
    async with asyncio.timeout(20):
        while not (made and getattr(made[0], "requests", [])):  # nobody tells
            assert not writing.done()
            await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
    assert len(made[0].requests) == 1
    assert made[0]._sender.sender_task.done()


@pytest.mark.parametrize(
    ("error", "unknown"), [(ReplicaNotAvailableError(), True), (TopicAuthorizationFailedError(), False)]
)
async def test_a_record_may_be_written_though_its_last_request_was_refused(
    error: Exception,
    unknown: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request before it may have been processed, and its answer lost; but not without the right to write."""

    class Refused(UnansweredProducer):
        async def send_and_wait(self, *_: object, **__: object) -> Any:
            raise error

    monkeypatch.setattr(clients, "AIOKafkaProducer", Refused)
    with pytest.raises(ClusterError, match="topic control") as failed:
        await LOG.append(b"k", b"v")
    assert isinstance(failed.value, UnacknowledgedError) == unknown


async def test_a_reader_gives_up_a_broker_that_is_silent_before_requests_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine that is gone ends no connection: with aiokafka's 40 s each request was answered as not known."""
    given: dict[str, Any] = {}

    def make(**arguments: Any) -> Any:
        given.update(arguments)
        raise ZeroDivisionError

    monkeypatch.setattr(topic_reader, "AIOKafkaConsumer", make)
    with pytest.raises(ZeroDivisionError):
        await LOG.read(1)
    assert given["request_timeout_ms"] / 1000 < steering._ANSWER_S


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (lambda: LOG.read(60), "topic control: KafkaConnectionError"),
        (lambda: LOG.append(b"k", b"v"), "the producer cannot start: KafkaConnectionError"),
    ],
    ids=["read", "written"],
)
async def test_a_log_without_a_broker(work: Callable[[], Awaitable[None]], told: str) -> None:
    """It is soon said what was tried; another try may help."""
    with pytest.raises(ClusterError, match=told) as failed:
        await work()
    assert failed.value.retriable
