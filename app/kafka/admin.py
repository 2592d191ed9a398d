"""An admin client that sends any request."""

from __future__ import annotations

import inspect
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient

from app.kafka.refusals import refusal
from app.kafka.watched_client import Send, share_start, watch_requests

__all__ = ["ADMIN_ARGUMENTS", "AdminClient"]

ADMIN_ARGUMENTS = frozenset(inspect.signature(AIOKafkaAdminClient).parameters)
"""The names of the arguments that an `AdminClient` takes."""


class AdminClient(AIOKafkaAdminClient):  # type: ignore[misc]  # aiokafka has no types
    """An `AIOKafkaAdminClient` that also sends requests for which aiokafka has no method.

    Attributes:
        refused: the last error of an answer that may mean a name over its limit; None for none.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.refused: int | None = None

        async def watched(_: str, _request: Any, send: Send) -> Any:
            response = await send()
            self.refused = refusal(response) or self.refused
            return response

        watch_requests(self._client, watched)
        share_start(self._client)

    async def send(self, request: Any, node: int | None = None) -> Any:
        """Sends a request, and returns the response.

        Args:
            request: of aiokafka, or a `Query`.
            node: the id of the broker; None for any.

        Raises:
            KafkaError: there was no response.
        """
        return await self._send_request(request, node)
