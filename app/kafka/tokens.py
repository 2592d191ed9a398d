"""Tokens for the OAUTHBEARER login of clients: from an OIDC provider (KIP-768), or signed for Amazon MSK.

A provider serves all clients with the same login, on any event loop. It requests a token when a connection is opened,
and keeps it for 80 % of its lifetime (Kafka's `sasl.login.refresh.window.factor`).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import importlib
import importlib.util
import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError

from stores.calls import Calls
from transforms.errors import ConfigurationError

TOKEN_MECHANISMS = ("OAUTHBEARER", "AWS_MSK_IAM")
"""The values of `sasl.mechanism` for which clients log in with a token."""

_NEEDED = (
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
)
_KEPT = 0.8
_UNKNOWN_S = 60.0  # the lifetime of a token that does not state one
_MOST_S = 86_400.0
_LATEST_S = 1e12  # numbers of JSON may exceed the range of a float
_TIMEOUT_S = 10.0  # of each wait
_WHOLE_S = 30.0  # for the name, the connection, and an answer that arrives byte by byte
_MOST_BYTES = 65_536  # of an answer
_SHOWN_CHARACTERS = 200
_SERVER_ERROR = 500
_TOO_MANY = 429
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")  # RFC 6750, section 2.1
_MSK_HOST = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")
_SIGNER = "aws_msk_iam_sasl_signer"


class TokenError(KafkaError):  # type: ignore[misc]  # aiokafka has no types
    """There is no token to log in with. `retriable` is true if another try may succeed."""

    def __init__(self, reason: str, *, retriable: bool) -> None:
        super().__init__(reason)
        self.retriable = retriable


@dataclass(frozen=True, slots=True)
class Token:
    """The text that brokers accept, and for how many seconds it is valid from now on."""

    text: str = field(repr=False)
    seconds: float


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """Provides clients with the current token, or raises `TokenError`. Any thread may use it.

    Args:
        obtain: returns a new token; blocks.
    """

    def __init__(self, obtain: Callable[[], Token]) -> None:
        self._obtain = obtain
        self._lock = threading.Lock()
        self._text = ""
        self._until_s = 0.0

    async def token(self) -> str:
        """The token, without blocking the event loop."""
        return self._text if self._is_good() else await asyncio.to_thread(self.now)

    def now(self) -> str:
        """The token; a new one if the last one expires soon."""
        with self._lock:
            if not self._is_good():
                since_s = time.monotonic()
                token = self._obtain()
                self._text, self._until_s = token.text, since_s + _KEPT * token.seconds
            return self._text

    def _is_good(self) -> bool:
        return time.monotonic() < self._until_s


def token_provider(security: Mapping[str, Any], bootstrap_servers: str) -> TokenProvider:
    """The provider for a login with one of `TOKEN_MECHANISMS`; equal logins share one.

    Raises:
        ConfigurationError: a package or the region is missing.
    """
    if security["sasl.mechanism"] == "AWS_MSK_IAM":
        if importlib.util.find_spec(_SIGNER) is None:
            raise ConfigurationError(
                "sasl.mechanism", "found 'AWS_MSK_IAM', which needs a package: pip install wideload[msk]"
            )
        return _provider(_signed, _region(security["sasl.aws.region"], bootstrap_servers))
    for name in _NEEDED:
        if security[name] is None:
            raise ConfigurationError(name, "is missing; sasl.mechanism OAUTHBEARER needs it")
    return _provider(_asked, *(security[name] for name in _NEEDED), security["sasl.oauthbearer.scope"])


@functools.lru_cache(maxsize=64)
def _provider(obtain: Callable[..., Token], *login: str | None) -> TokenProvider:
    return TokenProvider(functools.partial(obtain, *login))


# --- an OIDC provider -------------------------------------------------------------------------------------------------


class _Unmoved(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which would send the secret to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_Unmoved)
_CALLS = Calls()


def _answer(request: urllib.request.Request) -> tuple[int, bytes]:
    """The status and the body, of which at most `_MOST_BYTES` and one byte are read."""
    try:
        with _OPENER.open(request, timeout=_TIMEOUT_S) as answer:
            return answer.status, answer.read(_MOST_BYTES + 1)
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read(_MOST_BYTES)


def _asked(url: str, client_id: str, secret: str, scope: str | None) -> Token:
    """Requests a token with the client's credentials (RFC 6749, section 4.4), as Kafka's own client does."""
    form = {"grant_type": "client_credentials", **({"scope": scope} if scope else {})}
    login = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
    request = urllib.request.Request(  # noqa: S310  # the configuration allows http and https alone
        url,
        urlencode(form).encode(),
        {"Authorization": f"Basic {login}", "Accept": "application/json"},
    )
    at = f"the token endpoint {url.partition('?')[0]}"
    try:
        status, body = _CALLS.within(round(_WHOLE_S * 1000), functools.partial(_answer, request))
    except (OSError, ValueError) as exc:  # also raised by http.client for an invalid answer
        reason = getattr(exc, "reason", None) or exc
        raise TokenError(f"{at} does not answer: {reason}", retriable=True) from exc
    except Exception as exc:
        raise TokenError(f"{at} does not speak HTTP: {type(exc).__name__}", retriable=True) from exc
    if status not in range(200, 300):
        retriable = status >= _SERVER_ERROR or status == _TOO_MANY
        raise TokenError(f"{at} answers {status}{_oauth_error(body, secret)}", retriable=retriable)
    return _token_of(body, at)


def _oauth_error(body: bytes, secret: str) -> str:
    """`error` and `error_description` of an answer (RFC 6749, section 5.2), without the secret."""
    found = _object(body)
    parts = [value for name in ("error", "error_description") if isinstance(value := found.get(name), str)]
    text = ": ".join(part.replace(secret, "***") if secret else part for part in parts)
    return f": {text[:_SHOWN_CHARACTERS]!a}" if text else ""


def _token_of(body: bytes, at: str) -> Token:
    """The token of an answer, with its lifetime by the answer or by its JSON Web Token (RFC 7519, section 4.1.4)."""
    found = _object(body) if len(body) <= _MOST_BYTES else {}
    text = found.get("access_token")
    # Anything else would be inserted into the login, between control characters.
    if not isinstance(text, str) or not _TOKEN.fullmatch(text):
        raise TokenError(f"{at} returns no access_token", retriable=True)
    seconds = _number(found, "expires_in")
    if seconds is None or not seconds > 0:
        until_s = None
        with contextlib.suppress(IndexError, ValueError):
            until_s = _number(_object(base64.urlsafe_b64decode(text.split(".")[1] + "===")), "exp")
        seconds = _UNKNOWN_S if until_s is None else until_s - time.time()
    return Token(text, max(0.0, min(seconds, _MOST_S)))


def _object(body: bytes) -> Mapping[str, Any]:
    """An object of JSON; an empty one for anything else."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _number(found: Mapping[str, Any], name: str) -> float | None:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(max(-_LATEST_S, min(value, _LATEST_S)))


# --- Amazon MSK -------------------------------------------------------------------------------------------------------


def _signed(region: str) -> Token:
    """A token that is signed with the AWS credentials of this process; only these are requested."""
    signer = importlib.import_module(f"{_SIGNER}.MSKAuthTokenProvider")  # an extra
    try:
        text, until_ms = signer.generate_auth_token(region)
    except Exception as exc:  # the signer's and botocore's
        raise TokenError(f"no token for Amazon MSK in {region}: {exc}", retriable=True) from exc
    return Token(text, until_ms / 1000 - time.time())


def _region(given: str | None, bootstrap_servers: str) -> str:
    match = _MSK_HOST.search(bootstrap_servers)
    region = given or (match[1] if match else None)
    if region is None:
        raise ConfigurationError(
            "sasl.aws.region", "is missing; the addresses of bootstrap.servers do not name the region of the cluster"
        )
    return region
