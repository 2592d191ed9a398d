"""Serializers run from an event loop: what calls a store goes to a thread, all else runs at once.

Stages of the application run on the loop, one at a time, as aiokafka itself calls serializers: they need not be safe
for threads, and a small record costs no thread.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from app.serializers.composable import ComposableDeserializer, ComposableSerializer
from app.serializers.large_message import LargeMessageDeserializer, LargeMessageSerializer
from app.serializers.stage import Context, Headers, Stage
from transforms.errors import SerializationError

__all__ = ["PARALLEL", "Threads"]

# How many store calls one client makes at once; as many as a pipeline's `store.threads`, below `s3.max.connections`.
PARALLEL = 8


class Threads:
    """A few threads for store calls; none is there before the first one."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="wideload-store")
        self._closed = False

    async def serialize(
        self, composable: ComposableSerializer | None, topic: str, headers: Headers, data: Any, *, is_key: bool
    ) -> bytes | None:
        """As `ComposableSerializer.serialize`, without blocking the loop on a store.

        Args:
            composable: None where the data is bytes already.
            topic: the topic of the record.
            headers: those of the record.
            data: the key or the value of the application.
            is_key: which of the two.
        """
        return cast("bytes | None", await self._run(composable, data, _context(topic, headers, is_key=is_key)))

    async def deserialize(
        self,
        composable: ComposableDeserializer | None,
        topic: str,
        headers: Headers,
        data: bytes | None,
        *,
        is_key: bool,
    ) -> Any:
        """As `ComposableDeserializer.deserialize`, likewise."""
        return await self._run(composable, data, _context(topic, headers, is_key=is_key))

    async def close(self) -> None:
        """Waits until no store call is under way any more; there can be no other afterwards.

        Those that wait for a thread are not made, and their callers get a `SerializationError`.
        """
        self._closed = True
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)

    async def _run(
        self, composable: ComposableSerializer | ComposableDeserializer | None, data: Any, context: Context
    ) -> Any:
        for stage in () if composable is None else composable.stages:
            assert composable is not None
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

    async def _on_thread(
        self, composable: ComposableSerializer | ComposableDeserializer, stage: Stage, data: Any, context: Context
    ) -> Any:
        if not self._closed:
            call = asyncio.get_running_loop().run_in_executor(self._pool, composable.step, stage, data, context)
            try:
                return await call
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling() or not call.cancelled():
                    raise
        # Nobody cancelled the caller: a CancelledError would tell a TaskGroup that all is well.
        reason = f"{stage.name}, the client was closed before the store was called"
        deserializing = isinstance(composable, ComposableDeserializer)
        raise SerializationError(context.topic, context.field, reason, deserializing=deserializing)


def _context(topic: str, headers: Headers, *, is_key: bool) -> Context:
    return Context(topic, "key" if is_key else "value", headers)


def _calls_store(target: object, data: object, context: Context) -> bool:
    if isinstance(target, LargeMessageSerializer):
        return target.wants(data, context.headers)
    return isinstance(target, LargeMessageDeserializer) and target.wants(context.headers or ())
