"""Who may change something through the web server."""

from __future__ import annotations

import base64
import hmac
import re

from aiohttp.web import Request

from app.web.errors import RestError

_ENABLE, _TOKEN = "web.control.enable", "web.control.token"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,14}")  # shorter than any token


class Access:
    """Lets pass requests with the token: as `Bearer`, or as the password of HTTP Basic with any user name.

    Most clients of Connect's REST API only support user and password. No answer requests Basic: a browser
    would show a dialog, and send the token again with whatever another page makes it request.

    Args:
        enabled: `web.control.enable`.
        token: `web.control.token`.
    """

    def __init__(self, token: str | None, *, enabled: bool) -> None:
        self._token = token.encode() if enabled and token is not None else None

    def check(self, request: Request) -> None:
        """Refuses a request that is not allowed to make changes.

        Raises:
            RestError: 403 if changes are disabled, or for a cross-origin request; 401 without the token.
        """
        origin = request.headers.get("Origin")
        # Another scheme is the same origin here: a proxy may have taken off TLS.
        host = request.headers.get("Host")
        if origin is not None and (not host or origin.partition("://")[2].lower() != host.lower()):
            raise RestError(403, "cross-origin requests cannot make changes")
        if self._token is None:
            raise RestError(403, f"changes are disabled; set {_ENABLE} = true and {_TOKEN} in the worker's file")
        if (wrong := _wrong(request.headers.get("Authorization", ""), self._token)) is not None:
            raise RestError(
                401,
                f"{wrong}; send {_TOKEN} of the worker's file as Authorization: Bearer, or as the password of "
                "Authorization: Basic with any user name",
                {"WWW-Authenticate": 'Bearer realm="wideload"'},
            )


def _wrong(authorization: str, token: bytes) -> str | None:
    """What is wrong with the header of a request; None if it has the token. The sentence contains no secret."""
    scheme, _, credentials = authorization.partition(" ")
    credentials = credentials.strip()
    match scheme.lower():
        case "":
            return "the header Authorization is missing"
        case "bearer":
            given, what = credentials.encode(errors="surrogateescape"), "the token of Authorization: Bearer"
        case "basic":
            try:
                given = base64.b64decode(credentials, validate=True).partition(b":")[2]  # RFC 7617
            except ValueError:
                return "the value of Authorization: Basic is not the Base64 of USER:PASSWORD"
            what = "the password of Authorization: Basic"
        case _ if credentials and _SCHEME.fullmatch(scheme):
            return f"the scheme of the header Authorization is {scheme}"
        case _:  # it may be the token itself
            return "the header Authorization has no scheme before its value"
    if not given:
        return f"{what} is missing"
    return None if hmac.compare_digest(given, token) else f"{what} is not the token of this worker"
