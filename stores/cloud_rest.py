"""Requests to a cloud's REST API for what obstore does not support: conditional deletes, and a bucket's rules."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import requests
import requests.adapters
import urllib3.exceptions

from stores.http_time import POOLS, within
from transforms.masking import HIDDEN

_ANSWER_BYTES = 4 * 1_048_576
_PIECE_BYTES = 65_536
_SIGNATURE = re.compile(r"(?<=[?&]sig=)[^&\s]+")


class RestError(OSError):
    """The request was answered with an error, or not at all; without the URL, which may have a signature.

    Attributes:
        status: the HTTP status; 0 if there was no answer.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Rest:
    """Sends requests; may be used by several threads.

    Attributes:
        session: with its connections.
        connect_seconds: the longest wait for a connection.
        read_seconds: the longest wait for the next bytes of an answer.
    """

    session: requests.Session
    connect_seconds: float
    read_seconds: float

    @classmethod
    def opened(cls, connect_ms: int, read_ms: int, connections: int) -> Rest:
        """Makes the session."""
        # It logs each request with its query, at DEBUG; a shared access signature is there.
        logger = logging.getLogger("urllib3.connectionpool")
        if _hide_signature not in logger.filters:
            logger.addFilter(_hide_signature)
        return cls(timed_session(connections), connect_ms / 1000, read_ms / 1000)

    def send(
        self,
        method: str,
        url: str,
        seconds: float,
        *,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> bytes:
        """The body of the answer.

        Args:
            method: HTTP's.
            url: with what stands in it.
            seconds: the longest time.
            headers: with the credentials.
            params: of the query.
            body: sent as JSON.

        Raises:
            RestError: there was no response, or it is an error.
            LateError: it did not arrive in time.
        """
        request = requests.Request(
            method,
            url,
            params=params,
            data=None if body is None else json.dumps(body),
            headers={
                "Accept-Encoding": "identity",
                **({} if body is None else {"Content-Type": "application/json"}),
                **(headers or {}),
            },
            auth=_unchanged,
        )
        try:
            prepared = self.session.prepare_request(request)
            around: Any = self.session.merge_environment_settings(str(prepared.url), {}, True, None, None)  # proxies
            wait = min(self.connect_seconds, seconds), min(self.read_seconds, seconds)
            with within(seconds):
                answer = self.session.send(prepared, timeout=wait, allow_redirects=False, **around)
                with contextlib.closing(answer):
                    received = _received(answer)
        except (requests.RequestException, urllib3.exceptions.HTTPError) as exc:
            # Its text and its causes have the URL.
            raise RestError(f"error sending request ({type(exc).__name__})") from None
        if answer.status_code not in range(200, 300):
            said = received.decode(errors="replace")
            words = HTTPStatus(answer.status_code).phrase if answer.status_code in set(HTTPStatus) else ""
            raise RestError(f"non-2xx status code: {answer.status_code} {words}: {said}", answer.status_code)
        return received


class _TimedAdapter(requests.adapters.HTTPAdapter):
    """Its connections keep the time of `stores.http_time.within`."""

    def init_poolmanager(self, *arguments: Any, **more: Any) -> None:
        super().init_poolmanager(*arguments, **more)
        self.poolmanager.pool_classes_by_scheme = POOLS

    def proxy_manager_for(self, *arguments: Any, **more: Any) -> Any:
        manager = super().proxy_manager_for(*arguments, **more)
        manager.pool_classes_by_scheme = POOLS
        return manager


def timed_session(connections: int) -> requests.Session:
    """A session whose requests end at the deadline of `stores.http_time.within`, however slow a response is.

    Args:
        connections: how many are kept open.
    """
    session = requests.Session()
    for scheme in ("https://", "http://"):
        session.mount(scheme, _TimedAdapter(pool_maxsize=connections))
    return session


def _hide_signature(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(_SIGNATURE.sub(HIDDEN, each) if isinstance(each, str) else each for each in record.args)
    return True


def _unchanged(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Instead of credentials: without it, requests would use those of `~/.netrc`."""
    return request


def _received(answer: requests.Response) -> bytes:
    read: Callable[[int], bytes] = answer.raw.read1
    pieces: list[bytes] = []
    size = 0
    while piece := read(_PIECE_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > _ANSWER_BYTES:
            raise RestError(f"the response exceeds {_ANSWER_BYTES:,} bytes, so it is not an answer of this service")
    return b"".join(pieces)
