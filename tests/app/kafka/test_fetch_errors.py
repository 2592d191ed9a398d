"""What becomes of fetches that a broker refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchRequest, FetchResponse_v4
from aiokafka.protocol.offset import OffsetRequest, OffsetResponse_v3

from app.kafka.fetch_errors import FetchErrors, follow_leaders
from app.kafka.troubles import UNREADABLE, Troubles
from tests.app.kafka.wired import Wire, wired

FETCH = FetchRequest(500, 1, 1_000, 0, [("t", [(0, 0, 1_000)])])
STORAGE, NOT_LEADER, STALE_EPOCH = 56, 6, 74


class Broker:
    """Answers with an error, to a client that counts how often it looks for leaders."""

    def __init__(self) -> None:
        self.code = 0
        self.looked = 0
        self.client = wired(Wire(self._answer))
        self.client.force_metadata_update = self._look

    async def ask(self) -> Any:
        """The answer to a fetch."""
        return await self.client.send(1, FETCH)

    async def _answer(self, _: Any) -> Any:
        return FetchResponse_v4(0, [("t", [(0, self.code, 1, 1, [], b"")])])

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
    broker = Broker()
    troubles = Troubles("p")
    FetchErrors(broker.client, 0.01, troubles)
    assert troubles.text(UNREADABLE) is None
    broker.code = code
    for _ in range(2):
        assert (await broker.ask()).topics[0][1][0][1] == code
    assert broker.looked == 2
    assert re.match(f"topic t, partition 0 cannot be read: {told}", str(troubles.text(UNREADABLE)))
    broker.code = NOT_LEADER
    await broker.ask()
    assert troubles.text(UNREADABLE) is not None
    broker.code = 0
    await broker.ask()
    assert troubles.text(UNREADABLE) is None
    assert broker.looked == 2


async def test_refusal_that_a_change_of_the_leader_brings() -> None:
    """It is told once it lasts longer than leaders take to change; the client looks for the leader at once."""
    broker, now_s = Broker(), [100.0]
    troubles = Troubles("p", lambda: now_s[0])
    FetchErrors(broker.client, 0.0, troubles)
    broker.code = STALE_EPOCH
    await broker.ask()
    assert broker.looked == 1
    now_s[0] = 109.9
    assert troubles.text(UNREADABLE) is None
    now_s[0] = 110.0
    assert "cannot be read: FENCED_LEADER_EPOCH since 20" in str(troubles.text(UNREADABLE))


@pytest.mark.parametrize(("code", "again"), [(0, 0), (1, 0), (6, 1), (3, 1)])
async def test_leaders_are_asked_for_again(code: int, again: int) -> None:
    """Else the broker that a consumer asks for an offset would be asked for five minutes."""
    answer = OffsetResponse_v3(0, [("t", [(0, 0, -1, 7), (1, code, -1, -1)])])

    async def answered(_: Any) -> Any:
        return answer

    broker = Broker()
    broker.client._conns[1, 0].answer = answered
    follow_leaders(broker.client)
    assert await broker.client.send(1, OffsetRequest(-1, 0, [("t", [(0, -2), (1, -2)])])) is answer
    assert broker.looked == again
    assert await broker.ask() is answer
    assert broker.looked == again
