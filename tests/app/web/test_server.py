"""The web server of the pages, over real connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from app.application import Application
from app.web import server
from tests.app.configurations import HEAD, ORDERS, settings_of
from tests.s3_server import free_port

_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def opened(more: str = "") -> AsyncIterator[int]:
    """The web server of a worker, without the rest of it; gives its port."""
    port = free_port()
    web: Any = Application(settings_of(f"web.port = {port}\n" + more + HEAD + ORDERS)).web
    web.init_server()
    await web.start_server()
    try:
        yield port
    finally:
        await web.stop_server()


@asynccontextmanager
async def connected(port: int, said: bytes = b"") -> AsyncIterator[_Stream]:
    """A connection that has sent these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(said)
        yield reader, writer
    finally:
        writer.close()


async def closed(reader: asyncio.StreamReader) -> bool:
    """Waits until the other side has closed."""
    try:
        async with asyncio.timeout(20):
            return await reader.read() == b""
    except ConnectionResetError:
        return True


async def test_silent_connections_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server keeps at most a hundred open connections, and a new request is answered."""
    monkeypatch.setattr(server, "_YOUNG_S", 0.0)
    async with opened() as port, AsyncExitStack() as stack:
        said = [b"", b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: "]
        held = [await stack.enter_async_context(connected(port, said[n % 2])) for n in range(150)]
        async with connected(port, b"GET /health/live HTTP/1.0\r\n\r\n") as (reader, _):
            assert b"200 OK" in await asyncio.wait_for(reader.read(), 20)
        for reader, _ in held[:50]:
            assert await closed(reader)
        assert sum(not reader.at_eof() and reader.exception() is None for reader, _ in held[51:]) == 99


@pytest.mark.parametrize("said", [b"", b"GET /health HTTP/1.1\r\nX-Slow: "])
async def test_a_request_that_does_not_end_is_closed(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent or slow connection without a complete request is closed after a while."""
    monkeypatch.setattr(server, "_IDLE_S", 0.2)
    async with opened() as port, connected(port, said) as (reader, _):
        assert await closed(reader)


async def test_a_large_request_is_refused() -> None:
    """A long line or an endless head is not kept in memory; the server answers 400."""
    async with opened() as port:
        for said in (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000):
            async with connected(port, said) as (reader, _):
                assert (await asyncio.wait_for(reader.readline(), 20)).startswith((b"HTTP/1.0 400", b"HTTP/1.1 400"))


async def test_a_flood_closes_no_probe() -> None:
    """A request that has just come is answered, however many connections are opened behind it."""
    async with opened() as port:
        # All this is there before the server has looked once.
        connections = [socket.create_connection(("127.0.0.1", port))]
        connections[0].sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
        many = range(server.MOST_CONNECTIONS + 10)
        connections.extend(socket.create_connection(("127.0.0.1", port)) for _ in many)
        try:
            reader, writer = await asyncio.open_connection(sock=connections[0])
            assert b"200 OK" in await asyncio.wait_for(reader.read(), 20)
            writer.close()
        finally:
            for each in connections:
                each.close()


@pytest.mark.parametrize(
    ("host", "answered"),
    [
        ("127.0.0.1:6066", True),
        ("[::1]:6066", True),
        ("localhost", True),
        ("worker:80", True),
        ("wideload.team.svc.cluster.local:6066", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example:6066", False),
        ("EVIL.example.", False),
        ("a:b:c", False),
        ("pages.example.com", True),
        (None, True),
    ],
)
async def test_names_of_others_are_refused(host: str | None, answered: bool) -> None:  # noqa: FBT001
    """A page of another host reads nothing by a name of its own that leads to this worker."""
    async with opened('web.hosts = ["Pages.example.com"]\n') as port:
        head = b"" if host is None else f"Host: {host}\r\n".encode()
        async with connected(port, b"GET /pipelines HTTP/1.0\r\n" + head + b"\r\n") as (reader, _):
            said = await asyncio.wait_for(reader.read(), 20)
    if answered:
        assert b" 200 OK" in said.splitlines()[0]
    else:
        assert said.splitlines()[0].split()[1] in {b"421", b"400"}
        assert b"orders" not in said


def test_any_name_may_be_allowed() -> None:
    """`*` stands for all of them."""
    assert server.answers_to("evil.example", ["*"])
