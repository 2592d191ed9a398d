"""Responses as they come from a socket, in pieces of any length, and what is a view of them and no copy."""

from __future__ import annotations

import asyncio
import io
import struct
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.fetch import FetchRequest, FetchResponse_v4
from hypothesis import given, settings
from hypothesis import strategies as st

from app.kafka.receiver import handed_over, receive_at_once, viewed

SMALL = 65_536
sizes = st.sampled_from([0, 1, 4, SMALL - 5, SMALL - 4, SMALL - 3, SMALL, SMALL + 1, 3 * SMALL]) | st.integers(0, 200)


class Connection:
    """What the receiver uses of a connection, with a transport that gives its protocol what the test says."""

    def __init__(self, own: Any = None) -> None:
        self.protocol: Any = own or asyncio.Protocol()
        self._writer: Any = type("Writer", (), {"transport": self})
        self._requests: list[object] = []
        self.handled: list[bytes] = []
        self.closed: list[BaseException | None] = []

    async def open(self, times: int = 1) -> Connection:
        """As a client opens it, for so many tasks that wait for it."""
        client: Any = AIOKafkaClient()

        async def connect(node_id: int) -> Connection:
            await asyncio.sleep(0)
            return self

        client._get_conn = connect
        receive_at_once(client)
        await asyncio.gather(*(client._get_conn(1) for _ in range(times)))
        return self

    async def send(self, request: object) -> None:
        """Nothing is sent here."""

    def _handle_frame(self, response: bytes) -> None:
        assert type(response) is bytes
        self.handled.append(response)

    def close(self, reason: object = None, exc: BaseException | None = None) -> None:
        """Notes why."""
        self._writer = None
        self.closed.append(exc)

    def get_protocol(self) -> Any:
        """Of the transport."""
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        """Of the transport."""
        self.protocol = protocol

    def give(self, data: bytes, *lengths: int) -> None:
        """As a socket that has so many bytes at a time."""
        at, turn = 0, 0
        while at < len(data):
            view = self.protocol.get_buffer(-1)
            assert len(view) > 0
            piece = data[at : at + min(lengths[turn % len(lengths)], len(view))]
            view[: len(piece)] = piece
            self.protocol.buffer_updated(len(piece))
            at, turn = at + len(piece), turn + 1


def sent(*responses: bytes) -> bytes:
    """As brokers send them: each behind its length."""
    return b"".join(struct.pack(">i", len(each)) + each for each in responses)


@settings(max_examples=150)
@given(st.lists(sizes, max_size=8), st.lists(st.integers(1, 9) | st.integers(1, 4 * SMALL), min_size=1, max_size=5))
def test_responses_are_received_whole(lengths: list[int], pieces: list[int]) -> None:
    """Each one, in order, however the socket cuts them."""
    responses = [bytes([number + 1]) * length for number, length in enumerate(lengths)]
    if sum(lengths) > 2_000:
        pieces = [*pieces, SMALL]  # else it takes long
    connection = asyncio.run(Connection().open())
    connection.give(sent(*responses), *pieces)
    assert connection.handled == responses


async def test_a_length_takes_no_memory_before_its_bytes_come() -> None:
    """A broker that says 2 GB gets 64 MiB; more comes with the bytes."""
    connection = await Connection().open()
    connection.give(struct.pack(">i", 2**31 - 1) + b"x", 5)
    assert len(connection.protocol.get_buffer(-1)) < 64 * 2**20
    connection.give(bytes(64 * 2**20 - 1), 8 * 2**20)
    assert len(connection.protocol.get_buffer(-1)) == 64 * 2**20
    assert not connection.closed
    response = bytes(1_000) * 150_000
    connection = await Connection().open()
    connection.give(sent(response, b"behind"), 8 * 2**20)
    assert connection.handled == [response, b"behind"]


async def test_what_is_no_response_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    """A length below 0, or a response that cannot be handled; what comes behind it is not looked at."""
    connection = await Connection().open()
    connection.give(struct.pack(">i", -2) + sent(b"behind"), 100)
    assert [str(each) for each in connection.closed] == ["a response of -2 bytes"]
    assert connection.handled == []
    connection = await Connection().open()
    connection.handled = None  # type: ignore[assignment]
    connection.give(sent(b"one", b"two"), 100)
    assert [type(each) for each in connection.closed] == [AttributeError]
    assert "the response of a broker cannot be read" in caplog.text


async def test_the_connection_hears_of_all_else() -> None:
    """Its own protocol is told that the connection ends, and when to write, however many tasks have waited for it."""
    heard: list[object] = []

    class Own(asyncio.Protocol):
        def eof_received(self) -> bool:
            heard.append("eof")
            return True

        def connection_lost(self, exc: Exception | None) -> None:
            heard.append(exc)

        def pause_writing(self) -> None:
            heard.append("pause")

        def resume_writing(self) -> None:
            heard.append("resume")

    own, error = Own(), ConnectionResetError("gone")
    connection = await Connection(own).open(times=3)
    protocol = connection.protocol
    assert protocol._own is own
    connection.give(sent(bytes(100_000))[:70_000], 70_000)
    protocol.pause_writing()
    protocol.resume_writing()
    assert protocol.eof_received() is True
    protocol.connection_lost(error)
    assert heard == ["pause", "resume", "eof", error]


async def test_a_connection_that_waits_for_an_answer_is_left_alone() -> None:
    """What is on its way would be lost between the two."""
    connection = Connection()
    own = connection.protocol
    connection._requests.append(object())
    assert (await connection.open()).protocol is own


# --- views -----------------------------------------------------------------------------------------------------------

LONG = 100_000
FETCH = FetchRequest(500, 1, 1_000_000, 0, [("raw", [(0, 0, 0, 1_000_000)])], [])


def response(*parts: bytes | None) -> bytes:
    """The bytes of a response with these records, one partition each."""
    partitions = [(number, 0, 7, 7, None, records) for number, records in enumerate(parts)]
    encoded: bytes = FetchResponse_v4(0, [("raw", partitions)]).encode()
    return encoded


@pytest.mark.parametrize("handed", [True, False])
@pytest.mark.parametrize(
    ("parts", "views"),
    [
        ([b"x" * LONG], [True]),
        ([b"x" * LONG, b"", None, b"y" * 1_000], [True, False, False, False]),
        ([b"x" * LONG, b"y" * LONG], [False, False]),  # each would hold the other
        ([b"x" * 65_000], [False]),
    ],
)
def test_long_records_are_views(parts: list[bytes], views: list[bool], handed: bool) -> None:  # noqa: FBT001
    """Records that are most of a response are a view of it, all others are bytes of their own."""
    struct_ = viewed(FETCH.prepare({1: (4, 4)}), {})
    whole = response(*parts)
    data = io.BytesIO(handed_over(struct_, memoryview(whole)) if handed else whole)
    assert (len(data.getvalue()) < len(whole)) == (handed and len(whole) > 4_096)
    ((topic, partitions),) = struct_.RESPONSE_TYPE.decode(data).topics
    assert topic == "raw"
    assert [tuple(each) for each in partitions] == [
        (number, 0, 7, 7, partitions[number][4], part) for number, part in enumerate(parts)
    ]
    assert [isinstance(each[-1], memoryview) for each in partitions] == views
    assert all(bytes(each[-1].obj) == whole for each, view in zip(partitions, views, strict=True) if view)


def test_other_requests_are_handed_over_whole() -> None:
    """As is a login, which has no request. Fewer bytes than a length says are an error, as in aiokafka."""
    for request in (None, FETCH.prepare({1: (4, 4)})):
        assert handed_over(request, memoryview(b"x" * 10_000)) == b"x" * 10_000
    with pytest.raises(ValueError, match="underrun"):
        viewed(FETCH.prepare({1: (4, 4)}), {}).RESPONSE_TYPE.decode(io.BytesIO(response(b"x" * LONG)[:-1]))
