"""Translates the errors of botocore into the project's errors, for `stores.s3`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus

import botocore.exceptions as aws
import urllib3.exceptions
from botocore.parsers import ResponseParserError

from stores.bucket import KeptError
from stores.http_time import LateError
from stores.s3_credentials import CredentialsError, refused_of_chain
from transforms.errors import PayloadNotFoundError, PayloadStoreAccessError, PayloadStoreError, PayloadUnfitError
from transforms.text import printable

NO_S3_SERVER = "which is not a response of an S3 server; check s3.endpoint, and any proxy before it"
"""The end of a message about a response that lacks what S3's have."""

# Checked in this order; the first class that fits decides. Errors in none of these tables are permanent.
_MAY_PASS: Sequence[tuple[type[BaseException], bool]] = (
    (aws.NoCredentialsError, False),
    (aws.ProxyConnectionError, True),
    (aws.ConnectionError, True),  # refused, unknown host, time-out while connecting
    (aws.HTTPClientError, True),  # closed, time-out while reading, a response that breaks off
    (aws.IncompleteReadError, True),
    (aws.FlexibleChecksumError, True),
    (urllib3.exceptions.HTTPError, True),  # from the body, which is read without botocore
    (LateError, True),
    (OSError, True),
)

# From botocore, as Python's errors: a response does not have S3's form, or a number or a date in it is invalid.
_UNREADABLE = (
    ValueError,
    OverflowError,
    TypeError,
    AttributeError,
    KeyError,
    IndexError,
    RuntimeError,
    ResponseParserError,
)

_CODES_THAT_MAY_PASS = frozenset(
    {
        "BadDigest",  # bytes that changed on their way
        "BandwidthLimitExceeded",
        "ConditionalRequestConflict",
        "IncompleteBody",
        "InternalError",
        "OperationAborted",
        "PriorRequestNotComplete",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "XAmzContentChecksumMismatch",
        "XAmzContentSHA256Mismatch",
    }
)

_STATUSES_THAT_MAY_PASS = frozenset(
    # S3 redirects for some time while the DNS names of a bucket change.
    {HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.TOO_MANY_REQUESTS, *range(500, 600)} - {HTTPStatus.NOT_IMPLEMENTED}
)

# With other statuses than 401 and 403: some servers have the clock's with 400.
_DENIED = frozenset(
    {
        "ExpiredToken",
        "InvalidToken",
        "NoSuchBucket",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "TokenRefreshRequired",
    }
)

_TEXT_CHARACTERS = 1_000

_NO_TLS = "; the server does not use TLS on this port: use http:// in s3.endpoint, or correct the port"
_REDIRECTED = "the bucket is elsewhere: change s3.region or s3.endpoint"

_ADVICE: Mapping[str, str] = {
    "403": "check the credentials and the permissions",
    "413": "a proxy before the S3 server does not accept a body of this size (nginx: client_max_body_size)",
    "AuthorizationHeaderMalformed": "check s3.region",
    "ExpiredToken": "the session of s3.session.token has expired: set a new one and restart, or use "
    "AWS's default provider chain, which renews credentials",
    "IllegalLocationConstraintException": "check s3.region",
    "InvalidAccessKeyId": "check s3.access.key",
    "NoSuchKey": "check s3.endpoint; it must not contain the bucket",  # in response to a request for no object
    "RequestExpired": "set the clock of this machine",
    "RequestTimeTooSkewed": "set the clock of this machine",
    "XAdminUserNotFound": "check s3.access.key",  # versitygw's code
    "SignatureDoesNotMatch": "check s3.secret.key and s3.region",
}

_ENDPOINT = "s3.endpoint"
_SSE = "s3.sse"
_KMS_KEY = "s3.sse.kms.key.id"
_REGION = "s3.region"
_ACCESS_KEY = "s3.access.key"

# What a refusal is due to, by its code. A server without S3's codes is not an S3 server.
_BLAMED: Mapping[str, str] = {
    "AccessDenied": _ACCESS_KEY,
    "AuthorizationHeaderMalformed": _REGION,
    "ExpiredToken": "s3.session.token",
    "IllegalLocationConstraintException": _REGION,
    "InvalidAccessKeyId": _ACCESS_KEY,
    "InvalidBucketName": "s3.bucket",
    "KMS.DisabledException": _KMS_KEY,
    "KMS.InvalidKeyUsageException": _KMS_KEY,
    "KMS.KMSInvalidStateException": _KMS_KEY,
    "KMS.NotFoundException": _KMS_KEY,
    "InvalidToken": "s3.session.token",
    "NoSuchBucket": "s3.bucket",
    "NoSuchKey": _ENDPOINT,
    "SignatureDoesNotMatch": "s3.secret.key",
    "XAdminUserNotFound": _ACCESS_KEY,
}

# The permissions of requests, if the server does not name one.
_RIGHTS: Mapping[str, str] = {
    "DeleteObject": "s3:DeleteObject",
    "DeleteObjects": "s3:DeleteObject",
    "GetObject": "s3:GetObject; without s3:ListBucket, a missing payload is refused in the same way",
    "ListObjectsV2": "s3:ListBucket",
    "PutObject": "s3:PutObject",
}
_LIST = "s3:ListBucket"

# AWS names the permission that is missing, if the caller is of the same organization as the bucket.
_NAMED_RIGHT = re.compile(r"not authorized to perform: ([A-Za-z0-9-]+:[A-Za-z0-9]+)")

# In the words of Amazon's servers, Cloudflare's, Dell's, Google's, IBM's, MinIO and versitygw.
_KEPT_CODES = frozenset(
    {
        "ObjectLocked",
        "ObjectLockedByBucketPolicy",
        "ObjectUnderActiveHold",
        "ObjectUnderRetention",
        "RetentionPolicyNotMet",
    }
)
_KEPT_WORDS = re.compile(r"WORM protected|protected by object lock|under (retention|legal hold)", re.IGNORECASE)

# Of a put that is refused because the server has no KMS, in the words of MinIO and others.
_SSE_WORDS = re.compile(r"server[- ]side encryption|\bKMS\b", re.IGNORECASE)


@contextlib.contextmanager
def translated(operation: str, path: str, bucket: str) -> Iterator[None]:
    """Translates the errors of a request to S3 into `PayloadStoreError`.

    Args:
        operation: S3's name of the request.
        path: the path in the message.
        bucket: the bucket of the request.

    Raises:
        PayloadNotFoundError: the key does not exist.
        KeptError: a payload cannot be replaced or removed, since the bucket keeps it.
        PayloadUnfitError: S3, or a proxy before it, refuses a payload of this size.
        PayloadStoreAccessError: S3 refuses this caller: permission, credentials, the clock, no such bucket.
        PayloadStoreError: any other error; the tables above decide about `retriable`.
    """
    try:
        yield
    except CredentialsError as exc:
        raise exc.translated(f"{operation} {path} failed", _ACCESS_KEY) from exc
    except (aws.ClientError, aws.BotoCoreError, urllib3.exceptions.HTTPError, LateError, OSError) as exc:
        if isinstance(exc, aws.ClientError) and _is_missing(exc):
            raise PayloadNotFoundError(path) from exc
        message = f"{operation} {path} failed: {_reason(exc, bucket)}"
        if isinstance(exc, aws.ClientError) and _is_unfit(exc):
            raise PayloadUnfitError(message) from exc
        if isinstance(exc, aws.ClientError) and _is_kept(exc):
            raise KeptError(message) from exc
        if _is_denied(exc):
            raise PayloadStoreAccessError(message, key=_key(exc)) from exc
        raise PayloadStoreError(message, retriable=_may_pass(exc), key=_key(exc)) from exc
    except UnicodeError:
        raise  # of what is asked, not of what is answered
    except _UNREADABLE as exc:
        found = f"{type(exc).__name__}: {printable(str(exc), _TEXT_CHARACTERS)}, {NO_S3_SERVER}"
        raise PayloadStoreError(f"{operation} {path} failed: {found}", retriable=True, key=_ENDPOINT) from exc


def status(exc: aws.ClientError) -> int:
    """The HTTP status of S3's response; 0 if there was none."""
    return int(exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code(exc: aws.ClientError) -> str:
    """S3's word for the error; empty if the response has none."""
    return str(exc.response.get("Error", {}).get("Code", ""))


def said(exc: aws.ClientError) -> str:
    """The server's message, which may contain anything; empty if the response has none."""
    return str(exc.response.get("Error", {}).get("Message", ""))


def named_right(exc: BaseException | None) -> str | None:
    """The permission that the server says is missing, as `s3:GetObject`; None if it does not say."""
    found = _NAMED_RIGHT.search(said(exc)) if isinstance(exc, aws.ClientError) else None
    return None if found is None else found[1]


def _is_missing(exc: aws.ClientError) -> bool:
    """Whether the object does not exist. For an object that exists, AWS does not look for s3:ListBucket."""
    if code(exc) == "NoSuchKey":
        return exc.operation_name in {"GetObject", "DeleteObject"}
    return code(exc) == "AccessDenied" and exc.operation_name == "GetObject" and named_right(exc) == _LIST


def _is_kept(exc: aws.ClientError) -> bool:
    return exc.operation_name in {"PutObject", "DeleteObject"} and is_kept(code(exc), said(exc))


def is_kept(word: str, message: str) -> bool:
    """Whether a refusal with this code is for an object that its bucket keeps: by Object Lock, a hold, a retention."""
    return word in _KEPT_CODES or _KEPT_WORDS.search(message) is not None


def _key(exc: Exception) -> str | None:
    """The key of the configuration that is probably wrong; None if it may be any, or none."""
    if isinstance(exc, aws.NoCredentialsError):
        return _ACCESS_KEY
    if not isinstance(exc, aws.ClientError):
        return _ENDPOINT  # no connection, no TLS, no answer, or not one of S3's
    if refused_of_chain(exc):
        return _ACCESS_KEY
    if status(exc) in range(300, 400):
        return _REGION
    word = code(exc)
    if word not in _BLAMED and exc.operation_name == "PutObject" and _SSE_WORDS.search(said(exc)):
        return _SSE
    return _BLAMED.get(word, _ENDPOINT if not word or word.isdigit() else None)


def _reason(exc: Exception, bucket: str) -> str:
    if isinstance(exc, aws.NoCredentialsError):
        return f"{type(exc).__name__}: {exc}; set s3.access.key and s3.secret.key, or AWS's configuration"
    if not isinstance(exc, aws.ClientError):
        no_tls = isinstance(exc, aws.SSLError) and "WRONG_VERSION_NUMBER" in str(exc)
        return f"{type(exc).__name__}: {printable(str(exc), _TEXT_CHARACTERS)}{_NO_TLS if no_tls else ''}"
    word = code(exc)
    if word == "NoSuchBucket" or (exc.operation_name == "HeadBucket" and status(exc) == HTTPStatus.NOT_FOUND):
        return f"bucket {bucket} does not exist (NoSuchBucket); create it, or change s3.bucket"
    reason = printable(f"{word or 'no code'} (HTTP {status(exc)}): {said(exc)}", _TEXT_CHARACTERS)
    advice = refused_of_chain(exc) or _advice(exc)
    return f"{reason}; {advice}" if advice else reason


def _advice(exc: aws.ClientError) -> str | None:
    word = code(exc)
    if status(exc) in range(300, 400):
        return _REDIRECTED
    if is_kept(word, said(exc)):
        return "Object Lock, a hold or a retention policy protects it"
    if _key(exc) == _SSE:
        return "change s3.sse, or set up KMS for the server"
    if word == "AccessDenied":
        right = named_right(exc) or _RIGHTS.get(exc.operation_name)
        return f"it needs {right}" if right else _ADVICE["403"]
    return _ADVICE.get(word or str(status(exc)))


def _is_unfit(exc: aws.ClientError) -> bool:
    return code(exc) == "EntityTooLarge" or status(exc) == HTTPStatus.REQUEST_ENTITY_TOO_LARGE


def _is_denied(exc: Exception) -> bool:
    if isinstance(exc, aws.NoCredentialsError):
        return True
    if not isinstance(exc, aws.ClientError) or _may_pass(exc):
        return False
    # An object in an archive gives 403 too, but other objects can still be read.
    denied = status(exc) in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN} and code(exc) != "InvalidObjectState"
    return denied or code(exc) in _DENIED


def _may_pass(exc: Exception) -> bool:
    if isinstance(exc, aws.ClientError):
        return code(exc) in _CODES_THAT_MAY_PASS or status(exc) in _STATUSES_THAT_MAY_PASS
    # A certificate that is not trusted stays so; a handshake that was cut may succeed the next time.
    if isinstance(exc, aws.SSLError):
        return "CERTIFICATE_VERIFY_FAILED" not in str(exc)
    return next((may_pass for kind, may_pass in _MAY_PASS if isinstance(exc, kind)), False)
