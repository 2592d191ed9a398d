"""An admin client that sends any request."""

from __future__ import annotations

import inspect
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient

from app.kafka.metadata_requests import create_no_topics
from app.kafka.refusals import Refusals
from app.kafka.watched_client import share_start

__all__ = ["ADMIN_ARGUMENTS", "AdminClient"]

ADMIN_ARGUMENTS = frozenset(inspect.signature(AIOKafkaAdminClient).parameters)
"""The names of the arguments that an `AdminClient` takes."""


class AdminClient(AIOKafkaAdminClient):  # type: ignore[misc]  # aiokafka has no types
    """An `AIOKafkaAdminClient` that also sends requests for which aiokafka has no method.

    Attributes:
        refusals: answers that may mean a name over its limit.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.refusals = Refusals(self)
        share_start(create_no_topics(self)._client)

    @property
    def client(self) -> AIOKafkaClient:
        """The client that sends the requests."""
        return self._client

    async def send(self, request: Any, node: int | None = None) -> Any:
        """Sends a request, and returns the response.

        Args:
            request: of aiokafka, or a `Query`.
            node: the id of the broker; None for any.

        Raises:
            KafkaError: there was no response.
        """
        return await self._send_request(request, node)
