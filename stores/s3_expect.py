"""`Expect: 100-continue` before the body of a put: how a server answers, and whether the next put sends it again.

A server can thereby refuse a put before the body is sent. botocore sends the header too, but reads the response without
limits: the head of an interim response without its empty line, messages of TLS 1.3 before the response, a status line
without a reason. Therefore its connections are not used.
"""

from __future__ import annotations

import functools
import http.client
import logging
import re
import threading
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from stores.http_time import Answer, TimedConnection, pools_of, waiting
from transforms.logger_name import logger_name

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CONTINUE_MS = 1_000
"""How long a put waits for an answer before it sends the body without one."""

_UNASKED_S = 300.0  # a server that is only slow, for once, is asked again
_HEAD_BYTES = 65_536
_INTERIM = re.compile(rb"HTTP/1\.[01] 1\d\d[ \r\n]")
_SUCCESS = re.compile(rb"HTTP/1\.[01] 2")
_STATUS_BYTES = len(b"HTTP/1.1 100 ")
_END = re.compile(rb"\n\r?\n")

_logger = logging.getLogger(logger_name(__name__))


class _UnsentError(Exception):
    """A success that can be none. An `HTTPException` would be reported as a cut connection."""


class _Last(threading.local):
    """What came of the question in this thread's last request: `asked` is whether there was one.

    `torn` is whether the answer broke off, `omit` whether the next request has no question for that.
    """

    asked = False
    answered = False
    torn = False
    omit = False


_last = _Last()


class Expectation:
    """Whether the puts of one client ask. Several threads may use it.

    If a server refuses the header (417), the request is repeated without it, as RFC 9110 (10.1.1) requires. A server
    that accepts a body without a response would cost `CONTINUE_MS` per put. In both cases the header is omitted for
    five minutes. If the response breaks off, no body was sent, so the request is repeated once without the header.

    Args:
        client: it gets handlers of its events.
    """

    def __init__(self, client: S3Client) -> None:
        self._endpoint = re.sub(r"//[^/]*@", "//", client.meta.endpoint_url)  # without a password in AWS_ENDPOINT_URL
        self._unasked_until = float("-inf")
        self._logged = False
        client.meta.events.register("before-send.s3.PutObject", cast("Any", self._before))
        client.meta.events.register_first("needs-retry.s3.PutObject", cast("Any", self._tried))

    def _before(self, request: Any, **_: object) -> None:
        if _last.omit or time.monotonic() < self._unasked_until:
            request.headers.pop("Expect", None)
        _last.omit = False

    def _tried(self, response: tuple[Any, dict[str, Any]] | None, **_: object) -> float | None:
        """The seconds until the next attempt; None leaves it to others."""
        if _last.torn:
            _last.torn, _last.omit = False, True
            return 0.0
        if response is None or not _last.asked:
            return None
        status = response[0].status_code
        if status == HTTPStatus.EXPECTATION_FAILED:
            self._ask_no_more("refuses (HTTP 417)")
            return 0.0
        if status < HTTPStatus.MULTIPLE_CHOICES and not _last.answered:
            self._ask_no_more(f"does not answer within {CONTINUE_MS:,} ms")
        return None

    def _ask_no_more(self, reason: str) -> None:
        self._unasked_until = time.monotonic() + _UNASKED_S
        if not self._logged:
            self._logged = True
            _logger.warning(
                "%s %s 'Expect: 100-continue', by which a server can refuse a payload before it is sent. Puts omit it, "
                "except for one every %d s; check the server, and any proxy before it",
                self._endpoint,
                reason,
                _UNASKED_S,
            )


class _AskingConnection(TimedConnection):
    """A connection that waits for the answer to `Expect`, if a request has it, before it sends the body."""

    _expects = False
    _empty = False  # there is no byte to send
    _refused = False  # the answer is there, and not a byte of the body is to be sent

    def putrequest(self, *arguments: Any, **more: Any) -> None:
        _last.asked = _last.answered = _last.torn = self._expects = self._empty = self._refused = False
        self.response_class = Answer
        super().putrequest(*arguments, **more)

    def putheader(self, header: Any, *values: Any) -> None:
        self._expects = self._expects or header.lower() == "expect"
        self._empty = self._empty or (header.lower() == "content-length" and not int(values[0]))
        super().putheader(header, *values)

    def endheaders(self, *arguments: Any, **more: Any) -> None:
        super().endheaders(*arguments, **more)
        if self._expects:
            _last.asked = True
            try:
                self._ask()
            except (OSError, http.client.HTTPException):
                _last.torn = True
                raise

    def send(self, data: Any) -> None:
        if not self._refused:
            super().send(data)

    def _ask(self) -> None:
        """Reads the answer, if it comes in time; what has been read of the final one is kept for `getresponse`."""
        try:
            with waiting(self.sock, CONTINUE_MS / 1000):
                got = self.sock.recv(_HEAD_BYTES)
        except TimeoutError:
            return
        finally:
            self.sock.settimeout(self.timeout)
        _last.answered = True
        while (end := _interim_end(got)) is None:
            with waiting(self.sock):
                piece = self.sock.recv(_HEAD_BYTES)
            if not piece:
                raise http.client.RemoteDisconnected("the connection was closed in the answer to Expect: 100-continue")
            got += piece
        if _SUCCESS.match(got, end) and not self._empty:
            raise _UnsentError("the server reports success, although no byte of the payload was sent")
        self._refused = end == 0
        # The server may read what comes next as the announced body, so nothing else is sent on this connection.
        self.response_class = functools.partial(Answer, start=got[end:], last=self._refused)


def _interim_end(got: bytes) -> int | None:
    """The length of the interim answer; 0 if this is the final one, None if more of it is needed."""
    if not _INTERIM.match(got):
        return 0 if len(got) >= _STATUS_BYTES or b"\n" in got else None
    found = _END.search(got)
    if found is None and len(got) >= _HEAD_BYTES:
        raise http.client.HTTPException(f"the interim answer is longer than {_HEAD_BYTES:,} bytes")
    return found and found.end()


POOLS = pools_of(_AskingConnection)
"""The pools of connections that ask."""
