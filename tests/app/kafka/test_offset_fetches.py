"""Requests for committed offsets, on a connection whose broker answers as it is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, NotCoordinatorError
from aiokafka.protocol.api import RequestStruct
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest, MetadataResponse_v1
from aiokafka.protocol.offset import OffsetRequest, OffsetResponse_v3
from aiokafka.structs import OffsetAndMetadata

from app.kafka.offset_fetches import FetchOffsets, OffsetFetches
from app.kafka.troubles import OFFSETS, Troubles
from tests.app.kafka.wired import Wire, wired

TOPIC = "__consumer_offsets"
FETCH = OffsetFetchRequest("g", [("t", [0, 1])])
FETCHED = SimpleNamespace(throttle_time_ms=0, error_code=0, topics=[("t", [(0, 7, 3, "", 0, {})], {})])
STABLE = FetchOffsets("g", [TopicPartition("t", 0)], stable=True)
NEWEST = {3: (1, 12), 2: (1, 9), 9: (1, 9), 1: (4, 4)}


class Connection(Wire):
    """Answers what `answers` says by the type of the request, the last one for ever.

    Attributes:
        kinds: the types of the requests, in order.
        structs: what went over the wire for those that are not answered by `OffsetFetch`.
    """

    def __init__(self, **answers: list[Any]) -> None:
        super().__init__(self._answer)
        self.answers: Mapping[str, list[Any]] = answers
        self.kinds: list[str] = []
        self.structs: list[RequestStruct] = []

    async def _answer(self, call: Any) -> Any:
        name = type(call.request).__name__
        self.kinds.append(name)
        struct = call.prepare(NEWEST)
        if isinstance(call.request, (MetadataRequest, OffsetRequest)):
            self.structs.append(struct)
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
    """The connection of a client whose requests are held back."""
    client = wired(connection)
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
        FetchOffsets=[FETCHED],
    )
    connection = await opened(made)
    response = await connection.send(request_)
    assert response.epochs == [(TopicPartition("t", 0), 7, 3, "")]
    assert (response is FETCHED) == (request_ is STABLE)
    assert made.kinds == ["MetadataRequest", *["OffsetRequest"] * 3, "FetchOffsets"]
    asked, offsets = made.structs[:2]
    assert (asked.topics, asked.allow_auto_topic_creation) == ([TOPIC], False)
    assert (offsets.replica_id, offsets.isolation_level) == (-1, 0)
    assert offsets.topics == [(TOPIC, [(0, -1), (1, -1), (2, -1)])]
    await connection.send(request_)  # how many there are is known by now
    assert made.kinds[5:] == ["OffsetRequest", "FetchOffsets"]


async def test_other_requests_are_sent_at_once() -> None:
    """Heartbeats and fetches do not wait."""
    made = Connection(FetchRequest=["found"])
    connection = await opened(made)
    assert await connection.send(FetchRequest(0, 0, 0, 0, [])) == "found"
    assert made.kinds == ["FetchRequest"]


@pytest.mark.parametrize(("found", "told"), [(metadata(0, 29), 1), (metadata(0, 3), 0)])
async def test_without_the_topic(found: Any, told: int, caplog: pytest.LogCaptureFixture) -> None:
    """Who may not describe it, or where it is not there yet, goes on at once; the first is told, one time."""
    made = Connection(MetadataRequest=[found], FetchOffsets=[FETCHED])
    connection = await opened(made)
    with caplog.at_level(logging.INFO, "wideload.kafka.offset_fetches"):
        for _ in range(2):
            assert (await connection.send(FETCH)).topics == [("t", [(0, 7, "", 0)])]
    assert made.kinds == ["MetadataRequest", "FetchOffsets"] * 2
    assert caplog.text.count(f"grant Describe on topic {TOPIC}") == told


async def test_trouble() -> None:
    """It says which broker is waited for once that takes long; no more when it has answered, or is away."""
    now_s = 0.0
    gone: Any = ConnectionError("gone")
    made = Connection(MetadataRequest=[metadata(2)], OffsetRequest=[latest(5, 5)], FetchOffsets=[FETCHED])
    troubles = Troubles("p", lambda: now_s)
    connection = await opened(made, troubles)
    assert troubles.text(OFFSETS) is None
    for answer, outcome in ((latest(0, 0), None), (gone, gone)):
        now_s, made.answers["OffsetRequest"][:] = 0.0, [latest(5, 5)]
        count = len(made.kinds)
        waiting = asyncio.create_task(connection.send(FETCH))
        async with asyncio.timeout(10):
            while len(made.kinds) <= count + 2:  # noqa: ASYNC110  # nothing tells
                await asyncio.sleep(0)
        assert troubles.text(OFFSETS) is None
        now_s = 11.0
        told = str(troubles.text(OFFSETS))
        assert told.startswith("broker b1:9 cannot tell the committed offsets since 20")
        assert f"topic {TOPIC}, partition 0 and 1 more, waits for its replicas" in told
        made.answers["OffsetRequest"][:] = [answer]
        await asyncio.wait([waiting])
        assert waiting.exception() is outcome
        assert troubles.text(OFFSETS) is None


@pytest.mark.parametrize(
    ("error", "found", "rows"),
    [
        (16, [], [(0, -1, "", 16), (1, -1, "", 16)]),
        # GROUP_ID_NOT_FOUND: kfake has no group before the first commit.
        (69, [], [(0, -1, "", 0), (1, -1, "", 0)]),
        # COORDINATOR_NOT_AVAILABLE, REQUEST_TIMED_OUT: aiokafka would end by them, where another coordinator helps.
        (15, [], [(0, -1, "", 16), (1, -1, "", 16)]),
        (0, [(0, -1, -1, "", 7, {})], [(0, -1, "", 16)]),
        (0, [(0, 7, 3, "", 0, {})], [(0, 7, "", 0)]),
    ],
)
async def test_error_of_a_response_is_one_of_its_partitions(error: int, found: list[Any], rows: list[Any]) -> None:
    """aiokafka looks at these alone: a response with an error and without partitions would mean "nothing committed"."""
    response = SimpleNamespace(throttle_time_ms=0, error_code=error, topics=[("t", found, {})] if found else [])
    made = Connection(MetadataRequest=[metadata(0)], FetchOffsets=[response])
    connection = await opened(made)
    assert (await connection.send(FETCH)).topics == [("t", rows)]


def answer(*partitions: tuple[int, int, str | None, int], error: int = 0) -> SimpleNamespace:
    """Of a coordinator: partition, offset, metadata and error of each."""
    rows: list[object] = [
        (partition, offset, -1, metadata, code, {}) for partition, offset, metadata, code in partitions
    ]
    return SimpleNamespace(error_code=error, topics=[("raw", rows, {})])


def test_commits_are_those_that_there_are() -> None:
    """A partition without a committed offset is left out; metadata that is null is none."""
    found = FetchOffsets.commits(answer((0, 7, "note", 0), (1, -1, "", 0), (2, 0, None, 0)))
    assert found == {
        TopicPartition("raw", 0): OffsetAndMetadata(7, "note"),
        TopicPartition("raw", 2): OffsetAndMetadata(0, ""),
    }


def test_group_that_is_not_known_has_no_commits() -> None:
    """Kafka has no such error here; kfake has it until a group has committed something."""
    assert FetchOffsets.commits(answer(error=69)) == {}


def test_commits_of_an_open_transaction_are_not_known() -> None:
    """Where one partition has to wait for a transaction, all are asked for again."""
    assert FetchOffsets.commits(answer((0, 7, "", 0), (1, -1, "", 88))) is None


@pytest.mark.parametrize(
    ("said", "error"),
    [(answer(error=16), NotCoordinatorError), (answer((0, -1, "", 30)), GroupAuthorizationFailedError)],
)
def test_commits_that_are_refused(said: SimpleNamespace, error: type[Exception]) -> None:
    """What the coordinator refuses is raised, of the group or of a partition."""
    with pytest.raises(error):
        FetchOffsets.commits(said)


def test_request_asks_for_stable_offsets() -> None:
    """The request is the first version that can ask for it, with the partitions by topic."""
    request = FetchOffsets("g", [TopicPartition("a", 0), TopicPartition("b", 2), TopicPartition("a", 1)], stable=True)
    built = request.prepare({9: (1, 9), 1: (4, 4)})
    assert built.API_VERSION == 7
    assert built.to_object()["require_stable"] is True
    assert [(each["topic"], each["partitions"]) for each in built.to_object()["topics"]] == [("a", [0, 1]), ("b", [2])]
