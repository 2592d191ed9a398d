"""A deadline for each call of `stores.s3`, however slowly the response comes, and a bound for its length.

The time-out of a socket begins again with each byte. A server or proxy that sends a byte now and then could hold a
thread for hours, with the head of a response or the body of an error. botocore reads both whole, and listings, too.
"""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPResponse,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

__all__ = ["ANSWER_BYTES", "LateError", "keep_time", "within"]


ANSWER_BYTES = 16 * 1_048_576
"""The longest response without the data of a payload. A page of 1,000 keys, the longest ones S3 allows, takes 4 MB."""


class LateError(Exception):
    """The time for a call is over, or its response is too long.

    No `OSError`, because urllib3 would report that as a cut connection.
    """


class _Time(threading.local):
    deadline = float("inf")
    most = ANSWER_BYTES


_time = _Time()


@contextlib.contextmanager
def within(seconds: float, data_bytes: int = 0) -> Iterator[None]:
    """Makes each read of a response in this thread, inside this context, raise `LateError` after so many seconds.

    Args:
        seconds: for all requests in the context.
        data_bytes: how many bytes of a payload one response may have, beside `ANSWER_BYTES`.
    """
    _time.deadline, _time.most = time.monotonic() + seconds, ANSWER_BYTES + data_bytes
    try:
        yield
    finally:
        _time.deadline, _time.most = float("inf"), ANSWER_BYTES


def keep_time(client: S3Client) -> None:
    """Makes the connections of a new client check the deadline before each read."""
    # botocore has no setting for the classes of its connections; this private table names them.
    pools = cast("Any", client)._endpoint.http_session._pool_classes_by_scheme  # noqa: SLF001
    pools.update(http=_Pool, https=_SecurePool)


class _Timed(io.RawIOBase):
    """The bytes of a response, until the deadline, and not more than it may have."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw
        self._most = self._left = _time.most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if time.monotonic() > _time.deadline:
            raise LateError("the answer did not come to its end in the time allowed")
        count = self._raw.readinto(buffer)
        self._left -= count or 0
        if self._left < 0:
            raise LateError(f"the answer is longer than {self._most:,} bytes, as no S3 server's is")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(AWSHTTPResponse):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, status_tuple=None, **more)
        self.fp = io.BufferedReader(_Timed(cast("Any", self.fp).detach()))


class _Connection(AWSHTTPConnection):
    response_class = _Response


class _SecureConnection(AWSHTTPSConnection):
    response_class = _Response


class _Pool(AWSHTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(AWSHTTPSConnectionPool):
    ConnectionCls = _SecureConnection
