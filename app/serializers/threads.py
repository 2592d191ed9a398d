"""Serializers run from an event loop: store calls go to a thread, everything else runs at once.

Stages of the application run on the loop, one at a time, as aiokafka itself calls serializers. So they need not be safe
for threads, and a small record costs no thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from app.chunks.allowance import PARALLEL
from app.serializers.composable import ComposableDeserializer, ComposableSerializer
from app.serializers.large_message import LargeMessageDeserializer, LargeMessageSerializer
from app.serializers.stage import Context, Headers, Stage
from transforms.errors import SerializationError

__all__ = ["Threads"]

_CLOSED = "the client was closed before the store was called"

_Composable = ComposableSerializer | ComposableDeserializer


class Threads:
    """A few threads for store calls; the first call starts them.

    Attributes:
        closed: True once `close` has been called.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="wideload-store")
        self.closed = False

    async def run(self, composable: _Composable, topic: str, headers: Headers, data: Any) -> Any:
        """As `serialize` or `deserialize` of `composable`, without blocking the loop."""
        return await self._run(composable, data, composable.context(topic, headers))

    async def offload(self, large: LargeMessageSerializer, topic: str, headers: Headers, data: bytes) -> bytes:
        """As `LargeMessageSerializer.offload`, without blocking the loop."""
        closed = SerializationError(topic, "value", f"LargeMessageSerializer, {_CLOSED}")
        offloaded: bytes = await self._call(partial(large.offload, topic, headers, data), closed)
        return offloaded

    async def close(self) -> None:
        """Waits until no store call is under way; no call can begin afterwards.

        Calls that wait for a thread are not made: their callers get a `SerializationError`.
        """
        self.closed = True
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)

    async def _run(self, composable: _Composable, data: Any, context: Context) -> Any:
        for stage in composable.stages:
            if data is None:
                return None
            target = stage.target
            if isinstance(target, ComposableSerializer | ComposableDeserializer):
                data = composable.checked(stage, await self._run(target, data, context), context)
            elif _calls_store(target, data, context):
                data = await self._on_thread(composable, stage, data, context)
            else:
                data = composable.step(stage, data, context)
        return data

    async def _on_thread(self, composable: _Composable, stage: Stage, data: Any, context: Context) -> Any:
        deserializing = isinstance(composable, ComposableDeserializer)
        closed = SerializationError(
            context.topic, context.field, f"{stage.name}, {_CLOSED}", deserializing=deserializing
        )
        return await self._call(partial(composable.step, stage, data, context), closed)

    async def _call(self, call: Callable[[], Any], closed: SerializationError) -> Any:
        """Calls on a thread; raises `closed` if the client was closed before."""
        if not self.closed:
            running = asyncio.get_running_loop().run_in_executor(self._pool, call)
            try:
                return await running
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling() or not running.cancelled():
                    raise
        # Nobody has cancelled the caller: a CancelledError would tell a TaskGroup that all is well.
        raise closed


def _calls_store(target: object, data: object, context: Context) -> bool:
    if isinstance(target, LargeMessageSerializer):
        return target.wants(data, context.headers)
    return isinstance(target, LargeMessageDeserializer) and target.wants(context.headers or ())
