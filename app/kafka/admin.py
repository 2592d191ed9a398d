"""An admin client that sends any request."""

from __future__ import annotations

from typing import Any

from aiokafka.admin import AIOKafkaAdminClient

__all__ = ["AdminClient"]


class AdminClient(AIOKafkaAdminClient):  # type: ignore[misc]  # aiokafka has no types
    """An `AIOKafkaAdminClient` that also sends requests for which aiokafka has no method."""

    async def send(self, request: Any, node: int | None = None) -> Any:
        """Sends a request, and returns the response.

        Args:
            request: of aiokafka, or a `Query`.
            node: the id of the broker; None for any.

        Raises:
            KafkaError: there was no response.
        """
        return await self._send_request(request, node)
