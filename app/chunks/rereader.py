"""Reads chunks of a partition once more, beside a consumer that goes on behind them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import ConsumerStoppedError

from app.kafka.consumer_controls import ConsumerControls
from transforms.assembly import Assembled, Discarded, Limits, Reread
from transforms.logger_name import logger_name
from transforms.rereading import Beginnings, Rereading

__all__ = ["Again", "ReadAgain", "Rereader"]

_logger = logging.getLogger(logger_name(__name__))

_POLL_MS = 1_000
# These are of a member of a group; the rest says how to reach the cluster, and how much to fetch.
_OF_MEMBERS = frozenset({"group_id", "group_instance_id", "enable_auto_commit", "auto_offset_reset"})


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """What reading again gave.

    Attributes:
        outcome: see `Rereading.outcome`.
        beginning: see `Rereading.beginning`.
        timestamp_type: of the last chunk.
    """

    outcome: Assembled | Discarded | None
    beginning: int | None
    timestamp_type: int


@dataclass(slots=True, eq=False)
class Again:
    """A message that has ended, and whose chunks have to be read again.

    Attributes:
        partition: where it is.
        reread: what the assembler knows of it.
        task: reads its chunks; None before that has begun, and after it has failed.
    """

    partition: TopicPartition
    reread: Reread
    task: asyncio.Task[ReadAgain] | None = None

    @property
    def offset(self) -> int:
        """Of its last chunk."""
        return self.reread.last


class Rereader:
    """A consumer without a group, which starts when it is needed. Belongs to one event loop.

    Args:
        arguments: those of the `AIOKafkaConsumer` that goes on.
        limits: those of its assembler.
        lookback: how many offsets before the one where reading began the first chunk of a message may be.
    """

    def __init__(self, arguments: Mapping[str, object], limits: Limits, lookback: int) -> None:
        own = {name: value for name, value in arguments.items() if name not in _OF_MEMBERS}
        self._arguments: dict[str, Any] = {**own, "enable_auto_commit": False, "auto_offset_reset": "earliest"}
        self._limits = limits
        self._lookback = lookback
        self._consumer: AIOKafkaConsumer | None = None
        self._reading = asyncio.Lock()
        self._beginnings: dict[TopicPartition, Beginnings] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False

    def begin(self, again: Again) -> asyncio.Task[ReadAgain]:
        """The task that reads a message; it goes on when the call that began it is cancelled."""
        if again.task is None:
            again.task = asyncio.ensure_future(self.read(again))
            again.task.add_done_callback(_retrieve)
        return again.task

    async def stop(self) -> None:
        """Ends what is under way, and the consumer."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await ConsumerControls(consumer).stop()

    async def read(self, again: Again) -> ReadAgain:
        """Reads a message, one at a time.

        Raises:
            ConsumerStoppedError: `stop` was called.
        """
        partition, reread = again.partition, again.reread
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            async with self._reading:
                consumer = await self._started()
                consumer.assign([partition])
                try:
                    rereading = Rereading(self._limits, reread)
                    timestamp_type = 0
                    start = await self._start(consumer, partition, reread)
                    async for record in _records(consumer, partition, start, reread.last + 1):
                        rereading.take(record)
                        timestamp_type = record.timestamp_type
                    return ReadAgain(rereading.outcome(), rereading.beginning, timestamp_type)
                finally:
                    consumer.unsubscribe()  # it fetches ahead otherwise
        finally:
            self._tasks.discard(task)

    async def _started(self) -> AIOKafkaConsumer:
        if self._stopped:
            raise ConsumerStoppedError
        if self._consumer is None:
            consumer = AIOKafkaConsumer(**self._arguments)
            try:
                await consumer.start()
            except BaseException:
                await ConsumerControls(consumer).stop()
                raise
            self._consumer = consumer
        return self._consumer

    async def _start(self, consumer: AIOKafkaConsumer, partition: TopicPartition, reread: Reread) -> int:
        """The offset of the first chunk; that of the first one that was read if it is not found."""
        if reread.below is None or reread.reason is not None:
            return reread.first
        known = self._beginnings.get(partition)
        if known is None or known.below != reread.below:
            lowest = (await consumer.beginning_offsets([partition]))[partition]
            known = Beginnings(reread.below, max(lowest, reread.below - self._lookback))
            self._beginnings[partition] = known
        while (range_ := known.missing(reread.uuid)) is not None:
            _logger.info(
                "topic %s partition %d: the message whose last chunk is at offset %d began before offset %d, where "
                "reading began; its first chunk is looked for from offset %d on",
                *(partition.topic, partition.partition, reread.last, reread.below, range_[0]),
            )
            async for record in _records(consumer, partition, *range_):
                known.take(record)
            known.searched(range_[0])
        begins = known.of(reread.uuid)
        return reread.first if begins is None else begins


async def _records(
    consumer: AIOKafkaConsumer, partition: TopicPartition, start: int, end: int
) -> AsyncIterator[ConsumerRecord]:
    """The records of a range that are still in the log."""
    # A log that was made anew may be shorter.
    end = min(end, (await consumer.end_offsets([partition]))[partition])
    consumer.seek(partition, start)
    while await consumer.position(partition) < end:
        for record in (await consumer.getmany(partition, timeout_ms=_POLL_MS)).get(partition, ()):
            if record.offset >= end:
                return
            yield record


def _retrieve(task: asyncio.Task[ReadAgain]) -> None:
    if not task.cancelled():
        task.exception()  # or asyncio would log the error of a message that no call asks for any more
