"""Connections that keep the deadline of a call, where no server answers that the stores' own tests have."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import urllib3

from stores.http_time import POOLS, LateError, begin, time_left, within
from tests.stores.conftest import SetClock
from tests.stores.scripted_server import Request, Wire, scripted_server


@pytest.fixture
def manager() -> Iterator[urllib3.PoolManager]:
    """Connections whose own time-out never comes."""
    with urllib3.PoolManager(timeout=600, retries=False) as made:
        made.pool_classes_by_scheme = POOLS
        yield made


def ask(manager: urllib3.PoolManager, url: str) -> None:
    manager.request("GET", url).read()


def test_a_name_that_nobody_resolves_ends_the_call(
    manager: urllib3.PoolManager, monkeypatch: pytest.MonkeyPatch, set_clock: SetClock
) -> None:
    """No time-out of a socket ends a look-up, so the call leaves it alone."""
    over = threading.Event()

    def resolve(*_: object, **__: object) -> list[object]:
        over.wait()
        raise socket.gaierror("the test is over")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    set_clock(0.1)
    try:
        with within(0.2), pytest.raises(LateError, match="to connect has not answered for"):
            ask(manager, "http://store.test/")
    finally:
        over.set()


def test_a_host_that_is_away_holds_up_no_other(manager: urllib3.PoolManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many connections to it are on their way: the store of another pipeline may be elsewhere."""
    over, real = threading.Event(), socket.getaddrinfo

    def resolve(host: str, *more: Any, **named: Any) -> Any:
        if host == "away.test":
            over.wait()
            raise socket.gaierror("the test is over")
        return real(host, *more, **named)

    def leave(_: int) -> None:
        with within(0.2), pytest.raises(LateError):
            ask(manager, "http://away.test/")

    def script(_: Request, wire: Wire) -> bool:
        wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        return True

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    try:
        with ThreadPoolExecutor(20) as threads:
            assert len(list(threads.map(leave, range(20)))) == 20
        with scripted_server(script) as server, within(60.0):
            ask(manager, server.endpoint)
    finally:
        over.set()


@pytest.mark.parametrize("start", [b"", b"HTTP/1.0 200 Connection established\r\nX-Slow: "])
def test_a_proxy_or_a_handshake_without_end_ends_the_call(
    manager: urllib3.PoolManager, set_clock: SetClock, start: bytes
) -> None:
    """What stands before TLS, and TLS itself, have the time of the call, too."""
    over = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):  # the client may have gone
            connection.recv(1 << 16)
            connection.sendall(start)
            while not over.wait(0.02):
                connection.sendall(start and b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        proxied = urllib3.ProxyManager(f"http://{address}", timeout=600, retries=False) if start else manager
        proxied.pool_classes_by_scheme = POOLS
        set_clock(0.3)
        try:
            with within(1.0), pytest.raises(LateError):
                ask(proxied, "https://store.test/" if start else f"https://{address}/")
        finally:
            over.set()
            proxied.clear()


def test_interim_answers_are_skipped(
    manager: urllib3.PoolManager, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of them, however many; also where somebody has `http.client` print what goes over the wire."""
    monkeypatch.setattr("http.client.HTTPConnection.debuglevel", 1)

    def script(_: Request, wire: Wire) -> bool:
        wire.write(b"HTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n")
        wire.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfour")
        return True

    with scripted_server(script) as server, within(60.0):
        answers = [manager.request("GET", server.endpoint) for _ in range(2)]
        assert [(answer.status, answer.data) for answer in answers] == [(200, b"four")] * 2
        assert server.connections == 1
    assert "Early Hints" in capsys.readouterr().out


def test_a_deadline_of_a_context_stays(set_clock: SetClock) -> None:
    """A call inside of it, such as that for the region of a bucket, gets no time of its own; one outside does."""
    set_clock(1.0)
    with within(10.0):
        with within(2.0):
            begin(100.0)
            time_left()
            with pytest.raises(LateError):
                time_left()
        assert time_left() == 6.0
    begin(5.0)
    assert time_left() == 4.0  # by the next look
