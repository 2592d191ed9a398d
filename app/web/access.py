"""Who may change something through the web server."""

from __future__ import annotations

import hmac

from aiohttp.web import Request

from app.web.errors import RestError

__all__ = ["Access"]

_ENABLE, _TOKEN = "web.control.enable", "web.control.token"
_SCHEME = "bearer"


class Access:
    """Lets pass who has the token.

    Args:
        enabled: `web.control.enable`.
        token: `web.control.token`.
    """

    def __init__(self, token: str | None, *, enabled: bool) -> None:
        self._token = token if enabled else None

    def check(self, request: Request) -> None:
        """Refuses a request that may change nothing.

        Raises:
            RestError: 403 if nobody may, or if a page of another origin asks; 401 without the token.
        """
        origin = request.headers.get("Origin")
        # Another scheme is the same origin here: a proxy may have taken off TLS.
        host = request.headers.get("Host")
        if origin is not None and (not host or origin.partition("://")[2].lower() != host.lower()):
            raise RestError(403, "a page of another origin may change nothing here")
        if self._token is None:
            raise RestError(403, f"this worker takes no changes; set {_ENABLE} = true and {_TOKEN} in its file")
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        known = hmac.compare_digest(given.strip().encode(errors="surrogateescape"), self._token.encode())
        if scheme.lower() != _SCHEME or not known:
            what = "is not the token of this worker" if given else "is missing"
            raise RestError(
                401,
                f"Authorization: Bearer {what}; {_TOKEN} in the file of the worker has it",
                {"WWW-Authenticate": 'Bearer realm="wideload"'},
            )
