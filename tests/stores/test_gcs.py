"""What is Google's own: errors, times, settings, deletes by generation. The behaviour of any store is elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from app.config.secret import Secret
from stores.gcs import GcsStore
from stores.registry import open_store
from stores.store import PayloadInfo
from tests.cloud_server import CloudServer
from tests.gcs_server import gcs_server_or_skip
from tests.s3_server import free_port
from tests.stores.conftest import SetClock
from tests.stores.scripted_server import Request, Script, Wire, dribbling, error, scripted_server
from transforms.errors import (
    ConfigurationError,
    PayloadStoreAccessError,
    PayloadStoreError,
    ReferenceRefusedError,
)

MIB = 1 << 20
NAME = "orders", "an-id"
HEAD = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\nx-goog-generation: 7\r\n'


@pytest.fixture(scope="module")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudServer]:
    with gcs_server_or_skip(tmp_path_factory.mktemp("gcs")) as server:
        yield server


def config(endpoint: str, **more: object) -> dict[str, object]:
    return {
        "gcs.bucket": "payloads",
        "gcs.endpoint": endpoint,
        "gcs.anonymous": True,
        "gcs.retry.attempts": 1,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@contextlib.contextmanager
def opened(keys: Mapping[str, object]) -> Iterator[GcsStore]:
    store = GcsStore()
    store.configure(keys)
    with contextlib.closing(store):
        yield store


def payload(body: bytes, length: int) -> Script:
    def script(_: Request, wire: Wire) -> bool:
        wire.write(b"%bContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (HEAD, length, body))
        return False

    return script


def test_a_server_that_drips_is_cut() -> None:
    """A byte now and then, in a payload, in an error or in a head, keeps no call beyond its time."""

    def drip(request: Request, wire: Wire) -> bool:
        ok = request.method == "GET" and request.path.startswith("/payloads/")
        wire.write((HEAD if ok else b"HTTP/1.1 400 Bad\r\n") + b"Content-Length: 100000\r\n\r\n")
        with contextlib.suppress(OSError):
            while not wire.stopped.wait(0.05):
                wire.write(b"x")
        return False

    def drip_head(_: Request, wire: Wire) -> bool:
        wire.write(b"HTTP/1.1 200 OK\r\n")
        with contextlib.suppress(OSError):
            while not wire.stopped.wait(0.05):
                wire.write(b"x")
        return False

    keys = {"large_message_store_timeout_ms": 600}
    before = {*threading.enumerate()}
    with scripted_server(drip_head) as server, opened(config(server.endpoint, **keys)) as store:
        began = time.monotonic()
        with pytest.raises(PayloadStoreError, match=r"no complete response|did not finish") as caught:
            store.expiry_rules("orders")
        assert caught.value.retriable
        assert time.monotonic() - began < 3
        for thread in {*threading.enumerate()} - before:
            if thread.name == "wideload-cloud-call":
                thread.join(30)  # it ends by itself, while the server still drips
                assert not thread.is_alive()
    with scripted_server(drip) as server, opened(config(server.endpoint, **keys)) as store:
        for call in (
            lambda: store.get(store.root.path(*NAME), MIB),
            lambda: list(store.list()),
            lambda: store.put(*NAME, b"data"),
        ):
            began = time.monotonic()
            with pytest.raises(PayloadStoreError) as caught:
                call()
            assert caught.value.retriable
            assert time.monotonic() - began < 3


@pytest.mark.parametrize(("status", "outcome"), [(404, "changed"), (503, "failed")])
def test_a_delete_names_the_generation_that_was_looked_at(status: int, outcome: str) -> None:
    """A payload that is published between look and delete has another generation, and stays."""

    def script(request: Request, wire: Wire) -> bool:
        if request.method == "DELETE":
            return error(status, "")(request, wire)
        wire.write(b"%bContent-Length: 0\r\n\r\n" % HEAD)
        return True

    with scripted_server(script) as server, opened(config(server.endpoint)) as store:
        info = store.stat(store.root.path(*NAME))
        (removal,) = store.delete_unchanged([info])
        assert removal.outcome == outcome
        (deleted,) = [request for request in server.requests if request.method == "DELETE"]
        assert deleted.path == "/storage/v1/b/payloads/o/orders%2Fan-id?generation=7"


def test_what_is_published_in_between_stays(gcs: CloudServer) -> None:
    """The server itself keeps a payload whose generation is not the one that was looked at."""
    with opened({**gcs.config("between"), "gcs.retry.attempts": 1}) as store:
        path = store.publish("orders", b"data")
        looked = store._client.head(store._key(path), path)
        store.publish("orders", b"data")
        again = store._client.head(store._key(path), path)
        assert looked.version != again.version
        with pytest.raises(Exception, match=r"^$") as caught:
            store.delete_found(looked, path)
        assert type(caught.value).__name__ == "ChangedError"
        assert store.download(path) == b"data"
        assert store.delete_found(again, path) is False
        assert [removal.outcome for removal in store.delete_unchanged([PayloadInfo(path, 4, again.modified)])] == [
            "gone"
        ]


def test_objects_of_others_are_skipped(gcs: CloudServer) -> None:
    """Names that no payload has, such as those with an empty segment, end no listing."""
    with opened(gcs.config("shared")) as store:
        path = store.publish("orders", b"data")
        for name in ("shared/orders/a//b", "shared//c", "shared/orders/id/", "shared/orders/../y", "shared/\x01/b"):
            store._rest.send("PUT", f"{gcs.endpoint}/payloads/{quote(name, safe='')}", 10)
        assert [info.path for info in store.list()] == [info.path for info in store.list("orders")] == [path]
        assert list(store.topics()) == ["orders"]


LONG_AGO = b'{"items": [{"name": "a", "size": "1", "updated": "0001-01-01T00:00:00+23:59", "generation": "1"}]}'


@pytest.mark.parametrize(
    "page",
    [
        b"[]",
        b'{"items": 5}',
        b'{"items": [{}]}',
        b'{"items": [{"name": "a", "size": "x"}]}',
        b"<html>",
        b"[" * 200_000,
        LONG_AGO,
    ],
    ids=lambda page: page[:40].decode(),
)
def test_a_listing_that_is_none_is_an_error(page: bytes) -> None:
    """What is not written as Google writes it is no empty bucket."""

    def says(_: Request, wire: Wire) -> bool:
        wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page))
        return True

    with scripted_server(says) as server, opened(config(server.endpoint)) as store:
        with pytest.raises(PayloadStoreError, match="not a response of GCS") as caught:
            list(store.list())
        assert caught.value.retriable


def test_an_answer_without_end_is_bounded() -> None:
    """A listing, or an error to it, is read to 4 MiB and no further, whatever the server says."""

    def endless(_: Request, wire: Wire) -> bool:
        wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        with contextlib.suppress(OSError):
            while not wire.stopped.is_set():
                wire.write(b"x" * MIB)
        return False

    with (
        scripted_server(endless) as server,
        opened(config(server.endpoint)) as store,
        pytest.raises(PayloadStoreError, match=r"exceeds 4,194,304 bytes"),
    ):
        list(store.list())


def test_bakdatas_payloads_are_read(gcs: CloudServer) -> None:
    """The form of bakdata's paths, with a folder below the topic, is read; it is neither listed nor deleted."""
    with opened(gcs.config("base")) as store:
        path = f"{store.root.uri}orders/values/an-id"
        store._client.put(store._key(path), b"theirs", path)
        assert store.download(path) == b"theirs"
        assert list(store.list()) == []
        with pytest.raises(ReferenceRefusedError):
            store.delete(path)


@pytest.mark.parametrize(
    ("keys", "name", "words"),
    [
        ({}, "gcs.bucket", "is missing"),
        ({"gcs.bucket": "UPPER"}, "gcs.bucket", "allowed is a bucket.s name: 3 to 222"),
        ({"gcs.prefix": "a//b"}, "gcs.prefix", "none empty"),
        ({"gcs.prefix": "x" * 600}, "gcs.prefix", "too long"),
        ({"gcs.endpoint": "ftp://x"}, "gcs.endpoint", "allowed is http"),
        ({"gcs.endpoint": "https://user:word@host"}, "gcs.endpoint", r"\*\*\*@host"),
        ({"gcs.endpoint": "http://host"}, "gcs.endpoint", "could be intercepted"),
        (
            {"gcs.anonymous": True, "gcs.credentials.json": "{}"},
            "gcs.anonymous",
            "cannot be combined with gcs.credentials.file",
        ),
        ({"gcs.credentials.file": "a", "gcs.credentials.json": "b"}, "gcs.credentials.json", "cannot be combined with"),
        ({"gcs.kms.key": "mine"}, "gcs.kms.key", "allowed is projects/P"),
        ({"gcs.bukket": "a"}, "gcs.bukket", "did you mean gcs.bucket"),
    ],
)
def test_wrong_keys_are_named(keys: Mapping[str, object], name: str, words: str) -> None:
    """A key that is missing, unknown or wrong is an error with its name, before any request."""
    given = {"gcs.bucket": "payloads", **keys} if keys else {}
    with pytest.raises(ConfigurationError, match=words) as caught:
        GcsStore().configure(given)
    assert caught.value.key == name


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without obstore the keys are known all the same, and opening the store says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'wideload\[gcs\]'"):
        open_store({"large.message.payload.store.class": "gcs", **config("http://127.0.0.1:1")})


def test_the_kms_key_goes_with_puts_alone() -> None:
    """`gcs.kms.key` is asked for where something is put."""
    kms = "projects/p/locations/l/keyRings/r/cryptoKeys/k"
    with scripted_server(payload(b"", 0)) as server, opened(config(server.endpoint, gcs_kms_key=kms)) as store:
        store.get(store.put(*NAME, b"data"), 9)
        sent = [request.headers.get("x-goog-encryption-kms-key-name") for request in server.requests]
        assert sent == [kms, None]


def test_credentials_are_never_told(tmp_path: Path) -> None:
    """A credentials key that is none is refused without a word of it."""
    pytest.importorskip("google.auth")
    for text in ('{"private_key": "sesame"', '"sesame"', '{"private_key": "sesame"}'):
        with pytest.raises(ConfigurationError, match="is not the JSON of a credentials file") as caught:
            GcsStore().configure({"gcs.bucket": "payloads", "gcs.credentials.json": Secret(text)})
        assert "sesame" not in str(caught.value) + repr(caught.value.__cause__) + repr(caught.value.__context__)


@pytest.mark.parametrize("where", ["gcs.credentials.file", "gcs.credentials.json", "environment", "machine"])
def test_a_token_of_googles_chain_goes_with_every_request(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials are exchanged for a token once, and obstore and the JSON interface send it.

    They are workload identity federation, of a key or of the environment, or the service account of the machine.
    """
    pytest.importorskip("google.auth")
    monkeypatch.setenv("HOME", str(tmp_path))  # where gcloud keeps its own
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)

    def script(request: Request, wire: Wire) -> bool:
        kind = b"application/json"
        if request.path.partition("?")[0].endswith("/token"):
            body = b'{"access_token": "sesame", "expires_in": 3600, "token_type": "Bearer", "issued_token_type": "t"}'
        elif "/computeMetadata/" in request.path and "recursive=true" in request.path:
            body = b'{"email": "worker@acme", "scopes": []}'
        elif "/computeMetadata/" in request.path:
            body, kind = b"acme", b"text/plain"
        else:
            body = b'{"metageneration": "1"}' if request.path.startswith("/storage/") else b"data"
        more = b"Metadata-Flavor: Google\r\nContent-Type: %b\r\nContent-Length: %d" % (kind, len(body))
        wire.write(b"%b%b\r\n\r\n%b" % (HEAD, more, body))
        return True

    with scripted_server(script) as server:
        described = federation(f"{server.endpoint}/token", tmp_path)
        file = tmp_path / "credentials.json"
        file.write_text(described)
        keys = {"gcs.credentials.file": str(file), "gcs.credentials.json": described}
        if where == "environment":
            monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        elif where == "machine":
            for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
                monkeypatch.setenv(name, server.endpoint.removeprefix("http://"))
        with opened({"gcs.bucket": "payloads", **{name: keys[name] for name in keys if name == where}}) as store:
            _point(store, server.endpoint)
            store.get(store.root.path(*NAME), 9)
            store.get(store.root.path(*NAME), 9)
            assert store.expiry_rules("orders") == []
        asked = [
            request for request in server.requests if "/computeMetadata/" not in request.path and request.path != "/"
        ]
        paths = [request.path.partition("?")[0] for request in asked if request.path != "/token"]
        assert paths == ["/payloads/orders%2Fan%2Did", "/payloads/orders%2Fan%2Did", "/storage/v1/b/payloads"]
        assert len([request for request in server.requests if "token" in request.path]) == 1
        assert {request.headers["authorization"] for request in asked if request.path != "/token"} == {"Bearer sesame"}


def test_credentials_that_google_refuses_are_a_matter_of_access(tmp_path: Path) -> None:
    """A token service that says no is told apart from one that does not answer."""
    pytest.importorskip("google.auth")

    def refused(_: Request, wire: Wire) -> bool:
        body = b'{"error": "invalid_grant", "error_description": "expired"}'
        wire.write(
            b"HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        return True

    with scripted_server(refused) as server:
        keys = {"gcs.bucket": "payloads", "gcs.credentials.json": federation(server.endpoint, tmp_path)}
        with opened(keys) as store, pytest.raises(PayloadStoreAccessError, match="invalid_grant") as caught:
            store.check()
        assert caught.value.key == "gcs.credentials.file"
    down = federation(f"http://127.0.0.1:{free_port()}", tmp_path)
    with opened({"gcs.bucket": "payloads", "gcs.credentials.json": down}) as store:
        with pytest.raises(PayloadStoreError) as told:
            store.check()
        assert (told.value.retriable, type(told.value)) == (True, PayloadStoreError)


@pytest.mark.parametrize("where", ["gcs.credentials.file", "environment"])
def test_a_credentials_file_that_is_replaced_is_read_again(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Google refuses the old one, the same call continues with the new one; until then it says what is wrong."""
    pytest.importorskip("google.auth")
    valid = "/old"

    def script(request: Request, wire: Wire) -> bool:
        status, body = b"200 OK", b"data"
        if request.path in ("/old", "/new"):
            given = {"access_token": "sesame", "expires_in": 1, "token_type": "Bearer", "issued_token_type": "t"}
            refused = {"error": "invalid_grant", "error_description": "Invalid JWT Signature"}
            status, answer = (b"200 OK", given) if request.path == valid else (b"400 Bad", refused)
            body = json.dumps(answer).encode()
        head = HEAD.replace(b"200 OK", status)
        wire.write(b"%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
        return True

    with scripted_server(script) as server:
        file = tmp_path / "credentials.json"
        file.write_text(federation(f"{server.endpoint}/old", tmp_path))
        keys = {"gcs.bucket": "payloads"}
        if where == "environment":
            monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        else:
            keys[where] = str(file)
        with opened(keys) as store:
            _point(store, server.endpoint)
            path = store.root.path(*NAME)
            store.get(path, 9)
            valid = "/new"
            with pytest.raises(PayloadStoreAccessError, match="Invalid JWT Signature"):
                store.get(path, 9)
            file.write_text("{")
            with pytest.raises(PayloadStoreAccessError, match="GCS token failed: "):
                store.get(path, 9)
            file.write_text(federation(f"{server.endpoint}/new", tmp_path))
            store.get(path, 9)
            assert [request.path for request in server.requests][-2:] == ["/new", "/payloads/orders%2Fan%2Did"]


def test_a_forked_process_is_told(gcs: CloudServer) -> None:
    """obstore's threads are not there after a fork: that is said at once, in place of a call that hangs to its end."""
    with opened(gcs.config("forked")) as store:
        path = store.publish("orders", b"data")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that threads do not go with it
            pid = os.fork()
        if pid == 0:
            try:
                store.download(path)
            except PayloadStoreError as exc:
                os._exit(7 if "use the start method spawn or forkserver" in str(exc) and not exc.retriable else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert store.download(path) == b"data"


def test_a_store_goes_to_another_process_as_its_keys(gcs: CloudServer) -> None:
    """What Spark's executors get is the configuration; a process that knows no more reads it, and ends."""
    keys = {"large.message.payload.store.class": "gcs", **gcs.config("elsewhere")}
    with opened(gcs.config("elsewhere")) as store:
        path = store.publish("orders", b"data")
    code = "import pickle, sys; from stores.registry import open_store; keys, path = pickle.load(sys.stdin.buffer)"
    command = [sys.executable, "-c", f"{code}; sys.stdout.buffer.write(open_store(keys).download(path))"]

    def run(_: int) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(command, input=pickle.dumps((keys, path)), capture_output=True, timeout=60, check=False)

    # More than one, as obstore's functions for event loops let one process in five end by SIGABRT.
    with ThreadPoolExecutor(4) as pool:
        assert [(done.returncode, done.stdout) for done in pool.map(run, range(4))] == [(0, b"data")] * 4


def test_a_token_that_drips_ends_the_call(tmp_path: Path, set_clock: SetClock) -> None:
    """A service that says a byte of a token now and then keeps no call beyond its time, and the lock of no other."""
    pytest.importorskip("google.auth")
    from stores.gcs_token import Tokens

    with scripted_server(dribbling(b"HTTP/1.1 200 OK\r\nX-Slow: ")) as server:
        tokens = Tokens.configured(None, federation(f"{server.endpoint}/token", tmp_path), 60.0)
        with contextlib.closing(tokens):
            for _ in range(2):
                set_clock(50.0)
                with pytest.raises(PayloadStoreError, match=r"GCS token failed: .* did not finish") as caught:
                    tokens.ready(time.monotonic() + 300)
                assert caught.value.retriable


def test_credentials_that_hang_end_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """What google-auth does before it asks for a token has no bound: a metadata service, the program `gcloud`."""
    pytest.importorskip("google.auth")
    from stores.gcs_token import Tokens

    over = threading.Event()

    def hang(**_: object) -> None:
        over.wait(10)
        raise RuntimeError("the test is over")

    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setattr("google.auth.default", hang)
    with contextlib.closing(Tokens.configured(None, None, 60.0)) as tokens:
        try:
            for _ in range(2):
                with pytest.raises(PayloadStoreError, match="HangingError: has not answered for") as caught:
                    tokens.ready(time.monotonic() + 0.2)
                assert caught.value.retriable
        finally:
            over.set()


def test_a_redirection_takes_no_token_along(tmp_path: Path) -> None:
    """A token goes to the endpoint alone, wherever that leads."""
    pytest.importorskip("google.auth")

    def leads(request: Request, wire: Wire) -> bool:
        if request.path == "/token":
            body = b'{"access_token": "sesame", "expires_in": 3600, "token_type": "Bearer", "issued_token_type": "t"}'
            wire.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            )
        else:
            wire.write(b"HTTP/1.1 302 Found\r\nLocation: %b/x\r\nContent-Length: 0\r\n\r\n" % other.endpoint.encode())
        return True

    with scripted_server(error(404, "NoSuchKey")) as other, scripted_server(leads) as server:
        keys = {"gcs.bucket": "payloads", "gcs.credentials.json": federation(f"{server.endpoint}/token", tmp_path)}
        with opened({**keys, "gcs.retry.attempts": 1}) as store:
            _point(store, server.endpoint)
            for call in (lambda: store.check(writing=False), lambda: store.expiry_rules("orders")):
                with contextlib.suppress(PayloadStoreError):
                    call()
        assert [request.headers.get("authorization") for request in other.requests] == [None]


def federation(token_url: str, directory: Path) -> str:
    """Workload identity federation: the token of another identity provider, as a file has it, for one of Google's."""
    token = directory / "their-token"
    token.write_text("theirs")
    return json.dumps(
        {
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/p",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": token_url,
            "credential_source": {"file": str(token)},
        }
    )


def _point(store: GcsStore, endpoint: str) -> None:
    """Leads a store with a token to a server without TLS, which its keys refuse."""
    from obstore.store import GCSStore as Bucket

    provider: Any = store._tokens
    store._client.reader = Bucket(
        "payloads", config={"base_url": endpoint}, client_options={"allow_http": True}, credential_provider=provider
    )
    store._bucket_url = f"{endpoint}/storage/v1/b/payloads"
