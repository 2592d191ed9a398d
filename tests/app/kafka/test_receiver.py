"""Responses as they come from a socket, in pieces of any length; the connection is a stand-in that notes them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from hypothesis import given, settings
from hypothesis import strategies as st

from app.kafka.receiver import receive_at_once

SMALL = 65_536
sizes = st.sampled_from([0, 1, 4, SMALL - 5, SMALL - 4, SMALL - 3, SMALL, SMALL + 1, 3 * SMALL]) | st.integers(0, 200)


class Connection:
    """What the receiver uses of a connection: a writer, requests that wait, a handler; and what it was told."""

    def __init__(self, transport: Transport) -> None:
        self._writer: Any = type("Writer", (), {"transport": transport})
        self._requests: list[object] = []
        self.handled: list[bytes] = []
        self.closed: list[BaseException | None] = []

    async def send(self, request: object) -> None:
        """Nothing is sent here."""

    def _handle_frame(self, response: bytes) -> None:
        assert type(response) is bytes
        self.handled.append(response)

    def close(self, reason: object = None, exc: BaseException | None = None) -> None:
        """Notes why."""
        self._writer = None
        self.closed.append(exc)


class Transport:
    """A transport that gives its protocol what the test says."""

    def __init__(self) -> None:
        self.protocol: Any = asyncio.Protocol()

    def get_protocol(self) -> Any:
        """The one that was set."""
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        """Takes the place of the former one."""
        self.protocol = protocol

    def give(self, data: bytes, lengths: Sequence[int]) -> None:
        """As a socket that has so many bytes at a time."""
        at, turn = 0, 0
        while at < len(data):
            view = self.protocol.get_buffer(-1)
            assert len(view) > 0
            piece = data[at : at + min(lengths[turn % len(lengths)], len(view))]
            view[: len(piece)] = piece
            self.protocol.buffer_updated(len(piece))
            at, turn = at + len(piece), turn + 1


async def taken_over() -> Connection:
    """A connection that a client has opened."""
    client: Any = AIOKafkaClient()
    connection = Connection(Transport())

    async def connect(node_id: int, **options: object) -> Connection:
        return connection

    client._get_conn = connect
    receive_at_once(client)
    await client._get_conn(1)
    return connection


def sent(responses: Sequence[bytes]) -> bytes:
    """As brokers send them: each behind its length."""
    return b"".join(struct.pack(">i", len(each)) + each for each in responses)


@settings(max_examples=150)
@given(st.lists(sizes, max_size=8), st.lists(st.integers(1, 9) | st.integers(1, 4 * SMALL), min_size=1, max_size=5))
def test_responses_are_received_whole(lengths: list[int], pieces: list[int]) -> None:
    """Each one, in order, however the socket cuts them."""
    responses = [bytes([number + 1]) * length for number, length in enumerate(lengths)]
    if sum(lengths) > 2_000:
        pieces = [*pieces, SMALL]  # else it takes long

    async def receive() -> list[bytes]:
        connection = await taken_over()
        connection._writer.transport.give(sent(responses), pieces)
        return connection.handled

    assert asyncio.run(receive()) == responses


async def test_a_length_takes_no_memory_before_its_bytes_come() -> None:
    """A broker that says 2 GB gets 64 MiB; more comes with the bytes."""
    connection = await taken_over()
    transport = connection._writer.transport
    transport.give(struct.pack(">i", 2**31 - 1) + b"x", [5])
    assert len(transport.protocol.get_buffer(-1)) < 64 * 2**20
    assert not connection.closed
    response = bytes(1_000) * 150_000
    connection = await taken_over()
    connection._writer.transport.give(sent([response, b"behind"]), [8 * 2**20])
    assert connection.handled == [response, b"behind"]


async def test_what_is_no_response_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    """A length below 0, or a response that cannot be handled; what comes behind it is not looked at."""
    connection = await taken_over()
    transport = connection._writer.transport
    transport.give(struct.pack(">i", -2) + sent([b"behind"]), [100])
    assert [str(each) for each in connection.closed] == ["a response of -2 bytes"]
    assert connection.handled == []
    connection = await taken_over()
    connection.handled = None  # type: ignore[assignment]
    connection._writer.transport.give(sent([b"one", b"two"]), [100])
    assert [type(each) for each in connection.closed] == [AttributeError]
    assert "a response of a broker cannot be read" in caplog.text


async def test_it_is_taken_over_once() -> None:
    """Several tasks may have waited for one connection, and each sees a new one."""
    client: Any = AIOKafkaClient()
    connection = Connection(Transport())

    async def connect(node_id: int, **options: object) -> Connection:
        await asyncio.sleep(0)
        return connection

    client._get_conn = connect
    receive_at_once(client)
    await asyncio.gather(*(client._get_conn(1) for _ in range(3)))
    receiver = connection._writer.transport.protocol
    assert type(receiver._own) is asyncio.Protocol


async def test_the_connection_hears_of_all_else() -> None:
    """Its own protocol is told that the connection ends, and when to write."""
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

    transport = Transport()
    transport.protocol = Own()
    client: Any = AIOKafkaClient()
    connection, error = Connection(transport), ConnectionResetError("gone")

    async def connect(node_id: int, **options: object) -> Connection:
        return connection

    client._get_conn = connect
    receive_at_once(client)
    await client._get_conn(1)
    transport.give(sent([bytes(100_000)])[:70_000], [70_000])
    protocol = transport.protocol
    protocol.pause_writing()
    protocol.resume_writing()
    assert protocol.eof_received() is True
    protocol.connection_lost(error)
    assert heard == ["pause", "resume", "eof", error]


async def test_a_connection_that_waits_for_an_answer_is_left_alone() -> None:
    """What is on its way would be lost between the two."""
    transport = Transport()
    own = transport.protocol
    client: Any = AIOKafkaClient()
    connection = Connection(transport)
    connection._requests.append(object())

    async def connect(node_id: int, **options: object) -> Connection:
        return connection

    client._get_conn = connect
    receive_at_once(client)
    await client._get_conn(1)
    assert transport.protocol is own
