"""The S3 store and servers that are broken, or hostile: what they answer, and where they lead."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from botocore.awsrequest import AWSPreparedRequest

from tests.stores.scripted_server import Request, Script, Wire, error, payload, scripted_server
from tests.stores.test_s3 import MIB, NAME, calls, opened
from transforms.errors import (
    PayloadStoreError,
    PayloadTooLargeError,
    PayloadUnfitError,
    WideloadError,
)


@pytest.mark.parametrize("code", ["PermanentRedirect", "TemporaryRedirect", ""])
def test_a_bucket_of_another_region_names_the_key_to_change(code: str) -> None:
    """A redirection that leads nowhere is final after a few requests, and names `s3.region` and `s3.endpoint`."""
    with scripted_server(error(301, code)) as server, opened(server.config()) as store:
        for call in calls(store):
            with pytest.raises(PayloadStoreError, match=r"change s3\.region or s3\.endpoint") as caught:
                call()
            assert not caught.value.retriable
        assert len(server.requests) < 4 * len(calls(store))


def test_a_server_that_is_no_s3_server_is_final() -> None:
    """A web page instead of an answer of S3 is said to be one."""

    def page(_: Request, wire: Wire) -> bool:
        wire.write(b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 14\r\n\r\n<html><p>Hello")
        return True

    with scripted_server(page) as server, opened(server.config()) as store:
        for operation in ("PutObject", "GetObject"):
            with pytest.raises(PayloadStoreError, match=operation) as caught:
                store.check(writing=operation == "PutObject")
            assert not caught.value.retriable


def test_a_page_that_a_proxy_has_changed_is_no_listing() -> None:
    """Its status is another success than 200 then, which alone botocore looks behind."""

    def script(_: Request, wire: Wire) -> bool:
        wire.write(b"HTTP/1.1 203 Transformed\r\nContent-Length: 9\r\n\r\nBack soon")
        return True

    with scripted_server(script) as server, opened(server.config()) as store:
        with pytest.raises(PayloadStoreError, match="not a response of an S3 server") as caught:
            list(store.list())
        assert (caught.value.retriable, caught.value.key) == (True, "s3.endpoint")


@pytest.mark.parametrize("status", [200, 403])
@pytest.mark.parametrize(
    "body",
    [
        b"<Error>" + b"<a>" * 3_000 + b"</a>" * 3_000 + b"</Error>",
        b"<Error><Code>a</Code><Code>b</Code></Error>",
        b"<Error><Code><b>AccessDenied</b></Code></Error>",
        b"<ErrorResponse><Error>denied</Error></ErrorResponse>",
    ],
    ids=lambda body: body[:40].decode(),
)
def test_xml_of_another_form_is_an_error_of_the_store(status: int, body: bytes) -> None:
    """botocore takes it for what S3 says, and fails with errors of Python's own: no defect of the worker."""

    def script(request: Request, wire: Wire) -> bool:
        sent = b"" if request.method == "HEAD" else body
        wire.write(b"HTTP/1.1 %d Status\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), sent))
        return True

    with scripted_server(script) as server, opened(server.config()) as store:
        asking: list[Callable[[], object]] = [*calls(store), lambda: list(store.topics())]
        del asking[4]  # behind a delete nobody goes by the answer
        for call in asking:
            with pytest.raises(PayloadStoreError):
                call()


LISTING = b"<ListBucketResult><IsTruncated>false</IsTruncated><Contents>%b</Contents></ListBucketResult>"
HEADS = {"ETag": '"x"', "Content-Length": "1", "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}


def test_a_folder_without_a_name_is_no_topic() -> None:
    """Nor is it a defect of the worker."""
    listing = LISTING.replace(b"Contents", b"CommonPrefixes") % b""
    with scripted_server(payload(listing, length=len(listing))) as server, opened(server.config()) as store:
        assert list(store.topics()) == []


@pytest.mark.parametrize(
    ("heads", "body", "said"),
    [
        ({"Content-Length": None}, b"", "an answer without ContentLength"),
        ({"Last-Modified": None}, b"", "an answer without LastModified"),
        ({"Last-Modified": "yesterday"}, b"", 'Invalid timestamp "yesterday"'),
        (
            {"Last-Modified": f"Mon, 01 Jan 2024 {10**19}:00:00 GMT"},
            b"",
            "Python int too large|Invalid timestamp|correct timezone offset",
        ),
        ({"Last-Modified": "0001-01-01T00:00:00+23:59"}, b"", "date value out of range"),
        ({"Last-Modified": f"Wed, 26 Nov{10**19} 2025 10:00:00 GMT"}, b"", "Unable to calculate|Invalid timestamp"),
        ({"Content-Length": "one"}, b"", "invalid literal for int"),
        ({}, LISTING % b"<Key>t/i</Key><Size>1</Size>", "an answer without LastModified"),
        ({}, LISTING % b"<Key>t/i</Key><LastModified>2024-01-01T00:00:00Z</LastModified>", "an answer without Size"),
        ({}, LISTING % b"<Key>t/i</Key><Size>one</Size>", "invalid literal for int"),
        (
            {},
            LISTING % b"<Key>t/i</Key><Size>1</Size><LastModified>9999-12-31T23:59:59-01:00</LastModified>",
            "date value out of range",
        ),
    ],
)
def test_an_answer_that_lacks_something_is_an_error_of_the_store(
    heads: dict[str, str | None], body: bytes, said: str
) -> None:
    """It names the endpoint, and is no defect of the worker. It may pass.

    But the head of an object that lacks a part lacks it the next time, too: who wants the payload may still get it.
    """

    def script(request: Request, wire: Wire) -> bool:
        sent = {**HEADS, **({"Content-Length": str(len(body))} if body else {}), **heads}
        lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items() if value is not None)
        wire.write(f"HTTP/1.1 200 OK\r\n{lines}\r\n".encode() + body)
        return False

    with scripted_server(script) as server, opened(server.config()) as store:
        call: Callable[[], object] = (lambda: list(store.list())) if body else lambda: store.stat("s3://payloads/t/i")
        with pytest.raises(PayloadStoreError, match=said) as caught:
            call()
        assert "not a response of an S3 server; check s3.endpoint" in str(caught.value)
        lacking = not body and None in heads.values()
        assert (caught.value.retriable, caught.value.key) == (not lacking, "s3.endpoint")


def test_an_object_that_can_be_no_payload_need_not_say_its_size() -> None:
    """Others may have objects in that bucket: they end no listing."""
    payload_of_ours = b"<Key>t/i</Key><Size>1</Size><LastModified>2024-01-01T00:00:00Z</LastModified>"
    listing = LISTING % (b"<Key>t/of/others</Key></Contents><Contents>" + payload_of_ours)
    with scripted_server(payload(listing, length=len(listing))) as server, opened(server.config()) as store:
        assert [info.path for info in store.list()] == ["s3://payloads/t/i"]


def everything_is_well(request: Request, wire: Wire) -> bool:
    """Answers each request with a page, as a load balancer does whose servers are away."""
    page = b"" if request.method == "PUT" else b"<html>Back soon</html>"
    sent = b"" if request.method == "HEAD" else page
    wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(page), sent))
    return True


def test_a_proxy_that_takes_no_body_of_this_size_is_named() -> None:
    """nginx has a limit of a megabyte, and says it by a page."""

    def proxy(_: Request, wire: Wire) -> bool:
        page = b"<html><head><title>413 Request Entity Too Large</title></head></html>\r\n"
        wire.write(b"HTTP/1.1 413 Request Entity Too Large\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page))
        return True

    with (
        scripted_server(proxy) as server,
        opened(server.config()) as store,
        pytest.raises(PayloadUnfitError, match="client_max_body_size"),
    ):
        store.put(*NAME, b"data")


def test_a_success_with_an_error_in_it_is_an_error() -> None:
    """As S3 does it where the answer has begun before the end is known; nothing was stored, and is tried again."""

    def late(_: Request, wire: Wire) -> bool:
        body = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>Late.</Message></Error>"
        wire.write(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: %d\r\n\r\n%b' % (len(body), body))
        return True

    with scripted_server(late) as server, opened(server.config()) as store:
        with pytest.raises(PayloadStoreError, match="InternalError") as caught:
            store.put(*NAME, b"data")
        assert caught.value.retriable


def test_a_body_that_is_longer_than_it_said_harms_no_other_payload() -> None:
    """What comes behind the stated length is no part of a payload, nor of the next."""

    def longer(request: Request, wire: Wire) -> bool:
        wire.write(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 4\r\n\r\nfour and more')
        return True

    with scripted_server(longer) as server, opened(server.config()) as store:
        path, got = store.root.path(*NAME), list[bytes]()
        for _ in range(4):
            with contextlib.suppress(PayloadStoreError):  # what comes behind is no answer to the next request
                got.append(store.get(path, 99))
        assert set(got) == {b"four"}


def numbered(*answers: Script) -> Script:
    """Each request of a path gets the next answer, and those behind the last one get that."""
    asked = Counter[str]()

    def script(request: Request, wire: Wire) -> bool:
        asked[request.path] += 1
        return answers[min(asked[request.path], len(answers)) - 1](request, wire)

    return script


CUT = payload(b"four", length=100)


def gone(_: Request, wire: Wire) -> bool:
    """Closes the connection without an answer."""
    return False


@pytest.fixture
def at_once_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause before a payload is asked for again."""
    monkeypatch.setattr("stores.s3_body.random.random", lambda: 0.0)


@pytest.mark.usefixtures("at_once_again")
def test_a_body_that_is_cut_is_asked_for_again() -> None:
    """As a request that fails before it; each of several threads gets the whole of its own payload."""

    def named(request: Request, wire: Wire) -> bool:
        return payload(request.path.encode(), length=len(request.path))(request, wire)

    with scripted_server(numbered(CUT, CUT, named)) as server:
        config = server.config(s3_retry_attempts=3)
        with opened(config) as store, ThreadPoolExecutor(4) as pool:
            paths = [store.root.path("orders", f"{number}") for number in range(4)]
            got = list(pool.map(lambda path: store.get(path, 1_000), paths))
        assert got == [f"/payloads/orders/{number}".encode() for number in range(4)]
        assert len(server.requests) == 3 * 4


@pytest.mark.usefixtures("at_once_again")
@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ((CUT, CUT, CUT), "closed after 4 of 100 bytes"),
        ((CUT, error(500, "InternalError"), CUT), "closed after 4 of 100 bytes"),
        ((CUT, CUT, error(500, "InternalError")), "InternalError"),
        ((error(500, "InternalError"), CUT, gone), "ConnectionClosedError"),
    ],
)
def test_attempts_of_heads_and_bodies_are_counted_together(answers: Sequence[Script], told: str) -> None:
    """Three in all; the error is that of the last one."""
    with scripted_server(numbered(*answers)) as server, opened(server.config(s3_retry_attempts=3)) as store:
        with pytest.raises(PayloadStoreError, match=told) as caught:
            store.get(store.root.path(*NAME), 1_000)
        assert caught.value.retriable
        assert len(server.requests) == 3


@pytest.mark.usefixtures("at_once_again")
@pytest.mark.parametrize("then", [CUT, error(503, "SlowDown"), gone])
@pytest.mark.parametrize(("seconds", "requests"), [(46, 2), (47, 1)])
def test_a_body_is_asked_for_again_only_if_that_ends_in_time(
    monkeypatch: pytest.MonkeyPatch, then: Script, seconds: int, requests: int
) -> None:
    """Of 60 s an attempt takes 2 s, 1 s and 5 s, after a pause of 1 s or 2 s and the 5 s that a server may ask for."""
    now = [0]
    monkeypatch.setattr("stores.s3_body.time", SimpleNamespace(monotonic=lambda: now[0]))

    def slow(request: Request, wire: Wire) -> bool:
        now[0] = seconds
        return CUT(request, wire)

    with (
        scripted_server(numbered(slow, then)) as server,
        opened(server.config(s3_retry_attempts=3, large_message_store_timeout_ms=60_000)) as store,
    ):
        with pytest.raises(PayloadStoreError) as caught:
            store.get(store.root.path(*NAME), 1_000)
        assert caught.value.retriable
        assert len(server.requests) == requests


def test_what_another_attempt_does_not_change_is_not_asked_for_again() -> None:
    """A payload that is too large, and an answer that is not S3's."""
    with scripted_server(payload(b"12345")) as server, opened(server.config(s3_retry_attempts=3)) as store:
        with pytest.raises(PayloadTooLargeError):
            store.get(store.root.path(*NAME), 4)
        assert len(server.requests) == 1
    with scripted_server(everything_is_well) as server, opened(server.config(s3_retry_attempts=3)) as store:
        with pytest.raises(PayloadStoreError, match="without ETag"):
            store.get(store.root.path(*NAME), 4)
        assert len(server.requests) == 1


def test_a_body_of_no_stated_length_is_bounded() -> None:
    """Without Content-Length the payload is read to its end if that is within the limit, and not a MiB further."""
    with scripted_server(payload(b"12345")) as server, opened(server.config()) as store:
        path = store.root.path(*NAME)
        assert store.get(path, 5) == b"12345"
        with pytest.raises(PayloadTooLargeError) as caught:
            store.get(path, 4)
        assert caught.value.size is None


@pytest.mark.parametrize("status", [200, 403, 503])
def test_an_answer_without_end_is_bounded(status: int) -> None:
    """The body of an error, and that of a listing, is read to 16 MiB and no further, whatever the server says."""

    def endless(_: Request, wire: Wire) -> bool:
        wire.write(b"HTTP/1.1 %d Status\r\nContent-Length: 1000000000\r\n\r\n<a>" % status)
        with contextlib.suppress(OSError):
            while not wire.stopped.is_set():
                wire.write(b"x" * MIB)
        return False

    with scripted_server(endless) as server, opened(server.config()) as store:
        path = store.root.path(*NAME)
        called: list[Callable[[], object]] = [lambda: list(store.list("orders")), lambda: store.put(*NAME, b"data")]
        if status != HTTPStatus.OK:
            called.append(lambda: store.get(path, 9))
        for call in called:
            with pytest.raises(PayloadStoreError, match=r"the response exceeds 16,777,2[0-9]{2} bytes"):
                call()


@pytest.mark.parametrize("region", ["evil.example", "x/y#", "evil"])
def test_a_redirect_leads_to_amazons_hosts_alone(region: str) -> None:
    """Whatever region an answer names, no request with credentials goes to another host than this and Amazon's."""
    hosts: list[str] = []

    def elsewhere(_: Request, wire: Wire) -> bool:
        wire.write(b"HTTP/1.1 301 Moved\r\nx-amz-bucket-region: %b\r\nContent-Length: 0\r\n\r\n" % region.encode())
        return True

    def look(request: AWSPreparedRequest, **_: object) -> None:
        hosts.append(urlsplit(request.url).hostname or "")
        if not request.url.startswith(server.endpoint):
            raise ConnectionError("not sent")

    with scripted_server(elsewhere) as server, opened(server.config()) as store:
        store._client.meta.events.register_last("before-send.s3", look)
        with pytest.raises(WideloadError):
            store.put(*NAME, b"data")
    assert hosts
    assert all(host == "127.0.0.1" or host.endswith(".amazonaws.com") for host in hosts)
