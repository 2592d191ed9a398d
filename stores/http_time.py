"""HTTP connections that keep the deadline of a call, whatever the server does, and limit the length of its responses.

The timeout of a socket restarts with each byte. A server or proxy that sends a byte now and then could block a thread
for hours, at any point: the TLS handshake, an interim response, the head of a response, the body of an error. Therefore
each wait of these connections ends at the deadline of its thread, and code that reads a response need not check it.
"""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any, TypeVar, cast

import urllib3.connection
import urllib3.connectionpool

from stores.calls import Calls, HangingError

if TYPE_CHECKING:
    import socket

_T = TypeVar("_T")

ANSWER_BYTES = 16 * 1_048_576
"""The longest response without the data of a payload. A page of 1,000 keys, the longest ones S3 allows, takes 4 MB."""

_FOREVER = float("inf")
_LATE = "the call did not finish in the time that large.message.store.timeout.ms allows"


class LateError(Exception):
    """The deadline of a call is over, or its response is too long.

    No `OSError`, because urllib3 would report that as a cut connection.
    """


class _Time(threading.local):
    deadline = _FOREVER
    bounded = False
    most = ANSWER_BYTES


_time = _Time()
_connecting: defaultdict[str, Calls] = defaultdict(Calls)  # by host: one that is away must not hold up the others


@contextlib.contextmanager
def within(seconds: float, data_bytes: int = 0) -> Iterator[None]:
    """Makes each wait of a connection in this thread, inside this context, raise `LateError` after so many seconds.

    Args:
        seconds: for all requests in the context.
        data_bytes: how many bytes of a payload one response may have, in addition to `ANSWER_BYTES`.
    """
    with _until(time.monotonic() + seconds, ANSWER_BYTES + data_bytes):
        yield


@contextlib.contextmanager
def _until(deadline: float, most: int) -> Iterator[None]:
    before = _time.deadline, _time.bounded, _time.most
    _time.deadline, _time.bounded, _time.most = deadline, True, most
    try:
        yield
    finally:
        _time.deadline, _time.bounded, _time.most = before


def begin(seconds: float) -> None:
    """Gives a call that is not inside of `within` so many seconds from now on."""
    if not _time.bounded:
        _time.deadline = time.monotonic() + seconds


def time_left() -> float:
    """The seconds until the deadline of this thread.

    Raises:
        LateError: there are none.
    """
    left = _time.deadline - time.monotonic()
    if left <= 0:
        raise LateError(_LATE)
    return left


def apart(calls: Calls, call: Callable[[], _T]) -> _T:
    """The result of `call`, which runs in another thread with this one's deadline, and is abandoned after it.

    For what has no timeout: name resolution, trying each address of a host, programs.

    Args:
        calls: limits how many hang at a time.
        call: runs on this thread if there is no deadline.

    Raises:
        HangingError: it has not ended in time.
        LateError: the deadline was over before.
    """
    deadline, most = _time.deadline, _time.most
    if deadline == _FOREVER:
        return call()

    def within_deadline() -> _T:
        with _until(deadline, most):
            return call()

    return calls.within(round(time_left() * 1000), within_deadline)


@contextlib.contextmanager
def waiting(sock: socket.socket, longest: float | None = None) -> Iterator[None]:
    """Makes a wait for this socket end at the deadline of this thread.

    Args:
        sock: its time-out may be shorter afterwards; each request sets it.
        longest: in place of the time-out of the socket.

    Raises:
        LateError: the deadline is over, before the wait or in it.
    """
    left = time_left()
    allowed = sock.gettimeout() if longest is None else longest
    late = allowed is None or left < allowed
    if late or longest is not None:
        sock.settimeout(left if late else longest)
    try:
        yield
    except TimeoutError as exc:
        if late:
            raise LateError(_LATE) from exc
        raise


class _Received(io.RawIOBase):
    """The bytes of a response, until the deadline, and not more than it may have.

    Args:
        raw: of the socket.
        sock: the socket.
        start: what has been read of the response already.
    """

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, start: bytes) -> None:
        self._raw = raw
        self._sock = sock
        self._start = start
        self._most = self._left = _time.most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._start:
            piece = self._start[: len(buffer)]
            buffer[: len(piece)] = piece
            self._start = self._start[len(piece) :]
            return len(piece)
        with waiting(self._sock):
            count = self._raw.readinto(buffer)
        self._left -= count or 0
        if self._left < 0:
            raise LateError(f"the response exceeds {self._most:,} bytes, so it is not an answer of this service")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class Answer(HTTPResponse):
    """A response that is read until the deadline.

    Args:
        sock: where it comes from.
        arguments: see `http.client.HTTPResponse`.
        start: what has been read of it already.
        last: whether the connection is not used again behind it.
        more: see `http.client.HTTPResponse`.
    """

    def __init__(
        self, sock: socket.socket, *arguments: Any, start: bytes = b"", last: bool = False, **more: Any
    ) -> None:
        super().__init__(sock, *arguments, **more)
        self.fp = io.BufferedReader(_Received(cast("Any", self.fp).detach(), sock, start))
        self._last = last

    def begin(self) -> None:
        super().begin()
        while HTTPStatus.SWITCHING_PROTOCOLS < self.status < HTTPStatus.OK:  # http.client skips 100 alone
            self.headers = cast("Any", None)
            super().begin()
        self.will_close = self.will_close or self._last


class TimedConnection(urllib3.connection.HTTPConnection):
    """A connection all of whose waits end at the deadline."""

    response_class: Any = Answer

    def connect(self) -> None:
        """See `http.client`. The deadline covers name resolution, each address of a host, a proxy's tunnel, and TLS.

        Name resolution has no timeout, and each address has a separate one, so this runs in another thread.
        """
        try:
            return apart(_connecting[self.host], super().connect)
        except HangingError as exc:
            raise LateError(f"{_LATE}: to connect {exc}") from exc

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        with waiting(self.sock):
            super().send(data)


def pools_of(connection: type[TimedConnection]) -> dict[str, type]:
    """The pools of such connections by scheme, for `pool_classes_by_scheme` of urllib3's managers.

    They have the names of urllib3's, which its messages show.
    """
    secure = type("HTTPSConnection", (connection, urllib3.connection.HTTPSConnection), {})
    http, https = urllib3.connectionpool.HTTPConnectionPool, urllib3.connectionpool.HTTPSConnectionPool
    return {
        "http": type(http.__name__, (http,), {"ConnectionCls": connection}),
        "https": type(https.__name__, (https,), {"ConnectionCls": secure}),
    }


POOLS = pools_of(TimedConnection)
"""Those of connections that keep the deadline, and no more."""
