"""Requests to a worker's REST API, as `curl` makes them."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back.

    Attributes:
        document: of the body; None if there is none.
    """

    status: int
    headers: Mapping[str, str]
    document: Any

    @property
    def refusal(self) -> tuple[int, str]:
        """Status and message of an error, whose body has nothing else."""
        assert set(self.document) == {"error_code", "message"}
        assert self.document["error_code"] == self.status
        return self.status, self.document["message"]


def ask(port: int, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
    """One request; `body` is written as JSON unless it is bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        text = response.read()
        return Answer(response.status, dict(response.headers), json.loads(text) if text else None)
    finally:
        connection.close()


def shown(port: int, path: str, accept: str = "text/html") -> tuple[Mapping[str, str], str]:
    """Headers and text of a page that is there, as a client gets them that accepts these media types."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)
    try:
        connection.request("GET", path, headers={"Accept": accept})
        response = connection.getresponse()
        text = response.read().decode()
        assert response.status == 200, text
        return dict(response.headers), text
    finally:
        connection.close()
