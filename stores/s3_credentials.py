"""The credentials of AWS's provider chain, which may change while a process runs, for `stores.s3` and `stores.kms`.

botocore searches its chain once per client. It renews credentials with an expiry time, such as those of a role, and
keeps all others. But those of a file may expire too, and be replaced by an agent (boto/botocore#704). The chain is
therefore searched again when a service refuses the credentials, and the request is sent again if others are found.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import botocore.exceptions as aws
import botocore.session
from botocore.config import Config
from botocore.credentials import RefreshableCredentials
from botocore.loaders import Loader, create_loader
from botocore.parsers import ResponseParserError

from stores.calls import Calls
from stores.http_time import LateError, apart
from stores.s3_time import keep_time
from transforms.errors import PayloadStoreAccessError, PayloadStoreError
from transforms.text import printable

_METHOD = "WideloadMethod"  # in the `Error` of a refusal: botocore's name of the source whose credentials were refused
_FAILED = "WideloadSearch"  # why the chain could not be searched for others
_AGAIN_S = 1.0
_CONNECT_S = 5
_READ_S = 10
_TEXT_CHARACTERS = 500

# A service refuses the credentials themselves: by code, and why. Other refusals may come from their permissions.
_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"),
        "they have expired, and must be renewed at their source",
    ),
    **dict.fromkeys(
        (
            "InvalidAccessKeyId",
            "InvalidClientTokenId",
            "InvalidToken",
            "InvalidTokenId",  # MinIO
            "UnrecognizedClientException",
            "XAdminUserNotFound",  # versitygw
        ),
        "the server does not know them",
    ),
    **dict.fromkeys(("InvalidSignatureException", "SignatureDoesNotMatch"), "the secret key or the region is wrong"),
}
_OTHER_REFUSALS = ("400", "AccessDeniedException")  # with HTTP 400: of S3 for a HEAD, without a body; of KMS
# Of a service that gives credentials. The file of a web identity is replaced when it is nearly over, and the provider
# behind it may be away: AWS says of these that the request is to be sent again.
_MAY_PASS = frozenset(
    {
        "ExpiredTokenException",
        "IDPCommunicationError",
        "InvalidIdentityToken",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestTimeout",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_PASSING = (
    aws.ConnectionError,
    aws.HTTPClientError,
    aws.CredentialRetrievalError,
    aws.MetadataRetrievalError,
    LateError,
    ResponseParserError,  # a page in place of an answer
    KeyError,  # the same, if the page is XML
    OSError,  # the file of a token
    RuntimeError,  # what was given is over already: boto/boto3#1283
)


class CredentialsError(Exception):
    """AWS's provider chain has no credentials: `str` is the reason.

    Attributes:
        may_pass: whether waiting may help.
    """

    def __init__(self, cause: Exception) -> None:
        said = f"{type(cause).__name__}: {cause}"
        self.may_pass = isinstance(cause, _PASSING)
        if isinstance(cause, aws.ClientError):
            code, status = _answer(cause.response)
            self.may_pass = (
                code in _MAY_PASS
                or status == HTTPStatus.TOO_MANY_REQUESTS
                or status >= HTTPStatus.INTERNAL_SERVER_ERROR
            )
            text = cause.response.get("Error", {}).get("Message", "")
            said = f"{cause.operation_name}: {code or 'no code'} (HTTP {status}): {text}"
        super().__init__(f"AWS's provider chain has no credentials: {printable(said, _TEXT_CHARACTERS)}")

    def translated(self, call: str, key: str) -> PayloadStoreError:
        """The project's error, for a call that has failed by this one; `key` is the one to change."""
        if self.may_pass:
            return PayloadStoreError(f"{call}: {self}", retriable=True, key=key)
        advice = "check the sources of the chain: a profile, a role and its trust policy, the file of a token"
        return PayloadStoreAccessError(f"{call}: {self}; {advice}", key=key)


def refused_of_chain(error: aws.ClientError) -> str | None:
    """Which credentials of AWS's provider chain were refused, and why; None if the refused ones are not from it."""
    found: Any = error.response.get("Error", {})
    method, failed, why = found.get(_METHOD), found.get(_FAILED), _REFUSED.get(_answer(error.response)[0])
    others = f"; the search for others fails: {printable(failed, _TEXT_CHARACTERS)}" if failed else ""
    return f"the credentials are those of AWS's provider chain ({method}): {why}{others}" if method and why else None


class ChainCredentials:
    """The credentials with which botocore signs requests, instead of those it finds itself. Thread-safe.

    Args:
        search: searches the chain: credentials of botocore, or None.
        clock: monotonic seconds.
    """

    # State that changes, under `_lock`: `_found`, `_error`, `_searched_s`. A thread may read old credentials.

    def __init__(self, search: Callable[[], Any], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._search = search
        self._clock = clock
        self._lock = threading.Lock()
        self._calls = Calls()
        self._found: Any = None
        self._error: Exception | None = None
        self._searched_s = float("-inf")
        self._signed = threading.local()

    def load_credentials(self) -> ChainCredentials:
        """What a session of botocore asks its `credential_provider` for. Makes no request."""
        return self

    @property
    def method(self) -> str:
        """The source in the chain, by botocore's name, such as `shared-credentials-file`; `none` if there is none."""
        return str(getattr(self._found, "method", "none"))

    def get_frozen_credentials(self) -> Any:
        """Credentials for one request; None if the chain has none.

        Raises:
            CredentialsError: the chain fails.
        """
        try:
            found = self._frozen()
        except Exception as exc:
            error = CredentialsError(exc)
            before = self._found
            # Those with which a role is assumed may be from a file, too.
            if error.may_pass or before is None or self._searched_again() is before:
                raise error from exc
            found = self._frozen_again()
        self._signed.with_these = found
        return found

    def _frozen_again(self) -> Any:
        try:
            return self._frozen()
        except Exception as exc:
            raise CredentialsError(exc) from exc

    def get_deferred_property(self, name: str) -> Callable[[], Any]:
        """See botocore's `Credentials`."""
        return lambda: getattr(self.get_frozen_credentials(), name, None)

    def renew(self, client: Any) -> None:
        """Makes a client retry a request if its credentials were refused and the chain now has others."""
        service = client.meta.service_model.service_id.hyphenize()
        client.meta.events.register_first(f"needs-retry.{service}", self._refused)

    def _refused(self, response: tuple[Any, dict[str, Any]] | None = None, **_: object) -> float | None:
        """The seconds until the next attempt; None leaves that to botocore. Called by the thread that has signed."""
        if response is None or not self._is_of_credentials(*_answer(response[1])):
            return None
        error = response[1].setdefault("Error", {})
        error[_METHOD] = self.method
        if self._has_others():
            return 0.0
        error[_FAILED] = str(self._error or "")
        return None

    def _is_of_credentials(self, code: str, status: int) -> bool:
        if code in _REFUSED:
            return True
        # What renews itself is not old.
        refused = status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN} or code in _OTHER_REFUSALS
        return refused and not isinstance(self._found, RefreshableCredentials)

    def _has_others(self) -> bool:
        before = getattr(self._signed, "with_these", None)
        try:
            if self._frozen() == before:  # else another thread has found them
                self._searched_again()
            return bool(self._frozen() != before)
        except Exception:  # noqa: BLE001  # the refusal says enough
            return False

    def _frozen(self) -> Any:
        found = self._found or self._searched_again()
        if isinstance(found, RefreshableCredentials) and found.refresh_needed():
            return apart(self._calls, found.get_frozen_credentials)
        return None if found is None else found.get_frozen_credentials()

    def _searched_again(self) -> Any:
        """As `_search_again`, until the deadline: botocore bounds no program, and no answer of a metadata service."""
        return apart(self._calls, self._search_again)

    def _search_again(self) -> Any:
        """What the chain has by another search; after a search in vain there is none for a second.

        What it had stays until it has something else.

        Raises:
            Exception: the search fails, and nothing was found before.
        """
        with self._lock:
            if self._clock() - self._searched_s >= _AGAIN_S:
                before = self._found
                try:
                    self._found, self._error = self._search() or before, None
                except Exception as exc:  # noqa: BLE001  # raised below, for all who ask within the second
                    self._error = exc
                if before is not None or self._found is None:
                    self._searched_s = self._clock()
            if self._found is None and self._error is not None:
                raise self._error
            return self._found


def open_session() -> tuple[botocore.session.Session, ChainCredentials]:
    """A session of botocore, and the credentials of its clients unless they get others."""
    session = _bare_session()
    credentials = ChainCredentials(
        lambda: _bare_session(_ChainSession).get_component("credential_provider").load_credentials()
    )
    session.register_component("credential_provider", credentials)
    return session, credentials


class _ChainSession(botocore.session.Session):
    """A session whose clients ask AWS for credentials, in the time of the call that needs them."""

    def create_client(self, *arguments: Any, **more: Any) -> Any:
        client = super().create_client(*arguments, **more)
        keep_time(client, _CONNECT_S + _READ_S)
        return client


def _bare_session(kind: type[botocore.session.Session] = botocore.session.Session) -> botocore.session.Session:
    """A new one: a session keeps what it has read of AWS's files."""
    session = kind()
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    # Of the clients that ask AWS for credentials: botocore would wait for a minute, and try again.
    session.set_default_client_config(Config(connect_timeout=_CONNECT_S, read_timeout=_READ_S))
    return session


@functools.cache
def _loader(path: str | None) -> Loader:
    """boto3's description of S3, read once in a process: a tenth of a second of CPU that each client would take.

    botocore shares it likewise among the clients of one session.
    """
    return create_loader(path)


def _answer(answer: Mapping[str, Any]) -> tuple[str, int]:
    """The code of an error, and its HTTP status; empty and 0 where there is none."""
    code = answer.get("Error", {}).get("Code", "")
    return str(code), int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
