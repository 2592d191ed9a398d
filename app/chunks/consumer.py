"""aiokafka's consumer with chunks: it delivers whole messages, and commits no chunk of an incomplete one."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import ConsumerStoppedError
from aiokafka.structs import OffsetAndMetadata
from aiokafka.util import commit_structure_validate

from app.chunks.keys import CONSUMER_KEYS, apart, limits
from app.chunks.pending import AssembledRecord, Pending, ReadingClock
from app.chunks.rereader import Again, Rereader
from app.kafka.arguments import Arguments
from app.kafka.average import Average
from app.kafka.delivering import DeliveringConsumer, count_as_poll
from transforms.assembly import ChunkMessageId, Counts, Discarded

__all__ = ["AssemblingConsumer"]

_logger = logging.getLogger(__name__)

_ARGUMENTS = Arguments.of(AIOKafkaConsumer)
_LONG_S = 60.0
_LOOK_S = 1.0  # how often, at most, a call that waits looks for messages that have expired


def _warn(discarded: Discarded) -> None:
    first: Any = discarded.records[0]
    _logger.warning(
        "topic %s partition %d: a message of chunks was discarded: %s (%s); %d chunks from offset %d on",
        first.topic,
        first.partition,
        discarded.reason,
        discarded.detail,
        len(discarded.records),
        first.offset,
    )


class AssemblingConsumer(DeliveringConsumer):
    """An `AIOKafkaConsumer` that delivers whole messages, as `AssembledRecord`, between the ordinary records.

    A message is delivered with the offset of its last chunk. No commit, automatic or not, passes the first chunk of an
    incomplete message. The commit's metadata notes the offset up to which records have been delivered all the same, so
    that a restart does not deliver them again.

    `on_discarded` gets each discarded message, before any record behind it is delivered. If it raises, `getone` or
    `getmany` raises this error, the next call tries again, and no commit passes the message. By default a warning is
    logged. `transforms.assembly` explains the reasons.

    The age of a message grows only while a call waits for its partition, and that is not paused. So a message does not
    expire while its chunks are in the log and nobody reads them.

    No limit drops a message. What does not fit into `max.pending.chunked.message` and `max.pending.chunked.bytes` is
    kept as offsets, and its chunks are read again when the last one has come, by a consumer of its own without a group.
    With `auto.ack.oldest.chunked.message.on.queue.full` the oldest message is dropped instead.

    A message has the place of its last chunk, for `position` and `seek` too. Reading that begins in the middle of a
    message looks for its first chunk up to `chunk.lookback` offsets before that. So an application that keeps offsets
    elsewhere loses nothing if it goes on at `position`, or behind the offset of the last record that it has done.

    A rebalance or `seek` forgets incomplete messages: their chunks are read again.

    Args:
        config: keys with Kafka's names: the arguments of `AIOKafkaConsumer` with dots, and `CONSUMER_KEYS`.
        topics: the topics to subscribe to.
        on_discarded: called with each discarded message; may be a coroutine function.
        options: arguments in place of keys, for values that are not strings: `value_deserializer`, `ssl_context`.

    Raises:
        ConfigurationError: a key is unknown, or its value is wrong.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        *topics: str,
        on_discarded: Callable[[Discarded], Awaitable[None] | None] = _warn,
        **options: object,
    ) -> None:
        values, client = apart(CONSUMER_KEYS, _ARGUMENTS, _ARGUMENTS.merged(config, options))
        arguments = _ARGUMENTS.read(client)
        self._own_key_deserializer = arguments.pop("key_deserializer", None)
        self._own_value_deserializer = arguments.pop("value_deserializer", None)
        evicts = values["auto.ack.oldest.chunked.message.on.queue.full"] is True
        self._pending = Pending(limits(values), evicts=evicts)
        self._lookback = cast("int", values["chunk.lookback"])
        self._rereader = Rereader(arguments, limits(values), self._lookback)
        self._on_discarded = on_discarded
        self._settling = asyncio.Lock()
        self._reading = ReadingClock(time.monotonic)
        self._rates = defaultdict[str, Average](Average)
        self._most: int | None = arguments.get("max_poll_records")
        super().__init__(self._pending, topics, **arguments)

    @property
    def counts(self) -> Counts:
        """How many chunks have been delivered, ignored and discarded so far."""
        return self._pending.assembler.counts

    def stats(self) -> dict[str, object]:
        """`chunkedMessageRate` by topic (messages a second over the last minute), and the incomplete messages."""
        assembler = self._pending.assembler
        return {
            "chunkedMessageRate": {topic: rate.per_second() for topic, rate in self._rates.items()},
            "pendingChunkedMessages": assembler.pending,
            "pendingChunkedBytes": assembler.pending_bytes,
            "setAside": assembler.counts.set_aside,
            "expired": assembler.counts.discarded.get("expired", 0),
        }

    async def stop(self) -> None:
        """As `AIOKafkaConsumer.stop`."""
        try:
            await super().stop()
        finally:
            await self._rereader.stop()

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord:
        """As `AIOKafkaConsumer.getone`: the next ordinary record, or the next message that is whole."""
        while True:
            delivered = await self._delivered(partitions, 1)
            for records in delivered.values():
                return records[0]
            await self._read(partitions, _LONG_S, 1)

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """As `AIOKafkaConsumer.getmany`; goes on waiting, up to the time-out, if it reads only chunks."""
        deadline = time.monotonic() + timeout_ms / 1000
        most = max_records or self._most
        last = False
        while True:
            delivered = await self._delivered(partitions, most)
            if delivered or last:
                return delivered
            left_s = max(0.0, deadline - time.monotonic())
            last = not left_s
            await self._read(partitions, left_s, most)

    async def position(self, partition: TopicPartition) -> int:
        """As `AIOKafkaConsumer.position`: the offset from which the next record, or message, is delivered.

        If an incomplete message begins more than `chunk.lookback` before that, it is the offset of its first chunk: a
        `seek` to it may give records again, and loses none.
        """
        position = self._pending.position(partition, await super().position(partition))
        begins = self._pending.assembler.safe_offset(partition, position)
        return position if position - begins <= self._lookback else begins

    def seek(self, partition: TopicPartition, offset: int | ChunkMessageId) -> None:
        """As `AIOKafkaConsumer.seek`; the id of a message stands for its first chunk.

        A message whose last chunk is at the offset, or behind it, comes whole, wherever its first chunk is.
        """
        super().seek(partition, offset.first if isinstance(offset, ChunkMessageId) else offset)

    def safe_offsets(
        self, offsets: Mapping[TopicPartition, int | tuple[int, str]] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets that `commit` commits; also for `send_offsets_to_transaction`.

        Args:
            offsets: the next offset of each partition, as for `commit`; by default those behind all delivered records.
        """
        if offsets is not None:
            return self._pending.safe(commit_structure_validate(dict(offsets)))
        return self.delivered_offsets()

    async def commit(self, offsets: Mapping[TopicPartition, int | tuple[int, str]] | None = None) -> None:
        """As `AIOKafkaConsumer.commit`, with `safe_offsets`.

        Metadata of the application's own replaces the note; then a restart may deliver some messages again.
        """
        await super().commit(None if offsets is None else self.safe_offsets(offsets))

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _read(self, partitions: tuple[TopicPartition, ...], timeout_s: float, most: int | None) -> None:
        """Reads once: new records, or again the chunks of the message that is to be delivered next."""
        for partition in self._deliverable(partitions):
            if isinstance(again := self._pending.ready[partition][0], Again):
                await self._reread(again, timeout_s)
                return
        assembler, clock = self._pending.assembler, self._reading
        expire_s = assembler.limits.expire_ms / 1000
        waiting = bool(expire_s and (assembler.pending or assembler.repeating))
        since_s = time.monotonic()
        wait_s = min(timeout_s, _LOOK_S, expire_s / 4) if waiting else timeout_s
        found = await super().getmany(*partitions, timeout_ms=int(wait_s * 1000), max_records=most)
        # From here on no other task can run, so the records are sorted in the order in which they were read.
        read = (set(partitions) or self.assignment()) - self.paused() if waiting else ()
        clock.count(read, since_s)
        for partition, records in found.items():
            self._pending.take(partition, records, clock.now_ms(partition))
        for partition in read:
            self._pending.expire(partition, clock.now_ms(partition))

    async def _reread(self, again: Again, timeout_s: float = math.inf) -> None:
        """Waits for a message that is read again; it is read on if the time is over, or the call is cancelled."""
        deadline = time.monotonic() + timeout_s
        task = self._rereader.begin(again)
        while not task.done():
            if self.closed:
                raise ConsumerStoppedError
            count_as_poll(self)
            await asyncio.wait({task}, timeout=min(_LOOK_S, max(0.0, deadline - time.monotonic())))
            if time.monotonic() >= deadline:
                break
        if task.done():
            if self.closed:
                raise ConsumerStoppedError
            if again.task is task:
                again.task = None  # if it has failed, the next call tries again
            self._pending.resolve(again, *task.result())

    def _deliverable(self, partitions: tuple[TopicPartition, ...]) -> list[TopicPartition]:
        """The partitions of a call that have something ready, and may deliver it now."""
        ready = [each for each in self._pending.ready if not partitions or each in partitions]
        return [each for each in ready if self.may_deliver(each)]

    async def _delivered(
        self, partitions: tuple[TopicPartition, ...], most: int | None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Up to `most` records that are ready, once `on_discarded` has taken the discarded messages."""
        if self.closed:
            raise ConsumerStoppedError
        await self._settle()
        delivered: dict[TopicPartition, list[ConsumerRecord]] = {}
        number = 0
        for partition in self._deliverable(partitions):
            waiting = self._pending.ready[partition]
            while waiting and (most is None or number < most):
                if isinstance(first := waiting[0], Again):
                    break  # `_read` sees to it if there is nothing else to deliver
                try:
                    record = self._deserialized(first)
                except Exception:
                    if delivered:
                        return delivered
                    raise
                if isinstance(waiting.popleft(), AssembledRecord):
                    self._rates[partition.topic].add()
                delivered.setdefault(partition, []).append(record)
                number += 1
            if not waiting:
                del self._pending.ready[partition]
        return delivered

    async def _settle(self) -> None:
        if not self._pending.discarded:
            return
        async with self._settling:
            while self._pending.discarded:
                discarded = self._pending.discarded[0]
                if isinstance(discarded, Again):
                    await self._reread(discarded)
                    continue
                done = self._on_discarded(discarded)
                if inspect.isawaitable(done):
                    await done
                # A rebalance meanwhile may have dropped it.
                if self._pending.discarded and self._pending.discarded[0] is discarded:
                    self._pending.discarded.popleft()

    def _deserialized(self, record: ConsumerRecord) -> ConsumerRecord:
        key, value = self._own_key_deserializer, self._own_value_deserializer
        if key is None and value is None:
            return record
        return replace(
            record,
            key=record.key if key is None else key(record.key),
            value=record.value if value is None else value(record.value),
        )
