"""Requests for committed offsets, on a connection whose broker answers as it is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.api import RequestStruct
from aiokafka.protocol.commit import OffsetFetchRequest, OffsetFetchResponse_v1, OffsetFetchResponse_v3
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest, MetadataResponse_v1
from aiokafka.protocol.offset import OffsetRequest, OffsetResponse_v3

from app.kafka.offset_fetches import OffsetFetches
from app.kafka.stable_offsets import FetchStableOffsets
from app.kafka.troubles import OFFSETS, Troubles

TOPIC = "__consumer_offsets"
FETCH = OffsetFetchRequest("g", [("t", [0, 1])])
FETCHED = OffsetFetchResponse_v3(0, [("t", [(0, 7, "", 0)])], 0)
STABLE = FetchStableOffsets("g", [TopicPartition("t", 0)])
NEWEST = {3: (1, 12), 2: (1, 9)}


class Connection:
    """Answers what `answers` says by the type of the request, the last one for ever.

    Attributes:
        asked: the types of the requests, in order.
        structs: what went over the wire for those that are not answered by `OffsetFetch`.
    """

    host, port = "broker", 9092

    def __init__(self, **answers: list[Any]) -> None:
        self.answers: Mapping[str, list[Any]] = answers
        self.asked: list[str] = []
        self.structs: list[RequestStruct] = []

    def connected(self) -> bool:
        """Always."""
        return True

    async def send(self, request: Any, *, expect_response: bool = True) -> Any:
        """The next answer; raises it if it is an error."""
        assert expect_response
        name = type(request).__name__
        self.asked.append(name)
        if isinstance(request, (MetadataRequest, OffsetRequest)):
            self.structs.append(request.prepare(NEWEST))
        left = self.answers[name]
        answer = left.pop(0) if left[1:] else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def metadata(partitions: int, code: int = 0) -> MetadataResponse_v1:
    """Of the topic with the committed offsets."""
    rows: list[Any] = [(5, number, -1, [], []) for number in range(partitions)]
    return MetadataResponse_v1([], 0, [(code, TOPIC, True, rows)])


def latest(*codes: int) -> OffsetResponse_v3:
    """The errors of the partitions, in order."""
    return OffsetResponse_v3(0, [(TOPIC, [(number, code, -1, -1) for number, code in enumerate(codes)])])


async def opened(connection: Connection, troubles: Troubles | None = None) -> Any:
    """The connection of a client that has not been started, and whose requests are held back."""
    client = AIOKafkaClient()

    async def connect(_: Any, **_options: Any) -> Any:
        return connection

    client._get_conn = connect
    OffsetFetches(client, 0.001, troubles)
    return await client._get_conn(1)


@pytest.mark.parametrize(("behind", "other"), [(5, 6), (78, 6), (78, 56)])
@pytest.mark.parametrize("request_", [FETCH, STABLE])
async def test_waits_until_the_coordinator_has_them(request_: Any, behind: int, other: int) -> None:
    """It asks for the latest offsets first, again as long as one is not known.

    Those that it does not lead do not count, nor those on a disk that has failed: it says so until it restarts.
    """
    made = Connection(
        MetadataRequest=[metadata(3)],
        OffsetRequest=[latest(other, behind, behind), latest(other, 0, behind), latest(other, 0, 0)],
        OffsetFetchRequest=[FETCHED],
        FetchStableOffsets=[FETCHED],
    )
    connection = await opened(made)
    assert await connection.send(request_) is FETCHED
    assert made.asked == ["MetadataRequest", *["OffsetRequest"] * 3, type(request_).__name__]
    asked, offsets = made.structs[:2]
    assert (asked.topics, asked.allow_auto_topic_creation) == ([TOPIC], False)
    assert (offsets.replica_id, offsets.isolation_level) == (-1, 0)
    assert offsets.topics == [(TOPIC, [(0, -1), (1, -1), (2, -1)])]
    await connection.send(request_)  # how many there are is known by now
    assert made.asked[5:] == ["OffsetRequest", type(request_).__name__]


async def test_other_requests_are_sent_at_once() -> None:
    """Heartbeats and fetches do not wait."""
    made = Connection(FetchRequest=["found"])
    connection = await opened(made)
    assert await connection.send(FetchRequest(0, 0, 0, 0, [])) == "found"
    assert made.asked == ["FetchRequest"]


@pytest.mark.parametrize(("found", "told"), [(metadata(0, 29), 1), (metadata(0, 3), 0)])
async def test_without_the_topic(found: Any, told: int, caplog: pytest.LogCaptureFixture) -> None:
    """Who may not describe it, or where it is not there yet, goes on at once; the first is told, one time."""
    made = Connection(MetadataRequest=[found], OffsetFetchRequest=[FETCHED])
    connection = await opened(made)
    with caplog.at_level(logging.INFO, "wideload.kafka.offset_fetches"):
        for _ in range(2):
            assert await connection.send(FETCH) is FETCHED
    assert made.asked == ["MetadataRequest", "OffsetFetchRequest"] * 2
    assert caplog.text.count(f"grant Describe on topic {TOPIC}") == told


async def test_a_client_that_has_been_started() -> None:
    """Its connections that are open already are watched too."""
    made = Connection(MetadataRequest=[metadata(1)], OffsetRequest=[latest(0)], OffsetFetchRequest=[FETCHED])
    client = AIOKafkaClient()
    client._conns[1, 1] = made
    OffsetFetches(client, 0.001)
    assert await made.send(FETCH) is FETCHED
    assert made.asked == ["MetadataRequest", "OffsetRequest", "OffsetFetchRequest"]


async def test_trouble() -> None:
    """It says which broker is waited for once that takes long; no more when it has answered, or is away."""
    now_s = 0.0
    gone: Any = ConnectionError("gone")
    made = Connection(MetadataRequest=[metadata(2)], OffsetRequest=[latest(5, 5)], OffsetFetchRequest=[FETCHED])
    troubles = Troubles("p", lambda: now_s)
    connection = await opened(made, troubles)
    assert troubles.text(OFFSETS) is None
    for answer, outcome in ((latest(0, 0), FETCHED), (gone, gone)):
        now_s, made.answers["OffsetRequest"][:] = 0.0, [latest(5, 5)]
        count = len(made.asked)
        waiting = asyncio.create_task(connection.send(FETCH))
        async with asyncio.timeout(10):
            while len(made.asked) <= count + 2:  # noqa: ASYNC110  # nothing tells
                await asyncio.sleep(0)
        assert troubles.text(OFFSETS) is None
        now_s = 11.0
        told = str(troubles.text(OFFSETS))
        assert told.startswith("broker broker:9092 cannot tell the committed offsets since 20")
        assert f"topic {TOPIC}, partition 0 and 1 more, waits for its replicas" in told
        made.answers["OffsetRequest"][:] = [answer]
        await asyncio.wait([waiting])
        assert (waiting.exception() or waiting.result()) is outcome
        assert troubles.text(OFFSETS) is None


@pytest.mark.parametrize(
    ("request_", "response", "rows"),
    [
        (
            OffsetFetchRequest("g", [("t", [0, 1])]),
            OffsetFetchResponse_v3(0, [], 16),
            [(0, -1, "", 16), (1, -1, "", 16)],
        ),
        # GROUP_ID_NOT_FOUND: kfake has no group before the first commit.
        (OffsetFetchRequest("g", [("t", [0])]), OffsetFetchResponse_v3(0, [], 69), [(0, -1, "", 0)]),
        # COORDINATOR_NOT_AVAILABLE, REQUEST_TIMED_OUT: aiokafka would end by them, where another coordinator helps.
        (OffsetFetchRequest("g", [("t", [0])]), OffsetFetchResponse_v3(0, [], 15), [(0, -1, "", 16)]),
        (FETCH, OffsetFetchResponse_v1([("t", [(0, -1, "", 7)])]), [(0, -1, "", 16)]),
        (FETCH, OffsetFetchResponse_v3(0, [("t", [(0, 7, "", 0)])], 0), [(0, 7, "", 0)]),
        (FETCH, OffsetFetchResponse_v1([("t", [(0, 7, "", 0)])]), [(0, 7, "", 0)]),
    ],
)
async def test_error_of_a_response_is_one_of_its_partitions(request_: Any, response: Any, rows: list[Any]) -> None:
    """aiokafka looks at these alone: a response with an error and without partitions would mean "nothing committed"."""
    made = Connection(MetadataRequest=[metadata(0)], OffsetFetchRequest=[response])
    connection = await opened(made)
    assert (await connection.send(request_)).topics == [("t", rows)]
