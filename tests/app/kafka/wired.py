"""A client of aiokafka at a connection whose broker answers as a test says, and a clock that it moves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiokafka.client import AIOKafkaClient


class Clock:
    """The time, to be set."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Wire:
    """The connection, whose `answer` gets each `Call`; `asked` are the requests."""

    host, port = "b1", 9

    def __init__(self, answer: Callable[[Any], Awaitable[Any]]) -> None:
        self.answer = answer
        self.asked: list[Any] = []
        self.open = True
        self._request_timeout = 40.0

    def connected(self) -> bool:
        """As aiokafka's, like all of these."""
        return self.open

    def close(self, reason: object = None, exc: BaseException | None = None) -> None:
        self.open = False

    async def send(self, call: Any, expect_response: bool = True) -> Any:  # noqa: FBT001, FBT002  # as aiokafka's
        self.asked.append(call.request)
        return await self.answer(call)


def wired(*wires: Wire) -> Any:
    """A client that is connected to brokers 1, 2 and so on by these."""
    client = AIOKafkaClient()
    for number, wire in enumerate(wires, 1):
        client._conns[number, 0] = wire
    return client
