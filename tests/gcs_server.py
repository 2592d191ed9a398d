"""A real Google Cloud Storage emulator for the tests: fake-gcs-server, in a separate process.

The binary comes from `bin` in the cache directory (`WIDELOAD_CACHE`, by default `~/.cache/wideload`), where
`make setup-clouds` puts it. It knows Google's JSON interface whole and of the XML interface, which obstore speaks, only
the reads. So a door before it translates the rest, word by word: a put into the JSON interface's upload, and the text
of a 404 into the code that Google gives.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import threading
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, unquote

import pytest

from tests.cloud_server import CloudServer, answering, running

_MODULE = "github.com/fsouza/fake-gcs-server@v1.56.1"
_HOP = {"connection", "transfer-encoding", "content-length", "host"}


@contextlib.contextmanager
def gcs_server(directory: Path) -> Iterator[CloudServer]:
    """Runs a server with an empty bucket `payloads`.

    Raises:
        FileNotFoundError: there is no binary; the message says what to do.
    """
    cache = Path(os.environ.get("WIDELOAD_CACHE") or Path.home() / ".cache" / "wideload")
    binary = cache / "bin" / "fake-gcs-server"
    if not os.access(binary, os.X_OK):
        raise FileNotFoundError(f"no {binary.name}: run `make setup-clouds`, which installs {_MODULE} and needs Go")

    def command(port: int) -> list[str]:
        address = f"127.0.0.1:{port}"
        return [
            *(str(binary), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)),
            *("-public-host", address, "-backend", "memory", "-log-level", "error"),
        ]

    with running(command, directory, answering("/_internal/healthcheck")) as address, _door(address) as endpoint:
        request = urllib.request.Request(
            f"http://{address}/storage/v1/b?project=p", b'{"name":"payloads"}', {"Content-Type": "application/json"}
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10):
            pass
        yield CloudServer("gcs", endpoint, {"gcs.bucket": "payloads", "gcs.endpoint": endpoint, "gcs.anonymous": True})


@contextlib.contextmanager
def gcs_server_or_skip(directory: Path) -> Iterator[CloudServer]:
    """As `gcs_server`; skips the test where this machine has no such server."""
    try:
        with gcs_server(directory) as server:
            yield server
    except FileNotFoundError as exc:
        pytest.skip(str(exc))


class _Door(BaseHTTPRequestHandler):
    """Translates a request for the server at `address`, and its answer."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    address: ClassVar[str]

    def setup(self) -> None:
        super().setup()
        self._behind = http.client.HTTPConnection(self.address, timeout=30)

    def finish(self) -> None:
        super().finish()
        self._behind.close()

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("/storage/"):
            status, headers, received = self._passed(self.command, self.path, body)
        elif self.command == "PUT":
            status, headers, received = self._put(body)
        else:
            status, headers, received = self._passed(self.command, self.path, body)
            if status == HTTPStatus.NOT_FOUND:
                received = _error("NoSuchKey")
        length = headers.pop("Content-Length", None) if self.command == "HEAD" else None
        self.send_response(status)
        for name, value in {**headers, "Content-Length": length or str(len(received))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(received)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = do_PATCH = answer  # noqa: N815  # http.server's names

    def log_message(self, *_: Any) -> None:
        pass

    def _put(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        bucket, _, key = self.path.removeprefix("/").partition("/")
        name = quote(unquote(key), safe="")
        status, _, received = self._passed(
            "POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}", body
        )
        if status != HTTPStatus.OK:
            return status, {}, _error("NoSuchBucket") if status == HTTPStatus.NOT_FOUND else received
        stored = json.loads(received)
        return status, {"ETag": stored["etag"], "x-goog-generation": stored["generation"]}, b""

    def _passed(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        sent = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        self._behind.request(method, path, body or None, {**sent, "Host": self.address})
        answer = self._behind.getresponse()
        own = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
        if method == "HEAD":
            own["Content-Length"] = answer.headers["Content-Length"] or "0"
        return answer.status, own, answer.read()


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>Said by the door.</Message></Error>".encode()


@contextlib.contextmanager
def _door(address: str) -> Iterator[str]:
    handler = type("_DoorOf", (_Door,), {"address": address})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as door:
        door.daemon_threads = True
        door.block_on_close = False
        thread = threading.Thread(target=door.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{door.server_address[1]}"
        finally:
            door.shutdown()
            thread.join()
