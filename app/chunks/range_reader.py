"""Re-reads ranges of a log, while a consumer of aiokafka continues after them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from app.kafka.consumer_controls import ConsumerControls
from app.kafka.shielded import retrieve_exception
from transforms.read_range import ReadRange

_POLL_MS = 1_000
# These are of a member of a group; the rest configures the connection, and how much to fetch.
_OF_MEMBERS = frozenset({"group_id", "group_instance_id", "enable_auto_commit", "auto_offset_reset"})


class RangeReader:
    """A consumer without a group, which starts when it is needed. Belongs to one event loop.

    Args:
        arguments: those of the `AIOKafkaConsumer` that continues.
    """

    def __init__(self, arguments: Mapping[str, object]) -> None:
        own = {name: value for name, value in arguments.items() if name not in _OF_MEMBERS}
        self._arguments: dict[str, Any] = {**own, "enable_auto_commit": False, "auto_offset_reset": "earliest"}
        self._consumer: AIOKafkaConsumer | None = None
        self._range: ReadRange | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self, range_: ReadRange) -> asyncio.Task[None]:
        """The task that reads a range to its end, in place of any other range.

        It continues if the call that started it is cancelled. If it has failed, the next call restarts it.
        """
        if self._task is None or range_ is not self._range or _failed(self._task):
            self._range, self._task = range_, asyncio.ensure_future(self._read(range_, self._task))
            self._task.add_done_callback(retrieve_exception)
        return self._task

    async def stop(self) -> None:
        """Ends what is under way, and the consumer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await ConsumerControls(consumer).stop()

    async def _read(self, range_: ReadRange, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            before.cancel()
            await asyncio.wait({before})
        consumer, partition = await self._started(), TopicPartition(*range_.partition)  # type: ignore[misc]
        range_.begin()
        consumer.assign([partition])
        try:
            while True:
                await _give(consumer, partition, range_)
                first = (await consumer.beginning_offsets([partition]))[partition] if range_.searches else 0
                if range_.finish(first):
                    return
        finally:
            consumer.unsubscribe()  # it fetches ahead otherwise

    async def _started(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            consumer = AIOKafkaConsumer(**self._arguments)
            try:
                await consumer.start()
            except BaseException:
                await ConsumerControls(consumer).stop()
                raise
            self._consumer = consumer
        return self._consumer


async def _give(consumer: AIOKafkaConsumer, partition: TopicPartition, range_: ReadRange) -> None:
    """Passes the records that are still in the log to a range."""
    # A log that was recreated may be shorter.
    end = min(range_.end, (await consumer.end_offsets([partition]))[partition])
    consumer.seek(partition, range_.start)
    while await consumer.position(partition) < end:
        for record in (await consumer.getmany(partition, timeout_ms=_POLL_MS)).get(partition, ()):
            if record.offset < end:
                range_.take(record)


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
