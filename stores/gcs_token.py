"""Google's tokens: of application default credentials, or of the configured ones. Only this imports google-auth."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import google.auth
import google.auth.exceptions
import google.auth.transport.requests

from stores.calls import Calls, HangingError
from stores.cloud_rest import timed_session
from stores.http_time import LateError, within
from transforms.errors import ConfigurationError, PayloadStoreAccessError, PayloadStoreError
from transforms.text import printable

_SCOPES = ("https://www.googleapis.com/auth/devstorage.full_control",)
_TEXT_CHARACTERS = 500
_KEY = "gcs.credentials.file"


def _service_account(described: Mapping[str, Any]) -> Any:
    from google.oauth2 import service_account

    return service_account.Credentials.from_service_account_info(described, scopes=_SCOPES)


def _user(described: Mapping[str, Any]) -> Any:
    from google.oauth2 import credentials

    return credentials.Credentials.from_authorized_user_info(described, scopes=_SCOPES)


def _federated(described: Mapping[str, Any]) -> Any:
    from google.auth import aws, identity_pool

    of_aws = described.get("subject_token_type") == "urn:ietf:params:aws:token-type:aws4_request"
    return (aws if of_aws else identity_pool).Credentials.from_info(described, scopes=_SCOPES)


def _impersonated(described: Mapping[str, Any]) -> Any:
    from google.auth import impersonated_credentials

    return impersonated_credentials.Credentials.from_impersonated_service_account_info(described, scopes=_SCOPES)


# By type, as google-auth asks for: what loads any type would also start the program that a file may name.
_TYPES: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "service_account": _service_account,
    "external_account": _federated,
    "impersonated_service_account": _impersonated,
    "authorized_user": _user,
}


class Tokens:
    """A token that is renewed before it expires, for obstore and for the JSON API. May be used by several threads.

    An instance is a `GCSCredentialProvider` of obstore.

    Args:
        described: gives the content of a credentials file, as it is now: a service account, workload identity
            federation, an impersonation, a user. None for application default credentials. Raises ConfigurationError.
        request_seconds: the longest wait for an answer of a token service.
    """

    def __init__(self, described: Callable[[], Mapping[str, Any] | None], request_seconds: float) -> None:
        self._described = described
        self._request_seconds = request_seconds
        self._session = timed_session(connections=1)
        self._send: Any = google.auth.transport.requests.Request(session=self._session)
        self._credentials: Any = None
        self._lock = threading.Lock()
        self._calls = Calls()

    @classmethod
    def configured(cls, file: str | None, text: str | None, request_seconds: float) -> Tokens:
        """Takes the values of `gcs.credentials.file` and `gcs.credentials.json`, of which one at most is set.

        Raises:
            ConfigurationError: they are not credentials.
        """
        made = cls(functools.partial(_described, file, text), request_seconds)
        made._described()  # reports errors now
        return made

    def ready(self, deadline: float) -> None:
        """Renews the token if it is about to expire.

        Args:
            deadline: of the call that needs it, in seconds of the monotonic clock.

        Raises:
            PayloadStoreAccessError: there are no credentials, or Google refuses them.
            PayloadStoreError: the token service did not answer; may be tried again.
        """
        if not self._lock.acquire(timeout=max(deadline - time.monotonic(), 0)):
            raise PayloadStoreError("GCS token failed: no token within the time allowed", retriable=True, key=_KEY)
        try:
            # `valid` is false some minutes before the end.
            if self._credentials is None or not self._credentials.valid:
                left_ms = max(round((deadline - time.monotonic()) * 1000), 0)
                # google-auth bounds no program that it starts, and no answer of a metadata service.
                self._calls.within(left_ms, functools.partial(self._renew, deadline))
        except ConfigurationError as exc:
            raise PayloadStoreAccessError(f"GCS token failed: {exc}", key=_KEY) from exc
        except Exception as exc:  # google-auth takes answers for what they should be
            raise _refused(exc) from exc
        finally:
            self._lock.release()

    def _renew(self, deadline: float) -> None:
        if self._credentials is None:
            self._credentials = self._found()
        try:
            self._credentials.refresh(self._within(deadline))
        except google.auth.exceptions.GoogleAuthError as exc:
            if _may_pass(exc):
                raise
            found = self._found()  # the file may have been replaced
            found.refresh(self._within(deadline))
            self._credentials = found

    def __call__(self) -> dict[str, Any]:
        """The token for obstore, which keeps it until its end."""
        expiry: datetime | None = self._credentials.expiry
        if expiry is not None and expiry.tzinfo is None:
            expiry = expiry.replace(tzinfo=UTC)  # as google-auth means it
        return {"token": self._credentials.token, "expires_at": expiry}

    def bearer(self) -> str:
        """The value of an Authorization header; after `ready`."""
        return f"Bearer {self._credentials.token}"

    def close(self) -> None:
        """Closes connections."""
        self._session.close()

    def _found(self) -> Any:
        described = self._described() or _of_environment()
        if described is None:
            return google.auth.default(scopes=_SCOPES)[0]
        return _TYPES[described["type"]](described)

    def _within(self, deadline: float) -> Any:
        def send(url: str, method: str = "GET", **more: Any) -> Any:
            left = deadline - time.monotonic()
            if left <= 0:
                raise google.auth.exceptions.TransportError("no token within the time allowed")
            given = more.pop("timeout", None) or self._request_seconds
            try:
                with within(left):
                    return self._send(url, method=method, timeout=min(given, left, self._request_seconds), **more)
            except LateError as exc:
                raise google.auth.exceptions.TransportError(str(exc)) from exc

        return send


def _described(file: str | None, text: str | None) -> Mapping[str, Any] | None:
    """See `Tokens.configured`; None if neither is set."""
    if file is None and text is None:
        return None
    name = "gcs.credentials.json" if file is None else _KEY
    try:
        content = Path(file).read_text(encoding="utf-8") if file is not None else str(text)
    except (OSError, ValueError) as exc:
        raise ConfigurationError(name, f"cannot be read ({type(exc).__name__}): {exc}") from exc
    described: Any = None
    with contextlib.suppress(ValueError):  # whose message may have a part of the key
        described = json.loads(content)
    if not isinstance(described, dict) or described.get("type") not in _TYPES:
        raise ConfigurationError(
            name, f"is not the JSON of a credentials file; allowed is an object whose `type` is {', '.join(_TYPES)}"
        )
    return described


def _of_environment() -> Mapping[str, Any] | None:
    """The credentials file that the environment names; None if google-auth has to look.

    For such a file google-auth would also ask another service of Google's for the project, which nobody needs here.
    """
    path = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if not path:
        return None
    found: Any = None
    with contextlib.suppress(OSError, ValueError):  # google-auth says it better
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(found, dict) or found.get("type") not in _TYPES:
        return None
    source = found.get("credential_source")
    return None if isinstance(source, dict) and "executable" in source else found


def _may_pass(exc: Exception) -> bool:
    return isinstance(exc, (google.auth.exceptions.TransportError, HangingError)) or getattr(exc, "retryable", False)


def _refused(exc: Exception) -> PayloadStoreError:
    text = printable(f"{type(exc).__name__}: {exc}", _TEXT_CHARACTERS)
    if _may_pass(exc):
        return PayloadStoreError(f"GCS token failed: {text}; not a response with a token", retriable=True, key=_KEY)
    return PayloadStoreAccessError(
        f"GCS token failed: {text}; set {_KEY}, or application default credentials "
        "(GOOGLE_APPLICATION_CREDENTIALS, gcloud auth application-default login, the service account of the machine)",
        key=_KEY,
    )
