"""The end of a call of `stores.s3`, however slowly its answer comes.

The time-out of a socket begins anew with each byte. A server, or what stands before it, that sends a byte now and then
would hold a thread for hours with the head of an answer, or with the body of an error, which botocore reads whole.
"""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPResponse,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)
from mypy_boto3_s3 import S3Client

__all__ = ["LateError", "keep_time", "within"]


class LateError(Exception):
    """The time for a call is spent. No `OSError`: urllib3 would call those a connection that was cut."""


class _Time(threading.local):
    deadline = float("inf")


_time = _Time()


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Lets each read of an answer that this thread waits for in here fail with `LateError` once the time is over."""
    _time.deadline = time.monotonic() + seconds
    try:
        yield
    finally:
        _time.deadline = float("inf")


def keep_time(client: S3Client) -> None:
    """Lets the connections of a client, which has made none, look at the time before each read."""
    # botocore has no setting for it; this is where its own connections are named.
    pools = cast("Any", client)._endpoint.http_session._pool_classes_by_scheme  # noqa: SLF001
    pools.update(http=_Pool, https=_SecurePool)


class _Timed(io.RawIOBase):
    """The bytes of a socket, as long as there is time."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if time.monotonic() > _time.deadline:
            raise LateError("the answer did not come to its end in the time allowed")
        return self._raw.readinto(buffer)

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
