"""Requests for committed offsets, on a connection whose broker answers as it is told."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, NotCoordinatorError
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest, MetadataResponse_v1
from aiokafka.protocol.offset import OffsetRequest, OffsetResponse_v3
from aiokafka.structs import OffsetAndMetadata

from app.kafka.offset_fetches import FetchOffsets, OffsetFetches
from app.kafka.troubles import OFFSETS, Troubles
from tests.app.kafka.wired import Clock, Wire, wired

TOPIC = "__consumer_offsets"
FETCH = OffsetFetchRequest("g", [("t", [0, 1])])
STABLE = FetchOffsets("g", [TopicPartition("t", 0)], stable=True)
Row = tuple[int, int, str | None, int]


def answer(*rows: Row, error: int = 0) -> Any:
    """Of a coordinator: partition, offset, metadata and error of each partition of topic `t`."""
    found: list[Any] = [(partition, offset, 3, note, code, {}) for partition, offset, note, code in rows]
    return SimpleNamespace(throttle_time_ms=0, error_code=error, topics=[("t", found, {})] if found else [])


def metadata(partitions: int, code: int = 0) -> MetadataResponse_v1:
    """Of the topic with the committed offsets."""
    rows: list[Any] = [(5, number, -1, [], []) for number in range(partitions)]
    return MetadataResponse_v1([], 0, [(code, TOPIC, True, rows)])


def latest(*codes: int) -> OffsetResponse_v3:
    """The errors of the partitions, in order."""
    return OffsetResponse_v3(0, [(TOPIC, [(number, code, -1, -1) for number, code in enumerate(codes)])])


class Connection(Wire):
    """Answers what `answers` says by the type of the request, the last one for ever; `kinds` are those types."""

    def __init__(self, troubles: Troubles | None = None, **answers: list[Any]) -> None:
        super().__init__(self._answer)
        self.answers = {"FetchOffsets": [answer((0, 7, "", 0))], "MetadataRequest": [metadata(0)], **answers}
        self.kinds: list[str] = []
        self.structs: list[Any] = []
        self.client = wired(self)
        OffsetFetches(self.client, 0.001, troubles)

    async def ask(self, request: Any) -> Any:
        """The answer to a request of a client whose requests are held back."""
        return await self.client.send(1, request)

    async def _answer(self, call: Any) -> Any:
        name = type(call.request).__name__
        self.kinds.append(name)
        struct = call.prepare({3: (1, 12), 2: (1, 9), 9: (1, 9), 1: (4, 4)})
        if isinstance(call.request, (MetadataRequest, OffsetRequest)):
            self.structs.append(struct)
        left = self.answers[name]
        found = left.pop(0) if left[1:] else left[0]
        if isinstance(found, Exception):
            raise found
        return found


@pytest.mark.parametrize(("behind", "other"), [(5, 6), (78, 6), (78, 56)])
@pytest.mark.parametrize("request_", [FETCH, STABLE])
async def test_waits_until_the_coordinator_has_them(request_: Any, behind: int, other: int) -> None:
    """It asks for the latest offsets first, again as long as one is not known, but of those that it does not lead."""
    offsets = [latest(other, behind, behind), latest(other, 0, behind), latest(other, 0, 0)]
    made = Connection(MetadataRequest=[metadata(3)], OffsetRequest=offsets)
    fetched = made.answers["FetchOffsets"][0]
    response = await made.ask(request_)
    assert response.epochs == [(TopicPartition("t", 0), 7, 3, "")]
    assert (response is fetched) == (request_ is STABLE)
    assert made.kinds == ["MetadataRequest", *["OffsetRequest"] * 3, "FetchOffsets"]
    topics, asked = made.structs[:2]
    assert (topics.topics, topics.allow_auto_topic_creation) == ([TOPIC], False)
    assert (asked.replica_id, asked.isolation_level) == (-1, 0)
    assert asked.topics == [(TOPIC, [(0, -1), (1, -1), (2, -1)])]
    await made.ask(request_)  # how many there are is known by now
    assert made.kinds[5:] == ["OffsetRequest", "FetchOffsets"]


async def test_other_requests_are_sent_at_once() -> None:
    """Heartbeats and fetches do not wait."""
    made = Connection(FetchRequest=["found"])
    assert await made.ask(FetchRequest(0, 0, 0, 0, [])) == "found"
    assert made.kinds == ["FetchRequest"]


@pytest.mark.parametrize(("found", "told"), [(metadata(0, 29), 1), (metadata(0, 3), 0)])
async def test_without_the_topic(found: Any, told: int, caplog: pytest.LogCaptureFixture) -> None:
    """Who may not describe it, or where it is not there yet, goes on at once; the first is told, one time."""
    made = Connection(MetadataRequest=[found])
    with caplog.at_level(logging.INFO, "wideload.kafka.offset_fetches"):
        for _ in range(2):
            assert (await made.ask(FETCH)).topics == [("t", [(0, 7, "", 0)])]
    assert made.kinds == ["MetadataRequest", "FetchOffsets"] * 2
    assert caplog.text.count(f"grant Describe on topic {TOPIC}") == told


async def test_trouble() -> None:
    """It says which broker is waited for once that takes long; no more when it has answered, or is away."""
    clock, gone = Clock(), ConnectionError("gone")
    troubles = Troubles("p", clock)
    made = Connection(troubles, MetadataRequest=[metadata(2)], OffsetRequest=[latest(5, 5)])
    for found, outcome in ((latest(0, 0), None), (gone, gone)):
        made.answers["OffsetRequest"][:] = [latest(5, 5)]
        count = len(made.kinds)
        waiting = asyncio.create_task(made.ask(FETCH))
        async with asyncio.timeout(10):
            while len(made.kinds) <= count + 2:  # noqa: ASYNC110  # nothing tells
                await asyncio.sleep(0)
        assert troubles.text(OFFSETS) is None
        clock.now_s += 11
        told = str(troubles.text(OFFSETS))
        assert told.startswith("broker b1:9 does not know the committed offsets since 20")
        assert f"topic {TOPIC}, partition 0 and 1 more, waits for its replicas" in told
        made.answers["OffsetRequest"][:] = [found]
        await asyncio.wait([waiting])
        assert waiting.exception() is outcome
        assert troubles.text(OFFSETS) is None


@pytest.mark.parametrize(
    ("said", "rows"),
    [
        (answer(error=16), [(0, -1, "", 16), (1, -1, "", 16)]),
        # GROUP_ID_NOT_FOUND: kfake has no group before the first commit.
        (answer(error=69), [(0, -1, "", 0), (1, -1, "", 0)]),
        # COORDINATOR_NOT_AVAILABLE, REQUEST_TIMED_OUT: aiokafka would end by them, where another coordinator helps.
        (answer(error=15), [(0, -1, "", 16), (1, -1, "", 16)]),
        (answer((0, -1, "", 7)), [(0, -1, "", 16)]),
        (answer((0, 7, "", 0)), [(0, 7, "", 0)]),
    ],
)
async def test_error_of_a_response_is_one_of_its_partitions(said: Any, rows: list[Any]) -> None:
    """aiokafka looks at these alone: a response with an error and without partitions would mean "nothing committed"."""
    assert (await Connection(FetchOffsets=[said]).ask(FETCH)).topics == [("t", rows)]


@pytest.mark.parametrize(
    ("said", "commits"),
    [
        (answer((0, 7, "note", 0), (1, -1, "", 0), (2, 0, None, 0)), {0: (7, "note"), 2: (0, "")}),
        (answer(error=69), {}),
        (answer((0, 7, "", 0), (1, -1, "", 88)), None),  # one waits for a transaction: all are asked for again
        (answer(error=16), NotCoordinatorError),
        (answer((0, -1, "", 30)), GroupAuthorizationFailedError),
    ],
)
def test_commits_are_those_that_there_are(said: Any, commits: Any) -> None:
    """Without partitions that have none; what the coordinator refuses, of the group or of a partition, is raised."""
    if isinstance(commits, type):
        with pytest.raises(commits):
            FetchOffsets.commits(said)
        return
    expected = commits and {TopicPartition("t", n): OffsetAndMetadata(*each) for n, each in commits.items()}
    assert FetchOffsets.commits(said) == expected


def test_request_asks_for_stable_offsets() -> None:
    """The request is the first version that can ask for it, with the partitions by topic."""
    request = FetchOffsets("g", [TopicPartition("a", 0), TopicPartition("b", 2), TopicPartition("a", 1)], stable=True)
    built = request.prepare({9: (1, 9), 1: (4, 4)})
    assert built.API_VERSION == 7
    assert built.to_object()["require_stable"] is True
    assert [(each["topic"], each["partitions"]) for each in built.to_object()["topics"]] == [("a", [0, 1]), ("b", [2])]
