"""An error of the REST API, as Kafka Connect words it: `{"error_code": 404, "message": "…"}`."""

from __future__ import annotations

from collections.abc import Mapping

from app.config.secret import without_secrets
from transforms.errors import WideloadError


class RestError(WideloadError):
    """A request that is refused.

    Attributes:
        status: of the response.
        message: for the user, without secrets.
        headers: of the response.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, message, headers)
        self.status = status
        self.message = without_secrets(message)
        self.headers = dict(headers or {})

    def __str__(self) -> str:
        return self.message
