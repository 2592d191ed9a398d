"""What becomes of fetches that a broker refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.fetch import FetchRequest, FetchResponse_v4

from app.kafka.fetch_errors import FetchErrors
from app.kafka.troubles import UNREADABLE, Troubles

FETCH = FetchRequest(500, 1, 1_000, 0, [("t", [(0, 0, 1_000)])])
STORAGE, NOT_LEADER, STALE_EPOCH = 56, 6, 74


class Client(AIOKafkaClient):  # type: ignore[misc]  # aiokafka has no types
    """A client whose broker answers as the test says."""

    def __init__(self) -> None:
        super().__init__(bootstrap_servers="boot:1")
        self.code = 0
        self.looked = 0

    async def send(self, node_id: int, request: object, *, group: int = 0) -> Any:
        return FetchResponse_v4(0, [("t", [(0, self.code, 1, 1, [], b"")])])

    def force_metadata_update(self) -> None:
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
    client = Client()
    troubles = Troubles("p")
    FetchErrors(client, 0.01, troubles)
    assert troubles.text(UNREADABLE) is None
    client.code = code
    for _ in range(2):
        assert (await client.send(1, FETCH)).topics[0][1][0][1] == code
    assert client.looked == 2
    assert re.match(f"topic t, partition 0 cannot be read: {told}", str(troubles.text(UNREADABLE)))
    client.code = NOT_LEADER
    await client.send(1, FETCH)
    assert troubles.text(UNREADABLE) is not None
    client.code = 0
    await client.send(1, FETCH)
    assert troubles.text(UNREADABLE) is None
    assert client.looked == 2


async def test_refusal_that_a_change_of_the_leader_brings() -> None:
    """It is told once it lasts longer than leaders take to change; the client looks for the leader at once."""
    client, now_s = Client(), [100.0]
    troubles = Troubles("p", lambda: now_s[0])
    FetchErrors(client, 0.0, troubles)
    client.code = STALE_EPOCH
    await client.send(1, FETCH)
    assert client.looked == 1
    now_s[0] = 109.9
    assert troubles.text(UNREADABLE) is None
    now_s[0] = 110.0
    assert "cannot be read: FENCED_LEADER_EPOCH since 20" in str(troubles.text(UNREADABLE))
