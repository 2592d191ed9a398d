"""What becomes of fetches that a broker refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchRequest, FetchResponse_v4
from aiokafka.protocol.offset import OffsetRequest, OffsetResponse_v3

from app.kafka.fetch_errors import FetchErrors, follow_leaders
from app.kafka.troubles import UNREADABLE, Troubles
from tests.app.kafka.wired import Clock, Wire, wired

FETCH = FetchRequest(500, 1, 1_000, 0, [("t", [(0, 0, 1_000)])])
STORAGE, NOT_LEADER, STALE_EPOCH = 56, 6, 74


class Broker:
    """Answers with an error, to a client that counts how often it looks for leaders."""

    def __init__(self) -> None:
        self.looked = 0
        self.answer: Any = None
        self.client = wired(Wire(self._answer))
        self.client.force_metadata_update = self._look

    async def refuse(self, code: int) -> None:
        """Answers a fetch so."""
        self.answer = FetchResponse_v4(0, [("t", [(0, code, 1, 1, [], b"")])])
        assert await self.client.send(1, FETCH) is self.answer

    async def _answer(self, _: Any) -> Any:
        return self.answer

    def _look(self) -> None:
        self.looked += 1


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (STORAGE, r"KafkaStorageError since 20\S+, the log of the broker that leads it has the reason"),
        (76, "UNSUPPORTED_COMPRESSION_TYPE since 20"),
        (-1, "UnknownError since 20"),
        (9_999, "Kafka's error 9999, which this version of Wideload does not know, since 20"),
    ],
)
async def test_refusal_is_told_until_there_is_none(code: int, told: str) -> None:
    """A refusal that aiokafka does not foresee lets the client look for the leaders, and is told while it lasts."""
    broker, troubles = Broker(), Troubles("p")
    FetchErrors(broker.client, 0.001, troubles)
    seen = []
    for each in (0, code, code, NOT_LEADER, 0):
        await broker.refuse(each)
        seen.append((broker.looked, troubles.text(UNREADABLE) is None))
    assert seen == [(0, True), (1, False), (2, False), (2, False), (2, True)]
    await broker.refuse(code)
    assert re.match(f"topic t, partition 0 cannot be read: {told}", str(troubles.text(UNREADABLE)))


async def test_refusal_that_a_change_of_the_leader_brings() -> None:
    """It is told once it lasts longer than leaders take to change; the client looks for the leader at once."""
    broker, clock = Broker(), Clock()
    troubles = Troubles("p", clock)
    FetchErrors(broker.client, 0.0, troubles)
    await broker.refuse(STALE_EPOCH)
    assert broker.looked == 1
    clock.now_s += 9.9
    assert troubles.text(UNREADABLE) is None
    clock.now_s += 0.1
    assert "cannot be read: FENCED_LEADER_EPOCH since 20" in str(troubles.text(UNREADABLE))


@pytest.mark.parametrize(("code", "again"), [(0, 0), (1, 0), (6, 1), (3, 1)])
async def test_leaders_are_asked_for_again(code: int, again: int) -> None:
    """Else the broker that a consumer asks for an offset would be asked for five minutes."""
    broker = Broker()
    broker.answer = OffsetResponse_v3(0, [("t", [(0, 0, -1, 7), (1, code, -1, -1)])])
    follow_leaders(broker.client)
    for request in (OffsetRequest(-1, 0, [("t", [(0, -2), (1, -2)])]), FETCH):
        assert await broker.client.send(1, request) is broker.answer
        assert broker.looked == again
