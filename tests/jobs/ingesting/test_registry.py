"""The client of a schema registry, with a server that may answer anything."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import UUID

import pytest

from jobs.driver.failures import JobFailedError
from jobs.ingesting import registry
from jobs.ingesting.registry import BadValueError, Registered, Registry, RegistrySettings
from tests.stores.scripted_server import dribbling, scripted_server
from transforms.errors import ConfigurationError

GUID = UUID(bytes=bytes(range(1, 17)))
SECRET = {"basic.auth.user.info": "user:pass-9"}

Answer = tuple[int, bytes, dict[str, str]]


class Server(ThreadingHTTPServer):
    """Answers as it is told, and notes what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str | None]] = []
        self.answer: Callable[[str], Answer] = lambda path: (404, b"", {})

    @property
    def url(self) -> str:
        scheme = "https" if isinstance(self.socket, ssl.SSLSocket) else "http"
        return f"{scheme}://127.0.0.1:{self.server_port}/api"

    def client(self, **options: str) -> Registry:
        return Registry(RegistrySettings(f"{self.url}/", options))

    @contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:  # its name in the standard library
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        status, body, headers = self.server.answer(self.path)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(registry, "_PAUSE", 0.0)
    with Server() as found, found.serving():
        yield found


@dataclass(frozen=True, slots=True)
class Certificates:
    """An authority, and what it has signed for the server and for a client, whose key has a password."""

    folder: Path

    @classmethod
    def made(cls, folder: Path) -> Certificates:
        new = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 2"
        usage = "-addext keyUsage=critical,keyCertSign,cRLSign"
        signed = "-CA ca.pem -CAkey ca.key -addext basicConstraints=critical,CA:FALSE"
        for command in (
            f"{new} -nodes -subj /CN=authority {usage} -keyout ca.key -out ca.pem",
            f"{new} -nodes {signed} -subj /CN=registry -addext subjectAltName=IP:127.0.0.1 -keyout s.key -out s.pem",
            f"{new} -passout pass:pass-9 {signed} -subj /CN=client -keyout client.key -out client.pem",
        ):
            subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
        return cls(folder)

    @property
    def trusting(self) -> dict[str, str]:
        """The options of a client that trusts the authority."""
        return {"ssl.ca.location": str(self.folder / "ca.pem")}

    def server(self, *, mutual: bool = False) -> Server:
        """A registry that answers by TLS."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "s.pem", self.folder / "s.key")
        if mutual:
            context.load_verify_locations(self.folder / "ca.pem")
            context.verify_mode = ssl.CERT_REQUIRED
        found = Server()
        found.socket = context.wrap_socket(found.socket, server_side=True)
        return found


def said(**found: object) -> Answer:
    return 200, json.dumps(found).encode(), {}


def test_schema_with_its_references(server: Server) -> None:
    """A schema comes with those that it refers to, each once, those first that others need; credentials go along."""
    schemas = {
        "/api/schemas/ids/7": said(
            schema="top",
            schemaType="PROTOBUF",
            references=[{"name": "a", "subject": "s/a", "version": 2}, {"name": "b", "subject": "b", "version": 1}],
        ),
        "/api/subjects/s%2Fa/versions/2": said(schema="A", references=[{"name": "b", "subject": "b", "version": 1}]),
        "/api/subjects/b/versions/1": said(schema="B", references=[{"name": "a", "subject": "s/a", "version": 2}]),
        "/api/subjects/t-value/versions/latest": said(schema="newest"),
        "/api/schemas/guids/01020304-0506-0708-090a-0b0c0d0e0f10": said(schema="by its GUID"),
    }
    server.answer = lambda path: schemas.get(path, (404, b"", {}))
    client = server.client(**SECRET)
    found = client.schema(7)
    assert found == Registered("PROTOBUF", "top", {"b": "B", "a": "A"})
    assert client.schema("t-value") == Registered("AVRO", "newest")
    assert client.schema(8) is None
    assert client.schema(GUID) == Registered("AVRO", "by its GUID")
    assert client.schema(UUID(int=0)) is None
    assert len(server.asked) == 7
    assert {authorization for _, authorization in server.asked} == {"Basic dXNlcjpwYXNzLTk="}
    assert client.schema("nope") is None


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((200, b"<html>", {}), "does not answer as a schema registry: status 200, 6 bytes"),
        ((200, b"[]", {}), "status 200, 2 bytes"),
        ((200, b"[" * 100_000, {}), "status 200"),
        ((200, b"{}", {}), "bytes without a schema"),
        ((200, b'{"schema": 5}', {}), "bytes without a schema"),
        ((200, b'{"schema": "x", "references": [1]}', {}), "a reference without name"),
        ((200, b'{"schema": "x", "references": 5}', {}), "a reference without name"),
        ((200, b'{"schema": "x", "references": [{"name": "n", "subject": "s", "version": 1e999}]}', {}), "a reference"),
        (
            (200, rb'{"schema": "x", "references": [{"name": "n", "subject": "\ud800", "version": 1}]}', {}),
            "a reference",
        ),
        ((200, b"<html>" + b"x" * (4 << 20), {}), "4,194,305 bytes without a schema"),
        ((302, b"", {"Location": "http://127.0.0.2:9/else"}), "status 302"),
        ((400, b"no", {}), "status 400"),
        ((401, b"user:pass-9", {}), "--schema-registry-config: the registry at http://127.0.0.1:"),
        ((403, b"user:pass-9", {}), "--schema-registry-config: the registry at http://127.0.0.1:"),
        ((503, b"busy", {}), "does not answer: status 503; 4 tries"),
        ((500, b"busy", {}), "does not answer: status 500; 4 tries"),
    ],
    ids=lambda each: None if isinstance(each, str) else f"{each[0]}-{each[1][:12].decode()}",
)
def test_odd_answers(server: Server, answer: Answer, message: str) -> None:
    """Whatever answers, it is one sentence with the address, without credentials; no redirect is followed.

    Credentials that are refused are the user's to set right.
    """
    server.answer = lambda path: answer
    with pytest.raises(ConfigurationError if answer[0] in (401, 403) else JobFailedError) as failed:
        server.client(**SECRET).schema(1)
    assert message in str(failed.value)
    assert f"http://127.0.0.1:{server.server_port}/api" in str(failed.value)
    assert "pass-9" not in str(failed.value)
    assert len(server.asked) == (4 if answer[0] >= 500 else 1)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"schema": "x" * (4 << 20)}, "is more than 4,194,304 bytes"),
        ({"schema": "x", "references": [{"name": "o", "subject": "other", "version": 3}]},
            "refers to version 3 of other, which the registry does not have"),
        ({"schema": "x", "references": [{"name": str(n), "subject": "s", "version": 1} for n in range(65)]},
            "refers to more than 64 others"),
    ],
)  # fmt: skip
def test_schemas_that_cannot_be_used(server: Server, schema: dict[str, object], message: str) -> None:
    """A registry has schemas from anyone: one of an unknown type, or without bounds, makes bad values of its values."""
    whole = {"/api/schemas/ids/1": said(**schema), "/api/subjects/s/versions/1": said(schema="y")}
    server.answer = lambda path: whole.get(path, (404, b"", {}))
    with pytest.raises(BadValueError) as failed:
        server.client().schema(1)
    assert str(failed.value) == f"whose schema {message}"


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n"])
def test_slow_answer(monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    """An answer that comes byte by byte is given up after its time, however alive it is, in its head as in its body."""
    monkeypatch.setattr(registry, "_SECONDS", 0.2)
    with (
        scripted_server(dribbling(start)) as slow,
        pytest.raises(JobFailedError, match="does not answer: its answer takes longer"),
    ):
        Registry(RegistrySettings(slow.endpoint)).schema(1)


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry by TLS is trusted by its authority, and may ask for a certificate; else it is the user's to set right.

    The registry is a stand-in of the test's own.
    """
    monkeypatch.setattr(registry, "_PAUSE", 0.0)
    made = Certificates.made(tmp_path)
    trusting, own = made.trusting, str(tmp_path / "client.pem")
    certified = {"ssl.certificate.location": own, "ssl.key.location": str(tmp_path / "client.key")}
    with made.server() as server, server.serving():
        server.answer = lambda path: said(schema="x")
        assert server.client(**SECRET, **trusting).schema("s") == Registered("AVRO", "x")
        assert server.asked == [("/api/subjects/s/versions/latest", "Basic dXNlcjpwYXNzLTk=")]
        other = server.url.replace("127.0.0.1", "localhost")
        rows: list[tuple[str, dict[str, str], str]] = [
            (server.url, {}, f"the certificate of the registry at {server.url} is not "),
            (server.url, {}, "; name the file of its authority with ssl.ca.location"),
            (other, trusting, "not valid for 'localhost'"),
            ("", {"ssl.ca.location": "/nope.pem"}, "ssl.ca.location /nope.pem cannot be used: No such file"),
            ("", {"ssl.ca.location": "/dev/null"}, "ssl.ca.location /dev/null cannot be used: NO_CERT"),
            (
                "",
                {"ssl.certificate.location": "/nope.pem"},
                "ssl.key.location /nope.pem (opened by ssl.key.password) cannot be used: No such file",
            ),
            ("", certified, f"{own}, ssl.key.location {tmp_path}/client.key (opened by ssl.key.password) cannot be "),
            ("", {"ssl.key.location": own}, "has ssl.key.location without ssl.certificate.location"),
        ]
        for url, options, told in rows:
            with pytest.raises(ConfigurationError, match=r"^--schema-registry-config: ") as failed:
                Registry(RegistrySettings(url or server.url, SECRET | options)).schema("s")
            assert told in str(failed.value)
            assert "pass-9" not in str(failed.value)
        assert len(server.asked) == 1
    with made.server(mutual=True) as server, server.serving():
        server.answer = lambda path: said(schema="x")
        certified |= {"ssl.key.password": "pass-9"}
        assert server.client(**trusting, **certified).schema("s") == Registered("AVRO", "x")
        with pytest.raises(JobFailedError, match="does not answer"):
            server.client(**trusting).schema("s")


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("localhost:8081", {}, "is http://HOST:PORT"),
        ("ftp://h", {}, "is http://HOST:PORT"),
        ("http://h:99999", {}, "is http://HOST:PORT"),
        ("http://user:pass-9@h", {}, "contains credentials"),
        ("http://h", {"pass-9": ""}, "unknown property"),
        ("http://h", {"basic.auth.user.info": "pass-9"}, "which is not USER:PASSWORD"),
    ],
)
def test_settings(url: str, options: dict[str, str], message: str) -> None:
    """Settings that cannot be right are told without a request, and without their secrets."""
    settings = RegistrySettings(url, options)
    with pytest.raises(ConfigurationError, match=message) as failed:
        settings.check()
    assert "pass-9" not in str(failed.value).replace("property 'pass-9'", "")
    assert "pass-9" not in repr(RegistrySettings("http://h", options))
