"""The stores of buckets and servers that are broken, or hostile. What only one service does is in its own file."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from tests.s3_server import free_port
from tests.stores.buckets import HEAD, KINDS, NAME, Kind, calls
from tests.stores.scripted_server import Request, Script, Wire, error, scripted_server
from transforms.errors import (
    PayloadNotFoundError,
    PayloadStoreAccessError,
    PayloadStoreError,
    PayloadTooLargeError,
    PayloadUnfitError,
    ReferenceRefusedError,
)


@pytest.fixture(params=KINDS.values(), ids=lambda kind: kind.start)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each store of buckets."""
    found: Kind = request.param
    return found


def answer(text: bytes, *, length: int | None = None, head: bytes = HEAD) -> Script:
    """Answers each request with this body, and closes; the length may be a lie."""

    def script(request: Request, wire: Wire) -> bool:
        size = len(text) if length is None else length
        body = b"" if request.method == "HEAD" else text
        wire.write(b"%bContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (head, size, body))
        return False

    return script


OK = b"HTTP/1.1 200 OK\r\n"
PAGE = answer(b"<html>Back soon</html>", head=OK)
"""What a load balancer answers whose servers are away."""


class Said(NamedTuple):
    """What an answer becomes: the class of the error, whether it may pass, and the key to change."""

    error: type[PayloadStoreError]
    may_pass: bool
    key: str | None = None


PASSES, STAYS, UNFIT = Said(PayloadStoreError, True), Said(PayloadStoreError, False), Said(PayloadUnfitError, False)


def denied(key: str | None = None) -> Said:
    return Said(PayloadStoreAccessError, False, key)


def blames(key: str, *, may_pass: bool = False) -> Said:
    return Said(PayloadStoreError, may_pass, key)


# By status and code. An empty code is an answer without one.
ANSWERS: dict[str, dict[tuple[int, str], Said]] = {
    "s3": {
        (503, "SlowDown"): PASSES,
        (503, "ServiceUnavailable"): PASSES,
        (500, "InternalError"): PASSES,
        (502, ""): PASSES,
        (507, "XMinioStorageFull"): PASSES,
        (429, "TooManyRequestsException"): PASSES,
        (400, "RequestTimeout"): PASSES,
        (400, "IncompleteBody"): PASSES,
        (400, "BadDigest"): PASSES,
        (400, "XAmzContentSHA256Mismatch"): PASSES,
        (409, "OperationAborted"): PASSES,
        (307, "TemporaryRedirect"): blames("s3.region", may_pass=True),
        (301, "PermanentRedirect"): blames("s3.region"),
        (302, ""): blames("s3.region"),
        (501, "NotImplemented"): STAYS,
        (403, "AccessDenied"): denied("s3.access.key"),
        (403, "RequestTimeTooSkewed"): denied(),
        (400, "RequestTimeTooSkewed"): denied(),
        (400, "TokenRefreshRequired"): denied(),
        (400, "RequestExpired"): denied(),
        (400, "ExpiredToken"): denied("s3.session.token"),
        (403, "InvalidObjectState"): STAYS,
        (400, "AuthorizationHeaderMalformed"): blames("s3.region"),
        (400, "InvalidArgument"): STAYS,
        (404, "NoSuchBucket"): denied("s3.bucket"),
        (404, "SomethingElse"): STAYS,
        (412, "PreconditionFailed"): STAYS,
        (400, "EntityTooLarge"): UNFIT,
        (413, ""): UNFIT,
    },
    "gcs": {
        (503, "ServiceUnavailable"): PASSES,
        (500, "InternalError"): PASSES,
        (502, ""): blames("gcs.endpoint", may_pass=True),
        (429, "SlowDown"): PASSES,
        (408, "RequestTimeout"): PASSES,
        (403, "rateLimitExceeded"): PASSES,
        (501, "NotImplemented"): STAYS,
        (403, "AccessDenied"): denied("gcs.credentials.file"),
        (401, "AuthenticationRequired"): denied("gcs.credentials.file"),
        (403, "RequestTimeTooSkewed"): denied("gcs.credentials.file"),
        (404, "NoSuchBucket"): denied("gcs.bucket"),
        (400, "InvalidArgument"): STAYS,
        (404, "SomethingElse"): STAYS,
        (404, ""): blames("gcs.endpoint"),
        (412, "PreconditionFailed"): STAYS,
        (302, ""): blames("gcs.endpoint"),
        (413, ""): UNFIT,
        (400, "EntityTooLarge"): UNFIT,
    },
    "azure": {
        (503, "ServerBusy"): PASSES,
        (500, "InternalError"): PASSES,
        (502, ""): blames("azure.endpoint", may_pass=True),
        (429, "TooManyRequests"): PASSES,
        (409, "ContainerBeingDeleted"): PASSES,
        (403, "AuthenticationFailed"): denied("azure.account.key"),
        (403, "AuthorizationFailure"): denied("azure.account.key"),
        (403, "AuthorizationPermissionMismatch"): denied("azure.account.key"),
        (401, "NoAuthenticationInformation"): denied("azure.account.key"),
        (404, "ContainerNotFound"): denied("azure.container"),
        (404, "SomethingElse"): STAYS,
        (400, "InvalidHeaderValue"): STAYS,
        (413, "RequestBodyTooLarge"): UNFIT,
        (302, ""): blames("azure.endpoint"),
    },
}


@pytest.mark.parametrize(
    ("start", "status", "code", "said"),
    [(start, *which, said) for start, table in ANSWERS.items() for which, said in table.items()],
)
def test_what_a_server_answers_may_pass_or_not(start: str, status: int, code: str, said: Said) -> None:
    """Each answer is sorted by whether waiting helps and who is to blame, with operation, path and code, no secret."""
    kind = KINDS[start]
    with scripted_server(error(status, code)) as server, kind.opened(server.endpoint) as store:
        path = store.root.path(*NAME)
        for operation, name in ((kind.put, "put"), (kind.get, "get")):
            with pytest.raises(PayloadStoreError, match=f"^{operation} {path} failed: .*{code}") as caught:
                calls(store)[name]()
            assert Said(type(caught.value), caught.value.retriable, caught.value.key) == said
            assert caught.value.__cause__ is not None
            assert not any(str(each) in str(caught.value) for name, each in kind.keys.items() if name.endswith("key"))


def test_no_such_key_is_a_missing_payload(kind: Kind) -> None:
    """Only this code means that the payload is not there, and only of a request for it."""
    with scripted_server(error(404, kind.missing)) as server, kind.opened(server.endpoint) as store:
        path = store.root.path(*NAME)
        with pytest.raises(PayloadNotFoundError):
            store.get(path, 9)
        store.delete(path)
        store.check(writing=False)
        for name in ("put", "check", "list"):
            with pytest.raises(PayloadStoreError, match=kind.missing) as caught:
                calls(store)[name]()
            assert not isinstance(caught.value, PayloadNotFoundError)


def test_a_page_in_place_of_an_answer_is_no_success(kind: Kind) -> None:
    """What answers 200 to everything has stored nothing and has no payloads: waiting may help, as for maintenance."""
    with scripted_server(PAGE) as server, kind.opened(server.endpoint) as store:
        for name, call in calls(store).items():
            if name not in {"delete", "rules" if kind.start == "s3" else ""}:  # behind a delete nobody looks at it
                with pytest.raises(PayloadStoreError, match=rf"{kind.blamed}.* check {kind.start}\.endpoint") as caught:
                    call()
                assert (caught.value.retriable, caught.value.key) == (True, f"{kind.start}.endpoint")


def test_a_server_that_is_not_there_may_come_back(kind: Kind) -> None:
    """Every call ends soon, may be tried again, and names the endpoint."""
    with kind.opened(f"http://127.0.0.1:{free_port()}") as store:
        for call in calls(store).values():
            with pytest.raises(PayloadStoreError, match=r"(Connection refused|Connection\w*Error)") as caught:
                call()
            assert (caught.value.retriable, caught.value.key) == (True, f"{kind.start}.endpoint")


def test_a_server_that_hangs_is_cut(kind: Kind) -> None:
    """A server that takes requests and never answers costs no more than the time of a call, retries included."""

    def hang(_: Request, wire: Wire) -> bool:
        wire.stopped.wait(30)
        return False

    keys = {"connection_timeout_ms": 100, "read_timeout_ms": 200}
    keys |= {"store_timeout_ms": 1_400} if kind.start == "s3" else {"store_timeout_ms": 900, "retry_attempts": 9}
    with scripted_server(hang) as server, kind.opened(server.endpoint, **keys) as store:
        for name in ("put", "get", "stat", "delete"):
            began = time.monotonic()
            with pytest.raises(PayloadStoreError) as caught:
                calls(store)[name]()
            assert caught.value.retriable
            assert time.monotonic() - began < 10  # far less than nine attempts with their pauses


def test_attempts_count_the_first(kind: Kind) -> None:
    """`retry.attempts` is the number of requests, and a put sends its whole body each time."""

    def put(attempts: int) -> list[bytes]:
        with scripted_server(error(503, "SlowDown")) as server:
            with kind.opened(server.endpoint, retry_attempts=attempts) as store, pytest.raises(PayloadStoreError):
                store.put(*NAME, b"the whole body")
            return [request.body for request in server.requests]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(put, (1, 2))) == [[b"the whole body"] * attempts for attempts in (1, 2)]


@pytest.mark.parametrize("sent", [0, 1, 99])
def test_a_connection_cut_in_the_middle_of_a_body_may_be_tried_again(kind: Kind, sent: int) -> None:
    """A payload is never returned in part."""
    with scripted_server(answer(bytes(sent), length=100)) as server, kind.opened(server.endpoint) as store:
        with pytest.raises(PayloadStoreError, match=kind.get) as caught:
            store.get(store.root.path(*NAME), 1_000)
        assert caught.value.retriable


def test_a_body_over_the_limit_is_refused_before_it_is_read(kind: Kind) -> None:
    """The length that the server states is enough, once; not a byte of the body has to come."""
    with scripted_server(answer(b"", length=1 << 40)) as server:
        with kind.opened(server.endpoint, retry_attempts=3) as store:
            with pytest.raises(PayloadTooLargeError) as caught:
                store.get(store.root.path(*NAME), 1_000)
            assert (caught.value.size, caught.value.limit) == (1 << 40, 1_000)
        assert len(server.requests) == 1


def test_texts_of_a_server_are_safe_for_a_terminal(kind: Kind) -> None:
    """What it says stands in messages without control characters, and no longer than a few lines."""
    body = "<Error><Code>Bad</Code><Message>&#x9b;31m\u202e" if kind.start == "s3" else ""
    body = body or "<Error><Code>Bad</Code><Message>\x9b31m\u202e"
    text = body.encode() + b"long " * 10_000 + b"</Message></Error>"
    script = answer(text, head=b"HTTP/1.1 400 Bad\r\n")
    with scripted_server(script) as server, kind.opened(server.endpoint) as store:
        with pytest.raises(PayloadStoreError, match=r"Bad.*: \\x9b31m\\u202elong") as caught:
            store.put(*NAME, b"data")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1_500


def test_a_forged_reference_makes_no_request(kind: Kind) -> None:
    """What is refused is refused before anybody is asked."""
    scheme = kind.uri.partition("payloads")[0]
    forged = [f"{scheme}other/ours/orders/id", f"{kind.uri}theirs/orders/id", f"{kind.uri}ours/../orders/id"]
    with scripted_server(error(500, "x")) as server, kind.opened(server.endpoint, prefix="ours") as store:
        called: list[Callable[[str], object]] = [
            lambda path: store.get(path, 9),
            store.stat,
            store.delete,
            store.download,
        ]
        for path in forged:
            for call in called:
                with pytest.raises(ReferenceRefusedError):
                    call(path)
        assert (server.requests, server.connections) == ([], 0)


AZURES_PAGE = b"""<?xml version="1.0"?><EnumerationResults><Blobs><Blob><Name>orders/a</Name><Properties>
<Last-Modified>Mon, 01 Jan 2024 00:00:00 GMT</Last-Modified><Content-Length>1</Content-Length><Etag>e</Etag>
<Content-Type>a/b</Content-Type></Properties></Blob></Blobs><NextMarker>again</NextMarker></EnumerationResults>"""
GOOGLES_PAGE = b"""{"nextPageToken": "again", "items":
[{"name": "orders/a", "size": "1", "updated": "2026-01-01T00:00:00Z", "generation": "1"}]}"""


@pytest.mark.parametrize(("start", "page"), [("gcs", GOOGLES_PAGE), ("azure", AZURES_PAGE)])
def test_a_listing_that_goes_round_ends(start: str, page: bytes) -> None:
    """A server that gives the same page again and again does not hold a sweep forever; botocore sees to it for S3."""
    with scripted_server(answer(page, head=OK)) as server, KINDS[start].opened(server.endpoint) as store:
        with pytest.raises(PayloadStoreError, match=rf"returned the same page again; check {start}\.endpoint"):
            list(store.list())
        assert len(server.requests) <= 2_000  # obstore makes pages of 1,000 of whatever comes
