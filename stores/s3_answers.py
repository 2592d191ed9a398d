"""What a response of an S3 server must have, and what it says about an object, for `stores.s3`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

from stores.s3_errors import NO_S3_SERVER
from stores.store import PayloadInfo
from transforms.errors import PayloadStoreError

_PLAIN = frozenset({"DeleteObject", "GetObject", "HeadObject"})  # which may be answered without an ETag


def check_answer(response: Mapping[str, Any], operation: str, path: str, name: str = "ETag") -> None:
    """Refuses a success that does not come from an S3 server.

    A web page, for instance for maintenance, may be answered with 200 to every request. A put to it is lost, and a get
    looks like a payload that was changed.

    Raises:
        PayloadStoreError: the response to a put has no ETag, that to a listing no `name`, or any other has neither an
            ETag nor the id that S3 servers give each request. A server that keeps no metadata (versitygw `--nometa`)
            has no ETag for what it gives.
    """
    headers = response["ResponseMetadata"].get("HTTPHeaders", {})
    if name in response or (operation in _PLAIN and "x-amz-request-id" in headers):
        return
    raise _foreign(operation, path, f"HTTP {response['ResponseMetadata']['HTTPStatusCode']} without {name}")


def check_stored(response: Mapping[str, Any], sent: Mapping[str, object], path: str) -> None:
    """Refuses a payload that was stored otherwise than it was sent, as far as the answer to the put has that for free.

    S3 returns the checksum that it was sent, and versitygw a size, too. Others may leave out both.

    Raises:
        PayloadStoreError: the answer has another value for a member of `sent`.
    """
    for name, value in sent.items():
        stored = response.get(name, value)
        if stored != value:
            raise _foreign("PutObject", path, f"{name} {value} was sent, and {stored} is stored")


def info(operation: str, path: str, said: Mapping[str, Any], size_name: str) -> PayloadInfo:
    """The object at `path`, of an answer that names its size `size_name`.

    Raises:
        PayloadStoreError: the answer lacks its size or its date.
    """
    size, modified = cast("int | None", said.get(size_name)), cast("datetime | None", said.get("LastModified"))
    if size is None or modified is None:
        # The head of an object that has no date has none the next time. A caller that needs only its size continues.
        found = f"an answer without {size_name if size is None else 'LastModified'}"
        raise _foreign(operation, path, found, retriable=operation != "HeadObject")
    # A listing may have milliseconds (MinIO), the response to HeadObject never has.
    return PayloadInfo(path, size, modified.astimezone(UTC).replace(microsecond=0))


def _foreign(operation: str, path: str, found: str, *, retriable: bool = True) -> PayloadStoreError:
    message = f"{operation} {path} failed: {found}, {NO_S3_SERVER}"
    return PayloadStoreError(message, retriable=retriable, key="s3.endpoint")
