"""The web server of the pages, over real connections."""

from __future__ import annotations

import asyncio
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
async def opened() -> AsyncIterator[int]:
    """The web server of a worker, without the rest of it; gives its port."""
    port = free_port()
    web: Any = Application(settings_of(f"web.port = {port}\n" + HEAD + ORDERS)).web
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


async def test_silent_connections_make_room() -> None:
    """The server keeps at most a hundred open connections, and a new request is answered."""
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
