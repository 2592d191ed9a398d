"""Payloads in a bucket: `s3://<bucket>/<prefix>/<topic>/<id>`. Only this and `stores.s3_*` know boto3.

S3 itself guarantees what `PayloadStore` requires: a put is atomic and durable when it returns, and every later read
sees it. The permissions needed are s3:PutObject to write, s3:GetObject to read and, for the sweep, s3:DeleteObject, all
below the prefix, and s3:ListBucket. Without the last one S3 answers 403 instead of 404 for a missing payload.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, cast

from stores.bucket import PROBE, BucketStore, KeptError
from stores.keys import REQUIRED, Key, Value
from stores.root import check_object_id
from stores.store import ExpiryRule, PayloadInfo, Removal
from transforms.errors import (
    ConfigurationError,
    PayloadNotFoundError,
    PayloadStoreAccessError,
    PayloadStoreError,
    PayloadTooLargeError,
)

try:
    from botocore.exceptions import ClientError

    from stores.http_time import within
    from stores.s3_answers import check_answer, info
    from stores.s3_body import Bodies
    from stores.s3_client import open_client
    from stores.s3_errors import code, named_right, status, translated
    from stores.s3_expect import CONTINUE_MS
    from stores.s3_lifecycle import S3Lifecycle
    from stores.s3_puts import Puts
    from stores.s3_removal import S3Removal
except ImportError as exc:
    raise ConfigurationError(
        "large.message.payload.store.class",
        f"found 's3', which needs boto3 ({exc}); install it: pip install 'wideload[s3]'",
    ) from exc

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef
    from urllib3.response import HTTPResponse

__all__ = ["S3Store"]

_RECEIVE_BYTES = 1 << 18


class S3Store(BucketStore):
    """One client for all threads, with a pool of connections."""

    SCHEME: ClassVar[str] = "s3"
    START: ClassVar[str] = "s3"
    CONTAINER: ClassVar[str] = "bucket"
    CONTAINER_NAME: ClassVar[re.Pattern[str]] = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{2,254}")
    CONTAINER_ALLOWED: ClassVar[str] = "3 to 255 characters a-z, A-Z, 0-9, '.', '_' and '-', not '.', '_' or '-' first"

    KEYS: ClassVar[Sequence[Key]] = (
        Key("s3.bucket", "string", "The bucket. It must exist.", default=REQUIRED),
        Key(
            "s3.prefix",
            "string",
            "The prefix of all object keys, without a slash at either end: `s3://bucket/prefix/topic/id`.",
            default="",
        ),
        Key(
            "s3.endpoint",
            "string",
            "The URL of an S3 server other than Amazon's, including its path if it has one. Default: "
            "`AWS_ENDPOINT_URL`.",
        ),
        Key("s3.region", "string", "The region of the bucket. Default: that of AWS's configuration."),
        Key(
            "s3.access.key",
            "string",
            "The access key; requires `s3.secret.key`. Default: AWS's default provider chain (environment, profile, "
            "web identity, instance metadata).",
        ),
        Key("s3.secret.key", "string", "The secret key that belongs to `s3.access.key`.", secret=True),
        Key("s3.session.token", "string", "The session token of temporary keys.", secret=True),
        Key(
            "s3.path.style",
            "boolean",
            "Whether the bucket is part of the URL's path instead of its host name. Default: yes if `s3.endpoint` is "
            "set.",
        ),
        Key(
            "s3.connection.timeout.ms",
            "int",
            "The maximum time in milliseconds to wait for a connection, and for the server to accept the next MiB of "
            "a payload.",
            default=5000,
            minimum=1,
        ),
        Key(
            "s3.read.timeout.ms",
            "int",
            "The maximum time in milliseconds to wait for the response after a request was sent.",
            default=9_000,
            minimum=1,
        ),
        Key(
            "s3.retry.attempts",
            "int",
            "The maximum number of attempts of a request, including the first. The pause before the second attempt is "
            "up to 1 second, and doubles with each attempt, up to 20 seconds (botocore's `standard` mode); the server "
            "may request up to 5 seconds more. A download whose body is truncated is also retried, if the rest of "
            "`large.message.store.timeout.ms` allows it.",
            default=3,
            minimum=1,
        ),
        Key(
            "s3.sse",
            "string",
            "The server-side encryption that each put requests. Default: that of the bucket.",
            allowed=("AES256", "aws:kms", "aws:kms:dsse"),
        ),
        Key("s3.sse.kms.key.id", "string", "The KMS key of `s3.sse`. Default: the account's key for S3."),
        Key(
            "s3.payload.signing",
            "boolean",
            "`true`: the signature of a put covers the payload, also over TLS, and the put has a CRC-32 that the "
            "server verifies; both cost more CPU than sending the payload. `false`: neither. Default: `true` if the "
            "endpoint is `http://`. The reference has a SHA-256 in any case, TLS protects the transfer, and a bucket "
            "that requires a checksum, as with Object Lock, always gets one.",
        ),
        Key(
            "s3.max.connections",
            "int",
            "How many idle connections are kept open. Connections beyond this number are closed after use.",
            default=16,
            minimum=1,
        ),
    )

    def connect(self, values: Mapping[str, Value | None]) -> None:
        """See `BucketStore.connect`. Credentials are looked up here, which may ask the instance's metadata service."""
        _check_time(values, self.timeout_ms)
        self._client = open_client(values, self.timeout_ms / 1000)
        self._bodies = Bodies(self._client, cast("int", values["s3.retry.attempts"]), _attempt_ms(values) / 1000)
        self._puts = Puts(self._client, self._container, _encryption(values), summed=bool(values["s3.payload.signing"]))
        self._lifecycle = S3Lifecycle(self._client, self._container)
        self._removal = S3Removal(self._client, self._container, self._head, self._translated, threads=self._threads)

    def put_object(self, path: str, data: bytes) -> str | None:
        """See `BucketStore.put_object`. Returns the version, in a bucket that keeps them."""
        with self._translated("PutObject", path):
            response = self._puts.put(self._key(path), data, path)
        check_answer(response, "PutObject", path)
        return response.get("VersionId")

    def get(self, full_path: str, max_bytes: int) -> bytes:
        self.root.check_readable(full_path)

        def receive(answer: Mapping[str, Any]) -> bytes:
            # StreamingBody gives its raw stream only as a context manager, which closes it at the end.
            with answer["Body"] as stream:
                check_answer(answer, "GetObject", full_path)
                return _receive(stream, full_path, answer.get("ContentLength"), max_bytes)

        with self._translated("GetObject", full_path, max_bytes):
            return self._bodies.get(self._container, self._key(full_path), self.timeout_ms / 1000, receive)

    def stat(self, full_path: str) -> PayloadInfo:
        return self._head(full_path)[0]

    def _head(self, full_path: str) -> tuple[PayloadInfo, str | None]:
        """What there is, and its version in a bucket that keeps them."""
        self.root.check_readable(full_path)
        with self._translated("HeadObject", full_path):
            try:
                response = self._client.head_object(Bucket=self._container, Key=self._key(full_path))
            except ClientError as exc:
                # The response to a HEAD has no body: 404 may mean the payload or the bucket, 403 names no permission.
                if status(exc) == HTTPStatus.NOT_FOUND:
                    self._client.head_bucket(Bucket=self._container)
                    raise PayloadNotFoundError(full_path) from exc
                if status(exc) == HTTPStatus.FORBIDDEN:
                    self._client.get_object(Bucket=self._container, Key=self._key(full_path))["Body"].close()
                raise
        check_answer(response, "HeadObject", full_path)
        return info("HeadObject", full_path, response, "ContentLength"), response.get("VersionId")

    def delete(self, full_path: str) -> None:
        """See `Delete.delete`. In a versioned bucket, S3 leaves a delete marker."""
        self.root.split(full_path)
        with contextlib.suppress(PayloadNotFoundError), self._translated("DeleteObject", full_path):
            self._client.delete_object(Bucket=self._container, Key=self._key(full_path))

    def delete_unchanged(self, payloads: Iterable[PayloadInfo]) -> Iterator[Removal]:
        """See `DeleteUnchanged.delete_unchanged`: about a third of a second passes between look-up and removal.

        In a versioned bucket the version that was looked up is removed, so a concurrently published one stays. Without
        permission to remove versions, a delete marker is left.
        """
        return self._removal.delete_unchanged((self._checked(payload) for payload in payloads), self._key)

    def folders_below(self, prefix: str) -> Iterator[str]:
        """See `BucketStore.folders_below`; a request for every 1,000."""
        paginator = self._client.get_paginator("list_objects_v2")
        for page in self._pages(paginator.paginate(Bucket=self._container, Prefix=prefix, Delimiter="/")):
            yield from (folder.get("Prefix", "") for folder in page.get("CommonPrefixes", ()))

    def found_below(self, prefix: str) -> Iterator[Iterable[PayloadInfo]]:
        """See `BucketStore.found_below`; skips objects that cannot be payloads."""
        paginator = self._client.get_paginator("list_objects_v2")
        for page in self._pages(paginator.paginate(Bucket=self._container, Prefix=prefix)):
            found = ((f"{self._container_uri}{item.get('Key', '')}", item) for item in page.get("Contents", ()))
            # Objects that are not payloads may lack size and date.
            yield (info("ListObjectsV2", path, item, "Size") for path, item in found if self.root.holds(path))

    def check(self, *, writing: bool = True, topic: str | None = None) -> None:
        """See `Check.check`: puts a probe and removes it, or gets one, which mostly does not exist.

        The probe stays where the caller may not remove it. Unlike the response to HeadBucket, these have a body with
        the reason of a failure.
        """
        path = self.root.probe(topic)
        if not writing:
            with contextlib.suppress(PayloadNotFoundError):
                self._check_readable(path)
            return
        with contextlib.suppress(KeptError):  # a probe of before, and no permission is missing
            version = self.put_object(path, PROBE)
            more = {} if version is None else {"VersionId": version}
            with contextlib.suppress(PayloadStoreError), self._translated("DeleteObject", path):
                self._client.delete_object(Bucket=self._container, Key=self._key(path), **cast("Any", more))

    def _check_readable(self, path: str) -> None:
        try:
            with self._translated("GetObject", path):
                response = self._client.get_object(Bucket=self._container, Key=self._key(path))
                response["Body"].close()
            check_answer(response, "GetObject", path)
        except PayloadStoreAccessError as exc:
            refusal = exc.__cause__
            if not isinstance(refusal, ClientError) or code(refusal) != "AccessDenied" or named_right(refusal):
                raise
            # Unless the caller may list the bucket, S3 refuses a missing object like one that may not be read.
            with self._translated("HeadBucket", path):
                try:
                    self._client.head_bucket(Bucket=self._container)
                except ClientError as unlisted:
                    if status(unlisted) == HTTPStatus.FORBIDDEN:
                        return
                    raise
            raise

    def expiry_rules(self, topic: str) -> Sequence[ExpiryRule]:
        return self._lifecycle.rules(self._key(f"{self.root.uri}{check_object_id(topic)}/"))

    def set_expiry(self, topic: str, days: int | None) -> bool:
        return self._lifecycle.set(self._key(f"{self.root.uri}{check_object_id(topic)}/"), days)

    def close(self) -> None:
        self._client.close()

    def _pages(self, pages: Iterable[ListObjectsV2OutputTypeDef]) -> Iterator[ListObjectsV2OutputTypeDef]:
        waiting = iter(pages)
        while True:
            with self._translated("ListObjectsV2", self.root.uri):
                page = next(waiting, None)
            if page is None:
                return
            check_answer(page, "ListObjectsV2", self.root.uri, "IsTruncated")
            yield page

    @contextlib.contextmanager
    def _translated(self, operation: str, path: str, data_bytes: int = 0) -> Iterator[None]:
        with translated(operation, path, self._container), within(self.timeout_ms / 1000, data_bytes):
            yield


def _receive(stream: HTTPResponse, path: str, size: int | None, max_bytes: int) -> bytes:
    if size is not None and size > max_bytes:
        raise PayloadTooLargeError(path, size, max_bytes)
    # As in newer versions of botocore. Otherwise urllib3 raises its own error before the one below.
    stream.enforce_content_length = False
    pieces: list[bytes] = []
    received = 0
    # Even without content one read is needed: it returns the connection to the pool.
    while True:
        piece = stream.read1(_RECEIVE_BYTES)
        pieces.append(piece)
        received += len(piece)
        if received > max_bytes:
            raise PayloadTooLargeError(path, None, max_bytes)
        if not piece or received == size:
            break
    if size is not None and received < size:
        raise ConnectionError(f"the connection was closed after {received:,} of {size:,} bytes")
    return b"".join(pieces)


def _encryption(values: Mapping[str, Value | None]) -> dict[str, Any]:
    sse, key_id = values["s3.sse"], values["s3.sse.kms.key.id"]
    if key_id is not None and sse not in {"aws:kms", "aws:kms:dsse"}:
        raise ConfigurationError("s3.sse.kms.key.id", "needs s3.sse = 'aws:kms' or 'aws:kms:dsse'")
    return {
        name: value for name, value in {"ServerSideEncryption": sse, "SSEKMSKeyId": key_id}.items() if value is not None
    }


def _attempt_ms(values: Mapping[str, Value | None]) -> int:
    """How long an attempt may take until the head of its answer is there."""
    return cast("int", values["s3.connection.timeout.ms"]) + CONTINUE_MS + cast("int", values["s3.read.timeout.ms"])


def _check_time(values: Mapping[str, Value | None], allowed_ms: int) -> None:
    attempts, connect_ms, read_ms = (
        cast("int", values[name]) for name in ("s3.retry.attempts", "s3.connection.timeout.ms", "s3.read.timeout.ms")
    )
    # 1, 2, 4, 8 and 16 s, then 20 each; in closed form, as there may be a billion attempts.
    growing = min(attempts - 1, 5)
    pauses_ms = ((1 << growing) - 1 + 20 * (attempts - 1 - growing) + 5 * (attempts - 1)) * 1000
    needed_ms = attempts * _attempt_ms(values) + pauses_ms
    if needed_ms > allowed_ms:
        raise ConfigurationError(
            "large.message.store.timeout.ms",
            f"found {allowed_ms:,}, but {attempts} attempts of {connect_ms:,} ms to connect, {CONTINUE_MS:,} ms to "
            f"wait for 100 Continue and {read_ms:,} ms to read, with {pauses_ms:,} ms of pauses, may take "
            f"{needed_ms:,} ms; raise it, or lower s3.retry.attempts, s3.connection.timeout.ms or s3.read.timeout.ms",
        )
