"""The start of a transactional producer: the error of one that does not end in time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import ConcurrentTransactions, CoordinatorLoadInProgressError, KafkaTimeoutError
from aiokafka.protocol.transaction import InitProducerIdRequest

from app.kafka import transactional_start
from app.kafka.transactional_start import start_transactional


class Producer:
    """One that asks for its id until it gets one; each answer has the same error."""

    def __init__(self, code: int) -> None:
        self.client: Any = AIOKafkaClient()

        async def answer(*_: object, **__: object) -> Any:
            await asyncio.sleep(0)
            return SimpleNamespace(error_code=code)

        self.client.send = answer

    async def start(self) -> None:
        """Asks as aiokafka's does."""
        while (await self.client.send(0, InitProducerIdRequest("id", 1))).error_code:
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
