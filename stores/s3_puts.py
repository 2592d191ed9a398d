"""Puts of `stores.s3`, each with the checksum that its bucket or `s3.payload.signing` requires.

A bucket with a default retention (Object Lock) accepts no put without `Content-MD5` or a checksum. Both cost about as
much CPU as the put itself, so they are computed only for a bucket that has refused a put without them.

Here a checksum is a header. Over TLS botocore would append it to the body: the signature then does not cover the
payload, and a server that does not support this form (`aws-chunked`) stores the frames of the body as data.

Source: S3 API, "PutObject", Content-MD5; the messages are those of S3, of MinIO, and of versitygw.
"""

from __future__ import annotations

import hashlib
import zlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from botocore.exceptions import ClientError

from stores.s3_answers import check_stored
from stores.s3_errors import code, said, status

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import PutObjectOutputTypeDef


_SEND_BYTES = 1 << 20


def wants_md5(exc: ClientError) -> bool:
    """Whether the server refuses a request that has no `Content-MD5`."""
    missing = status(exc) == HTTPStatus.BAD_REQUEST and "content-md5" in said(exc).lower()
    return missing or code(exc) == "MissingContentMD5"


def content_md5(data: bytes) -> str:
    """The value of the header `Content-MD5`."""
    return b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


class Puts:
    """The puts to one bucket. May be used by several threads.

    Args:
        client: of the store.
        bucket: the bucket.
        more: further parameters of each put.
        summed: whether each put has a CRC-32, even if the bucket does not require it.
    """

    def __init__(self, client: S3Client, bucket: str, more: Mapping[str, Any], *, summed: bool) -> None:
        self._client = client
        self._bucket = bucket
        self._more = more
        self._wanted: Callable[[bytes], Mapping[str, str]] = _crc32 if summed else _nothing

    def put(self, key: str, data: bytes, path: str) -> PutObjectOutputTypeDef:
        """The answer to a put; a second one with a checksum, if the first one is refused for the lack of it.

        Args:
            key: the name of the object.
            data: its content.
            path: its path, for messages.

        Raises:
            PayloadStoreError: something else was stored.
            Exception: as boto3's.
        """
        sent = self._wanted
        try:
            return self._put(key, data, sent(data), path)
        except ClientError as exc:
            wanted = _crc32 if "x-amz-checksum" in said(exc) else _md5
            if wanted is sent or not wants_md5(exc):
                raise
        self._wanted = wanted
        return self._put(key, data, wanted(data), path)

    def _put(self, key: str, data: bytes, sums: Mapping[str, str], path: str) -> PutObjectOutputTypeDef:
        body: Any = _Upload(data) if data else b""
        more = cast("Any", {**self._more, **sums})
        response = self._client.put_object(Bucket=self._bucket, Key=key, Body=body, **more)
        check_stored(response, {"Size": len(data), **sums}, path)
        return response


def _nothing(_: bytes) -> Mapping[str, str]:
    return {}


def _crc32(data: bytes) -> Mapping[str, str]:
    return {"ChecksumCRC32": b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()}


def _md5(data: bytes) -> Mapping[str, str]:
    return {"ContentMD5": content_md5(data)}


class _Upload:
    """The body of a put, sent in pieces without a copy.

    Because it is a file, botocore adds `Expect: 100-continue`, so that a refusal can be read. With bytes, a server that
    refuses 20 MB would close the connection while they are sent, and the client would see only that. Pieces are needed
    because the timeout of a socket applies to a whole `sendall`: 256 MB would have 5 seconds.
    """

    def __init__(self, data: bytes) -> None:
        self._view = memoryview(data)
        self._position = 0

    def __len__(self) -> int:
        return len(self._view)

    def read(self, size: int = -1) -> memoryview:
        """The next piece, larger than the 16 KiB that urllib3 asks for, since each call costs."""
        piece = self._view[self._position : self._position + (_SEND_BYTES if size else 0)]
        self._position += len(piece)
        return piece

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = (0, self._position, len(self._view))[whence] + offset
        return self._position
