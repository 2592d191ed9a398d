"""The id of the cluster, looked up beside the work and kept."""

from __future__ import annotations

import asyncio
import contextlib
import time

from aiokafka.errors import KafkaError

from app.config.settings import ClientSettings
from app.kafka.clients import admin
from transforms.errors import WideloadError

__all__ = ["ClusterId"]

_WAIT_S = 2.0
_AGAIN_S = 30.0


class ClusterId:
    """Asks a broker once; where none answers, again at most each half minute. Belongs to one event loop."""

    def __init__(self, client: ClientSettings) -> None:
        self._client = client
        self._found: str | None = None
        self._asking: asyncio.Task[None] | None = None
        self._asked_s: float | None = None

    async def get(self) -> str | None:
        """The id; None if no broker says it within two seconds."""
        due = self._asked_s is None or time.monotonic() - self._asked_s > _AGAIN_S
        if self._found is None and due and (self._asking is None or self._asking.done()):
            self._asked_s = time.monotonic()
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        if self._found is None and self._asking is not None:
            await asyncio.wait([self._asking], timeout=_WAIT_S)
        return self._found

    async def stop(self) -> None:
        """Ends a look-up that is under way."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        with contextlib.suppress(KafkaError, WideloadError, OSError, TimeoutError):
            async with admin(self._client) as connection:
                self._found = (await connection.describe_cluster()).get("cluster_id")
