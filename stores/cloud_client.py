"""Requests to a bucket through obstore, each with a deadline, for `stores.gcs` and `stores.azure`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, TypeVar, cast

import obstore
from obstore.exceptions import BaseError

from stores.cloud_calls import Calls, LateError
from stores.cloud_errors import Cloud, Failure, may_pass, translated
from transforms.errors import PayloadStoreError, PayloadTooLargeError

_T = TypeVar("_T")

_MIB = 1 << 20
_PAGE = 1_000

FAILURES = (BaseError, LateError, OSError)
"""What a request raises: obstore's errors, of which some are of Python's own classes, such as FileNotFoundError."""


class ChangedError(Exception):
    """The object was replaced after it was looked up."""


@dataclass(frozen=True, slots=True)
class Times:
    """How long requests take at most.

    Attributes:
        call_ms: a call with its retries.
        connect_ms: until there is a connection.
        read_ms: until the next bytes of an answer.
        attempts: of a request, the first one included.
    """

    call_ms: int
    connect_ms: int
    read_ms: int
    attempts: int

    def put_seconds(self, size: int) -> float:
        """How long one attempt of a put may take: obstore does not say how much it has sent."""
        return (self.connect_ms * (1 + -(-size // _MIB)) + self.read_ms) / 1000


@dataclass(frozen=True, slots=True)
class Found:
    """An object as the service describes it.

    Attributes:
        key: its name in the bucket.
        size: in bytes.
        modified: in whole seconds, as the answer to a HEAD has no more.
        etag: its ETag, with the quotes; None if there is none.
        version: its generation or version; None if there is none.
    """

    key: str
    size: int
    modified: datetime
    etag: str | None
    version: str | None

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> Found:
        modified = cast("datetime", meta["last_modified"]).astimezone(UTC).replace(microsecond=0)
        return cls(meta["path"], meta["size"], modified, meta.get("e_tag"), meta.get("version"))


def client_options(times: Times, connections: int, *, plain: bool, reading: bool) -> dict[str, Any]:
    """The options of an obstore client.

    Args:
        times: the longest waits.
        connections: how many are kept open.
        plain: whether `http://` is allowed.
        reading: whether it is for requests without a body. A wait for an answer would count from the first byte that
            is sent, so for the others `CloudClient` alone counts.
    """
    options: dict[str, Any] = {
        "allow_http": plain,
        "connect_timeout": timedelta(milliseconds=times.connect_ms),
        "timeout": timedelta(milliseconds=times.call_ms),
        "pool_max_idle_per_host": str(connections),
        "user_agent": "wideload",
    }
    if reading:
        options["read_timeout"] = timedelta(milliseconds=times.read_ms)
    return options


class CloudClient:
    """The requests of one bucket. May be used by several threads.

    Args:
        reader: an obstore store for requests without a body, which does not retry.
        writer: one for puts.
        times: the longest waits.
        cloud: the words of its errors.
        before: called before each request, with its deadline; it gets tokens that the request will need.
    """

    def __init__(
        self, reader: Any, writer: Any, times: Times, cloud: Cloud, before: Callable[[float], None] = lambda _: None
    ) -> None:
        self.reader = reader
        self._writer = writer
        self._times = times
        self._cloud = cloud
        self._before = before
        self._calls = Calls(times.call_ms / 1000, times.attempts, self._may_pass)

    def put(self, key: str, data: bytes, path: str) -> None:
        """Stores an object in one request, so that no reader ever sees a part of it.

        Raises:
            PayloadStoreError: see `stores.cloud_errors.translated`.
        """

        def put(_: float) -> None:
            obstore.put(self._writer, key, data, use_multipart=False)

        self.call(put, "put", path, self._times.put_seconds(len(data)))

    def get(self, key: str, max_bytes: int, path: str) -> bytes:
        """Reads an object, after its length.

        Raises:
            PayloadTooLargeError: there is more than `max_bytes`; the body was not read.
            PayloadStoreError: see `stores.cloud_errors.translated`.
        """

        def get(_: float) -> bytes:
            answer = obstore.get(self.reader, key)
            size = answer.meta["size"]
            if size > max_bytes:
                raise PayloadTooLargeError(path, size, max_bytes)
            data = bytes(answer.bytes()) if size else b""
            if len(data) != size:
                raise OSError(f"the connection was closed after {len(data):,} of {size:,} bytes")
            return data

        return self.call(get, "get", path)

    def head(self, key: str, path: str) -> Found:
        """Describes an object.

        Raises:
            PayloadStoreError: see `stores.cloud_errors.translated`.
        """

        def head(_: float) -> Found:
            try:
                return Found.of(obstore.head(self.reader, key))
            except FAILURES as exc:
                if Failure.of(exc).status not in {HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN}:
                    raise
            # The response to a HEAD has no body, so it does not show whether the object is missing, or the bucket.
            return Found.of(obstore.get(self.reader, key).meta)

        return self.call(head, "head", path)

    def pages(self, prefix: str, path: str) -> Iterator[Sequence[Found]]:
        """Every object whose name begins with `prefix` and a slash, page by page; each page has the time of a call.

        Raises:
            PayloadStoreError: see `stores.cloud_errors.translated`.
        """
        streams: list[Any] = []
        last: str | None = None

        def page(_: float) -> tuple[Any, Sequence[Found] | None]:
            # A stream that failed cannot continue: the next attempt starts a new one after the last page.
            stream = (
                streams.pop() if streams else obstore.list(self.reader, prefix or None, offset=last, chunk_size=_PAGE)
            )
            found = next(stream, None)
            return stream, None if found is None else [Found.of(meta) for meta in found]

        while True:
            stream, found = self.call(page, "list", path)
            if found is None:
                return
            streams.append(stream)
            if found:
                if found[-1].key == last:
                    raise PayloadStoreError(
                        f"{self._cloud.name} list {path} failed: the server returned the same page again; check "
                        f"{self._cloud.endpoint_key}",
                        key=self._cloud.endpoint_key,
                    )
                last = found[-1].key
            yield found

    def folders(self, prefix: str, path: str) -> Sequence[str]:
        """The common prefixes below `prefix`, all in memory.

        Raises:
            PayloadStoreError: see `stores.cloud_errors.translated`.
        """

        def folders(_: float) -> Sequence[str]:
            return obstore.list_with_delimiter(self.reader, prefix or None)["common_prefixes"]

        return self.call(folders, "list", path)

    def delete(self, key: str, path: str) -> None:
        """Deletes an object, even if it has been replaced.

        Raises:
            PayloadStoreError: see `stores.cloud_errors.translated`.
        """

        def delete(_: float) -> None:
            obstore.delete(self.reader, key)

        self.call(delete, "delete", path)

    def signed(self, method: Any, key: str, path: str, lasting: timedelta) -> str:
        """A presigned URL: anyone who has it can send this request for the object, so it is a secret.

        Raises:
            PayloadStoreError: see `stores.cloud_errors.translated`.
        """

        def sign(_: float) -> str:
            return obstore.sign(self.reader, method, key, lasting)

        return self.call(sign, "sign", path)

    def call(self, attempt: Callable[[float], _T], operation: str, path: str, once: float = float("inf")) -> _T:
        """The result of `attempt`, within the time of a call.

        Args:
            attempt: gets the seconds that it has.
            operation: for messages.
            path: for messages.
            once: the longest time of one attempt, in seconds.

        Raises:
            PayloadStoreError: see `stores.cloud_errors.translated`.
        """
        deadline = self._calls.deadline()
        with self.told(operation, path):
            self._before(deadline)
            return self._calls.run(attempt, once, deadline)

    def _may_pass(self, exc: Exception) -> bool:
        return isinstance(exc, FAILURES) and may_pass(exc, self._cloud)

    @contextlib.contextmanager
    def told(self, operation: str, path: str) -> Iterator[None]:
        """Translates the errors of requests.

        Raises:
            PayloadStoreError: see `stores.cloud_errors.translated`.
        """
        try:
            yield
        except PayloadStoreError:
            raise
        except FAILURES as exc:
            raise translated(exc, f"{self._cloud.name} {operation}", path, self._cloud) from exc
