"""Serializers that are called from an event loop: store calls run on a thread, everything else on the loop.

The application's serializers run on the loop, one at a time, as aiokafka itself calls them. They need not be
thread-safe, and a small record needs no thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from app.chunks.allowance import PARALLEL
from app.serializers.composable import Composable
from app.serializers.large_message import LargeMessage, LargeMessageSerializer
from app.serializers.stage import Headers
from transforms.errors import SerializationError

_CLOSED = "the client was closed before the store was called"


class Threads:
    """A few threads for store calls; the first call starts them.

    Attributes:
        closed: True once `close` has been called.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="wideload-store")
        self.closed = False

    async def run(self, composable: Composable, topic: str, headers: Headers, data: Any) -> Any:
        """As `serialize` or `deserialize` of `composable`, without blocking the loop."""
        for stage in composable.stages:
            if data is None:
                break
            step = partial(composable.step, stage, topic, headers, data)
            waits = isinstance(stage.target, LargeMessage) and stage.target.wants(data, headers)
            data = await self._call(step, stage.error(topic, _CLOSED)) if waits else step()
        return data

    async def offload(self, large: LargeMessageSerializer, topic: str, headers: Headers, data: bytes) -> bytes:
        """As `LargeMessageSerializer.offload`, without blocking the loop."""
        closed = SerializationError(topic, "value", f"LargeMessageSerializer, {_CLOSED}")
        offloaded: bytes = await self._call(partial(large.offload, topic, headers, data), closed)
        return offloaded

    async def close(self) -> None:
        """Waits until no store call is under way; no call can begin afterwards.

        Calls that wait for a thread are not made: their callers receive a `SerializationError`.
        """
        self.closed = True
        await asyncio.to_thread(self._pool.shutdown)

    async def _call(self, call: Callable[[], Any], closed: SerializationError) -> Any:
        """Calls on a thread; raises `closed` if the client was closed before."""

        def called() -> Any:
            if self.closed:  # while it waited for a thread
                raise closed
            return call()

        if self.closed:
            raise closed
        return await asyncio.get_running_loop().run_in_executor(self._pool, called)
