"""Translates the errors of botocore into the project's errors, for `stores.s3`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus

import botocore.exceptions as aws
import urllib3.exceptions

from stores.http_time import LateError
from transforms.errors import PayloadNotFoundError, PayloadStoreAccessError, PayloadStoreError, PayloadUnfitError
from transforms.text import printable

__all__ = ["NO_S3_SERVER", "status", "translated"]

NO_S3_SERVER = "which is not the answer of an S3 server; check s3.endpoint, and any proxy before it"
"""The end of a message about an answer that lacks what S3's have."""

# Checked in this order; the first class that fits decides. Errors in none of these tables stay until somebody acts.
_MAY_PASS: Sequence[tuple[type[BaseException], bool]] = (
    (aws.NoCredentialsError, False),
    (aws.PartialCredentialsError, False),
    (aws.ProxyConnectionError, True),
    (aws.ConnectionError, True),  # refused, unknown host, time-out while connecting
    (aws.HTTPClientError, True),  # closed, time-out while reading, a response that breaks off
    (aws.IncompleteReadError, True),
    (aws.FlexibleChecksumError, True),
    (aws.CredentialRetrievalError, True),  # a metadata or token service that is down
    (aws.MetadataRetrievalError, True),
    (urllib3.exceptions.HTTPError, True),  # from the body, which is read without botocore
    (LateError, True),
    (OSError, True),
)

_CODES_THAT_MAY_PASS = frozenset(
    {
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

_NO_TLS = "; there is no TLS at this port: begin s3.endpoint with http://, or correct the port"
_REDIRECTED = "the bucket is elsewhere: change s3.region or s3.endpoint"

_ADVICE: Mapping[str, str] = {
    "403": "check the credentials and the permissions",
    "413": "a proxy before the S3 server takes no body of this size (nginx: client_max_body_size)",
    "AccessDenied": "it needs s3:GetObject, s3:PutObject and s3:ListBucket",
    "AuthorizationHeaderMalformed": "check s3.region",
    "ExpiredToken": "the session of s3.session.token is over: temporary keys that renew themselves come from AWS's own "
    "chain",
    "IllegalLocationConstraintException": "check s3.region",
    "InvalidAccessKeyId": "check s3.access.key",
    "RequestExpired": "set the clock of this machine",
    "RequestTimeTooSkewed": "set the clock of this machine",
    "XAdminUserNotFound": "check s3.access.key",  # versitygw's word for it
    "SignatureDoesNotMatch": "check s3.secret.key and s3.region",
}

_ENDPOINT = "s3.endpoint"
_REGION = "s3.region"
_ACCESS_KEY = "s3.access.key"

# Whom a refusal blames, by its code. A server without a code of S3's is none.
_BLAMED: Mapping[str, str] = {
    "AccessDenied": _ACCESS_KEY,
    "AuthorizationHeaderMalformed": _REGION,
    "ExpiredToken": "s3.session.token",
    "IllegalLocationConstraintException": _REGION,
    "InvalidAccessKeyId": _ACCESS_KEY,
    "InvalidBucketName": "s3.bucket",
    "InvalidToken": "s3.session.token",
    "NoSuchBucket": "s3.bucket",
    "SignatureDoesNotMatch": "s3.secret.key",
    "XAdminUserNotFound": _ACCESS_KEY,
}


@contextlib.contextmanager
def translated(operation: str, path: str, bucket: str) -> Iterator[None]:
    """Translates the errors of a request to S3 into `PayloadStoreError`.

    Args:
        operation: S3's name of the request.
        path: the path in the message.
        bucket: the bucket of the request.

    Raises:
        PayloadNotFoundError: the key does not exist.
        PayloadUnfitError: S3, or a proxy before it, refuses a payload of this size.
        PayloadStoreAccessError: S3 refuses this caller: permission, credentials, the clock, no such bucket.
        PayloadStoreError: any other error; the tables above decide about `retriable`.
    """
    try:
        yield
    except (aws.ClientError, aws.BotoCoreError, urllib3.exceptions.HTTPError, LateError, OSError) as exc:
        if isinstance(exc, aws.ClientError) and _code(exc) == "NoSuchKey":
            raise PayloadNotFoundError(path) from exc
        message = f"{operation} {path} failed: {_reason(exc, bucket)}"
        if isinstance(exc, aws.ClientError) and _is_unfit(exc):
            raise PayloadUnfitError(message) from exc
        if _is_denied(exc):
            raise PayloadStoreAccessError(message, key=_key(exc)) from exc
        raise PayloadStoreError(message, retriable=_may_pass(exc), key=_key(exc)) from exc
    except UnicodeError:
        raise  # of what is asked, not of what is answered
    except ValueError as exc:  # from botocore: a number or a date in the answer is none
        found = f"{printable(str(exc), _TEXT_CHARACTERS)}, {NO_S3_SERVER}"
        raise PayloadStoreError(f"{operation} {path} failed: {found}", retriable=True, key=_ENDPOINT) from exc


def status(exc: aws.ClientError) -> int:
    """The HTTP status of S3's response; 0 if there was none."""
    return int(exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _code(exc: aws.ClientError) -> str:
    return str(exc.response.get("Error", {}).get("Code", ""))


def _key(exc: Exception) -> str | None:
    """The key of the configuration that is probably wrong; None if it may be any, or none."""
    if isinstance(exc, aws.NoCredentialsError | aws.PartialCredentialsError | aws.CredentialRetrievalError):
        return _ACCESS_KEY
    if not isinstance(exc, aws.ClientError):
        return _ENDPOINT  # no connection, no TLS, no answer, or not one of S3's
    code = _code(exc)
    if status(exc) in range(300, 400):
        return _REGION
    return _BLAMED.get(code, _ENDPOINT if not code or code.isdigit() else None)


def _reason(exc: Exception, bucket: str) -> str:
    if isinstance(exc, aws.NoCredentialsError):
        return f"{type(exc).__name__}: {exc}; set s3.access.key and s3.secret.key, or AWS's own settings"
    if not isinstance(exc, aws.ClientError):
        no_tls = isinstance(exc, aws.SSLError) and "WRONG_VERSION_NUMBER" in str(exc)
        return f"{type(exc).__name__}: {printable(str(exc), _TEXT_CHARACTERS)}{_NO_TLS if no_tls else ''}"
    code = _code(exc)
    if code == "NoSuchBucket" or (exc.operation_name == "HeadBucket" and status(exc) == HTTPStatus.NOT_FOUND):
        return f"bucket {bucket} does not exist (NoSuchBucket); create it, or change s3.bucket"
    # The server's words, which may hold anything.
    said = f"{code or 'no code'} (HTTP {status(exc)}): {exc.response['Error'].get('Message', '')}"
    reason = printable(said, _TEXT_CHARACTERS)
    advice = _REDIRECTED if status(exc) in range(300, 400) else _ADVICE.get(code or str(status(exc)))
    return f"{reason}; {advice}" if advice else reason


def _is_unfit(exc: aws.ClientError) -> bool:
    return _code(exc) == "EntityTooLarge" or status(exc) == HTTPStatus.REQUEST_ENTITY_TOO_LARGE


def _is_denied(exc: Exception) -> bool:
    if isinstance(exc, aws.NoCredentialsError | aws.PartialCredentialsError):
        return True
    if not isinstance(exc, aws.ClientError) or _may_pass(exc):
        return False
    # An object in an archive gives 403 too, but other objects can still be read.
    denied = status(exc) in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN} and _code(exc) != "InvalidObjectState"
    return denied or _code(exc) in _DENIED


def _may_pass(exc: Exception) -> bool:
    if isinstance(exc, aws.ClientError):
        return _code(exc) in _CODES_THAT_MAY_PASS or status(exc) in _STATUSES_THAT_MAY_PASS
    # A certificate that is not trusted stays so; a handshake that was cut may succeed the next time.
    if isinstance(exc, aws.SSLError):
        return "CERTIFICATE_VERIFY_FAILED" not in str(exc)
    return next((may_pass for kind, may_pass in _MAY_PASS if isinstance(exc, kind)), False)
