"""The question before the body of a put, `Expect: 100-continue`: servers that answer it oddly, late or not at all."""

from __future__ import annotations

import ssl
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.s3_server import Certificate
from tests.stores.conftest import SetClock
from tests.stores.scripted_server import Request, Script, Wire, scripted_server
from tests.stores.test_s3 import EIGHT_SECONDS, LATE, NAME, accept, opened
from transforms.errors import PayloadStoreAccessError, PayloadStoreError

INTERIM = b"HTTP/1.1 100 Continue\r\n"
SLOW_DOWN = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer of a busy machine comes too late."""
    monkeypatch.setattr("stores.s3_expect.CONTINUE_MS", 60_000)


@pytest.mark.parametrize(
    "interim",
    [
        INTERIM + b"\r\n",
        b"HTTP/1.1 100\r\n\r\n",
        b"HTTP/1.1 100 \r\nConnection: keep-alive\r\n\r\n",
        b"HTTP/1.0 100 Continue\n\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\n",
    ],
)
def test_a_body_is_sent_behind_an_interim_answer(interim: bytes) -> None:
    """However it is written, and whether it comes in one piece; the connection is used again."""

    def expect(wire: Wire) -> bool:
        for number in range(len(interim)):
            wire.write(interim[number : number + 1])
        return True

    with scripted_server(accept, expect=expect) as server, opened(server.config()) as store:
        for _ in range(2):
            store.put(*NAME, b"data")
        assert [request.body for request in server.requests] == [b"data"] * 2
        assert server.connections == 1


TORN = [
    b"",
    b"HTTP/",
    INTERIM,
    INTERIM + b"X-A: b\r\n",
    INTERIM + b"X-A: " + b"x" * (1 << 20),
    b"HTTP/1.1 100 " + b"x" * (1 << 20),
]


@pytest.mark.parametrize("answer", TORN)
def test_behind_a_torn_answer_the_put_is_sent_without_the_question(answer: bytes) -> None:
    """At the end of a connection no loop goes on, and no line has no end. Nothing was sent, so it is no attempt."""

    def expect(wire: Wire) -> bool:
        wire.write(answer)
        raise ConnectionAbortedError("the server closes the connection")

    with scripted_server(accept, expect=expect) as server, opened(server.config(s3_retry_attempts=1)) as store:
        for _ in range(2):
            store.put(*NAME, b"data")
        assert [("expect" in request.headers, request.body) for request in server.requests] == [(False, b"data")] * 2
        assert server.connections == 3  # the second put asks again, on the connection that is there


@pytest.mark.parametrize("answer", TORN)
def test_a_torn_answer_to_everything_is_an_error(answer: bytes) -> None:
    """It may pass, and comes without a wait."""

    def torn(_: Request, wire: Wire) -> bool:
        wire.write(answer)
        return False

    assert len(requests_of_a_put_that_is_cut(torn, answer)) == 1


@pytest.mark.parametrize("answer", [b"x" * (1 << 20), b"nonsense\r\n\r\n", b"HTTP/1.1 abc def\r\n\r\n"])
def test_an_answer_that_is_no_http_is_an_error(answer: bytes) -> None:
    """It may pass, and comes without a wait."""
    assert requests_of_a_put_that_is_cut(accept, answer) == []


def requests_of_a_put_that_is_cut(script: Script, answer: bytes) -> list[Request]:
    """What a server got that answers `Expect` with this, and closes the connection; the error may pass."""

    def expect(wire: Wire) -> bool:
        wire.write(answer)
        raise ConnectionAbortedError("the server closes the connection")

    with scripted_server(script, expect=expect) as server, opened(server.config(s3_retry_attempts=1)) as store:
        with pytest.raises(PayloadStoreError, match="ConnectionClosedError") as caught:
            store.put(*NAME, b"data")
        assert caught.value.retriable
        return server.requests


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 100 ", INTERIM + b"X-Slow: ", b"HTTP/1.1 503 Slow", SLOW_DOWN[:-2]])
def test_an_answer_that_comes_byte_by_byte_has_an_end(set_clock: SetClock, start: bytes) -> None:
    """The time of the call is over for it, too, wherever it is slow."""

    def expect(wire: Wire) -> bool:
        wire.write(start or b"H")
        while not wire.stopped.wait(0.02):
            wire.write(b"T")
        raise ConnectionAbortedError("the test is over")

    with scripted_server(accept, expect=expect) as server, opened(server.config(**EIGHT_SECONDS)) as store:
        set_clock(0.5)
        with pytest.raises(PayloadStoreError, match=LATE) as caught:
            store.put(*NAME, b"data")
        assert caught.value.retriable


@pytest.mark.parametrize("final", [SLOW_DOWN, b"HTTP/1.1 503 \r\nContent-Length: 0\r\n\r\n"])
def test_nothing_is_sent_behind_a_refusal(final: bytes) -> None:
    """The body stays here, and the next put has another connection: this one's server may still wait for the body.

    The reason in a status line may be missing.
    """
    refused: list[int] = []

    def expect(wire: Wire) -> bool:
        if not refused:
            refused.append(1)
            wire.write(final)
            return False
        wire.write(INTERIM + b"\r\n")
        return True

    with scripted_server(accept, expect=expect) as server, opened(server.config()) as store:
        with pytest.raises(PayloadStoreError, match=r"HTTP 503") as caught:
            store.put(*NAME, b"data")
        assert caught.value.retriable
        store.put(*NAME, b"data")
        assert [request.method for request in server.requests] == ["PUT"]
        assert server.connections == 2


@pytest.mark.parametrize(
    "start", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 204 No Content\r\n", INTERIM + b"\r\nHTTP/1.1 200 OK\r\n"]
)
def test_a_success_before_the_payload_is_none(start: bytes) -> None:
    """Nothing was sent, so nothing is stored, and nothing refers to it."""

    def expect(wire: Wire) -> bool:
        wire.write(start + b'ETag: "e"\r\nContent-Length: 0\r\n\r\n')
        return False

    with scripted_server(accept, expect=expect) as server, opened(server.config()) as store:
        with pytest.raises(PayloadStoreError, match="reports success, although no byte of the payload was") as caught:
            store.put(*NAME, b"data")
        assert (caught.value.retriable, server.requests) == (True, [])


def test_a_refusal_may_come_in_one_piece_with_the_interim_answer() -> None:
    """What has been read of the final answer behind it is not lost."""

    def expect(wire: Wire) -> bool:
        wire.write(INTERIM + b"\r\nHTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        return False

    with (
        scripted_server(accept, expect=expect) as server,
        opened(server.config()) as store,
        pytest.raises(PayloadStoreAccessError, match=r"HTTP 403"),
    ):
        store.put(*NAME, b"data")


def test_a_server_that_refuses_the_question_gets_the_body(caplog: pytest.LogCaptureFixture) -> None:
    """417 means the same request without `Expect`, beyond the attempts; later puts do not ask. It is logged once."""

    def expect(wire: Wire) -> bool:
        wire.write(b"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n")
        return False

    with scripted_server(accept, expect=expect) as server, opened(server.config(s3_retry_attempts=1)) as store:
        for _ in range(3):
            store.put(*NAME, b"data")
        assert [("expect" in request.headers, request.body) for request in server.requests] == [(False, b"data")] * 3
        assert server.connections == 2
    assert caplog.text.count(f"{server.endpoint} refuses (HTTP 417) 'Expect: 100-continue'") == 1


def test_a_refusal_of_what_did_not_ask_is_final() -> None:
    """A server that says 417 to everything is asked twice, and not for ever."""

    def refuse(_: Request, wire: Wire) -> bool:
        wire.write(b"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n")
        return True

    with scripted_server(refuse) as server, opened(server.config(s3_retry_attempts=1)) as store:
        with pytest.raises(PayloadStoreError, match="HTTP 417"):
            store.put(*NAME, b"data")
        assert len(server.requests) == 2


@pytest.mark.parametrize("tls", [False, True])
def test_a_server_that_never_answers_the_question_is_not_asked_for_a_while(
    tls: bool,  # noqa: FBT001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One put waits for it in five minutes, and is stored; an answer then counts. The log says it once.

    What TLS 1.3 sends behind its handshake is no answer.
    """
    context = None
    if tls:
        certificate = Certificate.made(tmp_path)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate.file))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.file, certificate.key)
    now, answers = [1_000.0], [b""]
    monkeypatch.setattr("stores.s3_expect.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("stores.s3_expect.CONTINUE_MS", 50)

    def expect(wire: Wire) -> bool:
        wire.write(answers[0])
        return True

    with scripted_server(accept, context, expect) as server, opened(server.config()) as store:

        def asks() -> bool:
            store.put(*NAME, b"data")
            return "expect" in server.requests[-1].headers

        assert [asks(), asks(), asks()] == [True, False, False]
        now[0] += 299
        assert not asks()
        now[0] += 2
        assert [asks(), asks()] == [True, False]
        assert caplog.text.count(f"{server.endpoint} does not answer within 50 ms 'Expect: 100-continue'") == 1
        now[0] += 301
        answers[0] = INTERIM + b"\r\n"
        monkeypatch.setattr("stores.s3_expect.CONTINUE_MS", 60_000)
        assert [asks(), asks(), asks()] == [True] * 3
