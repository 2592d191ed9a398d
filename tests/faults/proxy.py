"""A proxy before an HTTP server that does, while it runs, what networks and servers do when they fail.

Requests pass byte by byte as they came, with their Host header, so that S3's signatures stay right: a store is given
`FaultProxy.endpoint` in place of the server's. It runs in a thread of its own, with an event loop of its own.

    with FaultProxy(server.endpoint) as proxy:
        proxy.switch(Error(503, share=0.5))
        ...
        proxy.switch(Ok())
        assert proxy.counts.errors > 0
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from tests.s3_server import S3Server, free_port

_PIECE_BYTES = 65_536
_HEAD_BYTES = 65_536
_CALL_S = 30.0
_NO_BODY = (204, 304)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Ok:
    """Lets everything pass."""


@dataclass(frozen=True, slots=True)
class Down:
    """Refuses connections, and closes those that there are, as a server does that is stopped."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Takes requests and never answers; who waits is cut off when it is over."""


@dataclass(frozen=True, slots=True)
class Slow:
    """Lets each request wait for so long before it goes on."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Error:
    """Answers a share of the requests, by chance, with a status and S3's words for `code`; the others pass.

    With `retry_after_s` the answer has the header `Retry-After`.
    """

    status: int = 503
    share: float = 1.0
    code: str = "SlowDown"
    retry_after_s: int | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """Closes the connection when more than so many bytes of a body have passed in one direction.

    Attributes:
        after_bytes: of the body; shorter ones pass whole.
        direction: `upload`, of requests; `download`, of answers.
    """

    after_bytes: int
    direction: Literal["upload", "download"]


@dataclass(slots=True)
class KeepRules:
    """Keeps the expiry rules of a bucket, byte for byte, in place of a server that has none; all else passes.

    As MinIO: no rules are a 404, rules that are removed leave none. The keeper of the rules deletes no payload.
    """

    rules: bytes = b""

    def answer(self, method: str, body: bytes) -> tuple[int, bytes]:
        """The status and the body for a request of `?lifecycle`."""
        if method != "GET":
            self.rules = body
            return (204 if method == "DELETE" else 200), b""
        if self.rules:
            return 200, self.rules
        return 404, b"<Error><Code>NoSuchLifecycleConfiguration</Code><Message>No rules.</Message></Error>"


Fault = Ok | Down | Hang | Slow | Error | Cut | KeepRules


@dataclass(frozen=True, slots=True)
class Counts:
    """What a proxy has done since it began.

    Attributes:
        connections: those that were taken.
        requests: those whose head has come, whatever became of them.
        passed: those that were answered by the server, to the last byte.
        hung: those that were not answered.
        slowed: those that had to wait.
        errors: those that the proxy answered itself.
        cuts: those that were cut in the middle of a body.
        downs: how often it went down.
    """

    connections: int = 0
    requests: int = 0
    passed: int = 0
    hung: int = 0
    slowed: int = 0
    errors: int = 0
    cuts: int = 0
    downs: int = 0


@contextlib.contextmanager
def keeping_rules(server: S3Server) -> Iterator[S3Server]:
    """The server, with expiry rules."""
    with FaultProxy(server.endpoint) as proxy:
        proxy.switch(KeepRules())
        yield replace(server, endpoint=proxy.endpoint)


class _CutError(Exception):
    """The body is to end here."""


@dataclass(frozen=True, slots=True)
class _Head:
    """The first lines of a request or an answer, as they came."""

    raw: bytes

    @property
    def start(self) -> list[str]:
        return self.raw.split(b"\r\n", 1)[0].decode("latin-1").split(" ")

    @property
    def status(self) -> int:
        return int(self.start[1])

    def get(self, name: str) -> str:
        for line in self.raw.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name.encode():
                return value.strip().decode("latin-1").lower()
        return ""


class FaultProxy:
    """A proxy on a port of 127.0.0.1, which it keeps while it is down.

    Args:
        target: the URL of the server, `http://host:port`.
        seed: of the chance by which `Error` takes its share.

    Attributes:
        endpoint: its own URL.
    """

    def __init__(self, target: str, *, seed: int = 0) -> None:
        parts = urlsplit(target)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)
        self._port = free_port()
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self._chance = random.Random(seed)
        # Written by the thread alone; other threads read what may be old by the time they look.
        self._fault: Fault = Ok()
        self._counts = Counts()
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()
        self._hanging: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)

    @property
    def fault(self) -> Fault:
        """What it does now."""
        return self._fault

    @property
    def counts(self) -> Counts:
        """What it has done since it began."""
        return self._counts

    def switch(self, fault: Fault) -> None:
        """Does this from now on; returns when it does. Requests that are under way go on, but `Down` cuts them off."""
        self._call(self._switch(fault))

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_S)
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_S)

    def _count(self, name: str) -> None:
        self._counts = replace(self._counts, **{name: getattr(self._counts, name) + 1})

    async def _switch(self, fault: Fault) -> None:
        self._fault = fault
        for writer in tuple(self._hanging):
            writer.transport.abort()
        if isinstance(fault, Down):
            self._count("downs")
            await self._stop_listening()
            for writer in tuple(self._clients):
                writer.transport.abort()
        elif self._server is None:
            await self._listen()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self._port, limit=_HEAD_BYTES, reuse_address=True, backlog=1024
        )

    async def _stop_listening(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def _close(self) -> None:
        await self._stop_listening()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._clients.add(writer)
        self._count("connections")
        try:
            async with contextlib.AsyncExitStack() as stack:
                upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
                while (head := await _head(reader)) is not None:
                    self._count("requests")
                    if await self._interferes(head, reader, writer):
                        return
                    if upstream is None:
                        upstream = await stack.enter_async_context(_connection(self._target))
                    if not await self._pass(head, (reader, writer), upstream):
                        return
        except _CutError:
            self._count("cuts")
            writer.transport.abort()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            self._clients.discard(writer)
            writer.close()

    async def _interferes(self, head: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Does what is to be done before a request goes on; True where it does not."""
        fault = self._fault
        if isinstance(fault, Hang):
            self._count("hung")
            self._hanging.add(writer)
            try:
                while await reader.read(_PIECE_BYTES):
                    pass
            finally:
                self._hanging.discard(writer)
            return True
        if isinstance(fault, Slow):
            self._count("slowed")
            await asyncio.sleep(fault.seconds)
        if isinstance(fault, KeepRules) and "lifecycle" in head.start[1].partition("?")[2]:
            if head.get("expect"):
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            sent = b"".join([piece async for piece in _body(head, reader, until_end=False)])
            status, body = fault.answer(head.start[0], sent)
            writer.write(
                b"HTTP/1.1 %d Kept\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(body), body)
            )
            await writer.drain()
            return True
        if isinstance(fault, Error) and self._chance.random() < fault.share:
            self._count("errors")
            body = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>Injected.</Message></Error>".encode()
            sent = b"" if head.start[0] == "HEAD" else body
            again = b"" if fault.retry_after_s is None else b"Retry-After: %d\r\n" % fault.retry_after_s
            writer.write(
                b"HTTP/1.1 %d Injected\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n%b"
                b"Connection: close\r\n\r\n%b" % (fault.status, len(body), again, sent)
            )
            await writer.drain()
            writer.write_eof()
            # What was being sent is taken, or the client might see a reset in place of the answer.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    while await reader.read(_PIECE_BYTES):
                        pass
            return True
        return False

    async def _pass(
        self,
        head: _Head,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> bool:
        """Passes a request on, and its answer back; False where the connection ends with it."""
        (from_client, to_client), (from_server, to_server) = client, server
        to_server.write(head.raw)
        await to_server.drain()
        answer: _Head | None = None
        if head.get("expect") == "100-continue":
            answer = await _head(from_server)
            if answer is None:
                return False
            if answer.status == 100:
                to_client.write(answer.raw)
                answer = None
        unread = answer is not None and head.get("content-length") not in {"", "0"}
        if answer is None:
            await self._copy_body(head, from_client, to_server, "upload")
            answer = await _head(from_server)
            if answer is None:
                return False
        if unread:
            # Nobody knows whether the body comes all the same; the client must not go on with this connection.
            answer = _Head(answer.raw.removesuffix(b"\r\n") + b"Connection: close\r\n\r\n")
        to_client.write(answer.raw)
        if head.start[0] != "HEAD" and answer.status not in _NO_BODY:
            await self._copy_body(answer, from_server, to_client, "download")
        await to_client.drain()
        self._count("passed")
        return "close" not in {head.get("connection"), answer.get("connection")}

    async def _copy_body(
        self,
        head: _Head,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        direction: Literal["upload", "download"],
    ) -> None:
        passed = 0
        async for piece in _body(head, source, until_end=direction == "download"):
            fault = self._fault
            if isinstance(fault, Cut) and fault.direction == direction and passed + len(piece) > fault.after_bytes:
                sink.write(piece[: fault.after_bytes - passed])
                await sink.drain()
                raise _CutError
            passed += len(piece)
            sink.write(piece)
            await sink.drain()


@contextlib.asynccontextmanager
async def _connection(address: tuple[str, int]) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*address, limit=_HEAD_BYTES)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def _head(reader: asyncio.StreamReader) -> _Head | None:
    """The head of what comes next; None at the end of the connection."""
    try:
        return _Head(await reader.readuntil(b"\r\n\r\n"))
    except asyncio.IncompleteReadError as exc:
        if exc.partial:
            raise
        return None


async def _body(head: _Head, reader: asyncio.StreamReader, *, until_end: bool) -> AsyncIterator[bytes]:
    """The bytes that belong to a head, piece by piece, as they are on the wire."""
    if "chunked" in head.get("transfer-encoding"):
        while True:
            line = await reader.readuntil(b"\r\n")
            yield line
            size = int(line.split(b";")[0], 16)
            if size == 0:
                while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
                    yield line
                yield line
                return
            async for piece in _exactly(reader, size + 2):
                yield piece
    elif length := head.get("content-length"):
        async for piece in _exactly(reader, int(length)):
            yield piece
    elif until_end:
        while piece := await reader.read(_PIECE_BYTES):
            yield piece


async def _exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    while size:
        piece = await reader.read(min(size, _PIECE_BYTES))
        if not piece:
            raise asyncio.IncompleteReadError(b"", size)
        size -= len(piece)
        yield piece
