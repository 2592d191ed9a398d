"""A server that breaks S3's rules as a test tells it to: what no real server does when it is asked."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, slots=True)
class Request:
    """What the client sent, as far as the server read it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Wire:
    """The server's end of a connection.

    Attributes:
        write: sends bytes as they are.
        stopped: set when the test is over, for a script that waits.
    """

    write: Callable[[bytes], object]
    stopped: threading.Event


Script = Callable[[Request, Wire], bool]

Refusal = Callable[[Request, bool], Script | None]
"""What is answered in place of a bucket, by whether the object is there; None if the bucket answers."""

MODIFIED = "Wed, 26 Nov 2025 10:00:00 GMT"
"""When each object of a `Bucket` was last changed."""


HURRIED = {"s3_connection_timeout_ms": 200, "s3_read_timeout_ms": 300}
"""For a test that waits for a time-out; in others a busy machine may take longer."""


@dataclass(slots=True)
class ScriptedServer:
    """A running server. A script answers a request and says whether the connection stays open."""

    endpoint: str
    requests: list[Request] = field(default_factory=list)
    connections: int = 0

    def config(self, **more: object) -> dict[str, object]:
        """The keys of a store on this server."""
        return {
            "s3.bucket": "payloads",
            "s3.endpoint": self.endpoint,
            "s3.access.key": "AKIASCRIPTED",
            "s3.secret.key": "the-secret-key",
            "s3.connection.timeout.ms": 2_000,
            "s3.read.timeout.ms": 5_000,
            "s3.retry.attempts": 1,
            **{name.replace("_", "."): value for name, value in more.items()},
        }


def error(status: int, code: str) -> Script:
    """Answers with an error as S3 words it."""
    return said(status, code, "Said so.")


def payload(body: bytes, *, length: int | None = None) -> Script:
    """Answers with `body` and closes; `length` is the Content-Length, which may be a lie; None for none at all."""

    def script(_: Request, wire: Wire) -> bool:
        head = b"" if length is None else b"Content-Length: %d\r\n" % length
        wire.write(b'HTTP/1.1 200 OK\r\nETag: "e"\r\n%bConnection: close\r\n\r\n%b' % (head, body))
        return False

    return script


def dribbling(start: bytes) -> Script:
    """Answers with `start`, and then for ever with one byte before each time-out."""

    def dribble(_: Request, wire: Wire) -> bool:
        wire.write(start)
        while not wire.stopped.wait(0.02):
            wire.write(b"x")
        return False

    return dribble


def said(status: int, code: str, message: str, more: str = "") -> Script:
    """Answers with an error that has this message, and `more` elements."""

    def script(request: Request, wire: Wire) -> bool:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>".encode()
        sent = b"" if request.method == "HEAD" else body
        wire.write(b"HTTP/1.1 %d Status\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), sent))
        return True

    return script


@dataclass(slots=True)
class Bucket:
    """The script of a bucket in memory; `refuses` may answer in its place."""

    refuses: Refusal
    objects: dict[str, bytes] = field(default_factory=dict)

    def __call__(self, request: Request, wire: Wire) -> bool:
        url = urlsplit(request.path)
        name = unquote(url.path)
        refusal = self.refuses(request, name in self.objects)
        if refusal is not None:
            return refusal(request, wire)
        if request.method == "PUT":
            self.objects[name] = request.body
        elif request.method == "DELETE":
            self.objects.pop(name, None)
            wire.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            return True
        elif name not in self.objects and name != "/payloads":
            return error(404, "NoSuchKey")(request, wire)
        body = self.objects.get(name, b"") if request.method in ("GET", "HEAD") else b""
        head = f'HTTP/1.1 200 OK\r\nETag: "e"\r\nLast-Modified: {MODIFIED}\r\nContent-Length: {len(body)}\r\n\r\n'
        wire.write(head.encode() + (b"" if request.method == "HEAD" else body))
        return True


@contextlib.contextmanager
def scripted_server(
    script: Script, tls: ssl.SSLContext | None = None, expect: Callable[[Wire], bool] | None = None
) -> Iterator[ScriptedServer]:
    """Runs a server on 127.0.0.1 that answers each request by `script`.

    Args:
        script: see `Script`.
        tls: of a server with TLS.
        expect: answers `Expect: 100-continue`, and says whether the body is read; by default with 100.
    """
    stopped = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            state.connections += 1

        def handle_expect_100(self) -> bool:
            return super().handle_expect_100() if expect is None else expect(Wire(self.wfile.write, stopped))

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            state.requests.append(request)
            self.close_connection = not script(request, Wire(self.wfile.write, stopped))

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = do_PATCH = answer  # noqa: N815  # the names that http.server calls

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """The client going away is what the tests are about."""

        def shutdown_request(self, request: Any) -> None:
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)
            super().shutdown_request(request)

    with Server(("127.0.0.1", 0), Handler) as server:
        state = ScriptedServer(f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}")
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield state
        finally:
            stopped.set()
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def slow_reader(piece_bytes: int, pause_seconds: float) -> Iterator[str]:
    """Runs a server that reads the one body it is sent piece by piece, and never answers; its endpoint."""
    stopped = threading.Event()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            while not stopped.wait(pause_seconds):
                connection.recv(piece_bytes)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stopped.set()
            thread.join()
