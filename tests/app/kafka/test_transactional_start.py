"""The start of a transactional producer: the error of one that does not end in time, the search for coordinators."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.client import CoordinationType
from aiokafka.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgressError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    KafkaTimeoutError,
)
from aiokafka.protocol.transaction import InitProducerIdRequest

from app.kafka import transactional_start
from app.kafka.transactional_start import start_transactional
from tests.app.kafka.wired import Wire, wired


class Producer:
    """One that asks for its id until it gets one; each answer has the same error."""

    def __init__(self, code: int) -> None:

        async def answer(_: object) -> Any:
            await asyncio.sleep(0)
            return SimpleNamespace(error_code=code)

        self.client: Any = wired(Wire(answer))

    async def start(self) -> None:
        """Asks as aiokafka's does."""
        while (await self.client.send(1, InitProducerIdRequest("id", 1))).error_code:
            pass


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConcurrentTransactions, r"the brokers have not ended its last transaction in 0\.01 s.* min\.insync\.replicas"),
        (CoordinatorLoadInProgressError, r"no coordinator in 0\.01 s; .* transaction\.state\.log\.min\.isr"),
    ],
)
async def test_a_start_that_takes_too_long(monkeypatch: pytest.MonkeyPatch, error: Any, told: str) -> None:
    """A coordinator that cannot end the last transaction is there: its log is not what lacks replicas."""
    monkeypatch.setattr(transactional_start, "_START_S", 0.01)
    producer: Any = Producer(error.errno)
    with pytest.raises(KafkaTimeoutError, match=rf"transactional\.id orders: {told}"):
        await start_transactional(producer, "orders")
    await start_transactional(Producer(0), "orders")


@pytest.mark.parametrize("kind", [CoordinationType.TRANSACTION, CoordinationType.GROUP])
async def test_a_coordinator_is_searched_for_again_after_each_passing_error(
    monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """aiokafka's sender would end, with a traceback, by a connection that breaks, or a coordinator that loads."""
    producer = AIOKafkaProducer(transactional_id="orders", retry_backoff_ms=1)
    answers: list[Any] = [
        KafkaConnectionError("it broke"),
        SimpleNamespace(error_code=CoordinatorLoadInProgressError.errno),
        SimpleNamespace(error_code=0, coordinator_id=3),
        SimpleNamespace(error_code=GroupAuthorizationFailedError.errno),
    ]

    async def answer(*_: object, **__: object) -> Any:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def well(*_: object, **__: object) -> bool:
        return True

    monkeypatch.setattr(producer, "start", well)
    for name in ("ready", "force_metadata_update"):
        monkeypatch.setattr(producer.client, name, well)
    monkeypatch.setattr(producer.client, "get_random_node", lambda: 0)
    monkeypatch.setattr(producer.client, "send", answer)
    await start_transactional(producer, "orders")
    assert await producer._sender._find_coordinator(kind, "any") == 3
    producer._sender._coordinator_dead(kind)
    with pytest.raises(GroupAuthorizationFailedError):
        await producer._sender._find_coordinator(kind, "any")
    await producer.stop()
