"""The sink: batches of records on their way to one topic, and what becomes durable with each.

Batches are made here and handed to aiokafka whole (`send_batch`): one future a batch instead of one a record. A sink
partition has one batch queued in the client at a time; meanwhile the next one fills. So batches grow under load, and
none waits when there is none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from aiokafka.errors import KafkaError

from app.budget import Share
from app.tracker import OffsetTracker, Span
from transforms.record import RecordLike

if TYPE_CHECKING:
    from aiokafka import AIOKafkaProducer
    from aiokafka.producer.message_accumulator import BatchBuilder
    from aiokafka.structs import RecordMetadata

__all__ = ["Sink"]

_LARGE_BATCH_BYTES = 1_048_576
_TURN_S = 5.0


@dataclass(slots=True, eq=False)
class _Batch:
    builder: BatchBuilder
    spans: dict[OffsetTracker, Span] = field(default_factory=dict)
    held: int = 0
    size: int = 0
    turn: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class _Outbox:
    partition: int
    filling: _Batch
    full: deque[_Batch] = field(default_factory=deque)
    sender: asyncio.Task[None] | None = None
    begun: bool = False


class Sink:
    """Writes records to one topic, in the order of `append`, partition by partition.

    Args:
        producer: started, idempotent: a batch that fails lets none behind it pass.
        topic: the topic.
        share: the budget's bytes are given back when a batch is durable.
        failed: called with what a batch, and so the sink, failed with.
        acknowledged: called with the records and bytes of each batch that became durable.
        large: held by a batch over 1 MiB while the client has it. aiokafka copies a batch several times on its way, and
            sends one of each partition in a request; one after the other they take a fraction of that memory, and no
            more time (`make bench`, memory).
    """

    def __init__(
        self,
        producer: AIOKafkaProducer,
        topic: str,
        share: Share,
        *,
        failed: Callable[[BaseException], None],
        acknowledged: Callable[[int, int], None],
        large: asyncio.Semaphore,
    ) -> None:
        self.topic = topic
        self._producer = producer
        self._share = share
        self._failed = failed
        self._acknowledged = acknowledged
        self._large = large
        self._broken = False
        self._outboxes: dict[int, _Outbox] = {}
        self._unsent: set[_Outbox] = set()

    def append(self, partition: int, record: RecordLike, tracker: OffsetTracker, offset: int, held: int) -> None:
        """Puts one record behind the others of its sink partition; `flush` sends them on.

        Args:
            partition: the sink partition.
            record: what to write.
            tracker: of the source partition; its `safe` stays at or below `offset` until the record is durable.
            offset: the record's offset in its source partition.
            held: bytes of the budget that the record holds until then.
        """
        outbox = self._outboxes.get(partition)
        if outbox is None:
            outbox = self._outboxes[partition] = _Outbox(partition, _Batch(self._producer.create_batch()))
        batch = outbox.filling
        headers = list(record.headers) if record.headers else []
        timestamp, key, value = record.timestamp, record.key, record.value
        metadata = batch.builder.append(timestamp=timestamp, key=key, value=value, headers=headers)
        if metadata is None:
            outbox.full.append(batch)
            batch = outbox.filling = _Batch(self._producer.create_batch())
            metadata = batch.builder.append(timestamp=timestamp, key=key, value=value, headers=headers)
            assert metadata is not None, "a batch takes its first record whatever its size"
        if tracker not in batch.spans:
            batch.spans[tracker] = tracker.span(offset)
        tracker.released = offset + 1
        batch.held += held
        batch.size += metadata.size
        self._unsent.add(outbox)

    def flush(self) -> None:
        """Sends what has been appended, as soon as the client takes it; does not wait."""
        for outbox in self._unsent:
            if outbox.sender is None:
                outbox.sender = asyncio.get_running_loop().create_task(self._send(outbox))
        self._unsent.clear()

    def discard(self) -> None:
        """Stops sending; what was not sent is forgotten."""
        for outbox in self._outboxes.values():
            if outbox.sender is not None:
                outbox.sender.cancel()
        self._outboxes.clear()
        self._unsent.clear()

    async def _send(self, outbox: _Outbox) -> None:
        try:
            while not self._broken and (outbox.full or outbox.filling.spans):
                if outbox.full:
                    batch = outbox.full.popleft()
                else:
                    batch, outbox.filling = outbox.filling, _Batch(self._producer.create_batch())
                batch.builder.close()
                future = await self._hand_over(batch, outbox.partition)
                if not outbox.begun:
                    # A broker refuses what comes behind a gap, but not from a producer of which it has nothing yet.
                    await asyncio.wait([future])
                    outbox.begun = True
        except (KafkaError, AssertionError, OSError, TimeoutError) as exc:
            self._failed(exc)
        finally:
            outbox.sender = None

    async def _hand_over(self, batch: _Batch, partition: int) -> asyncio.Future[RecordMetadata]:
        if batch.size > _LARGE_BATCH_BYTES:
            await self._large.acquire()
            # A partition without a leader must not hold up the large batches of all others.
            batch.turn = asyncio.get_running_loop().call_later(_TURN_S, self._end_turn, batch)
        try:
            future: asyncio.Future[RecordMetadata] = await self._producer.send_batch(
                batch.builder, self.topic, partition=partition
            )
        except BaseException:
            self._end_turn(batch)
            raise
        future.add_done_callback(partial(self._done, batch))
        return future

    def _end_turn(self, batch: _Batch) -> None:
        if batch.turn is not None:
            batch.turn.cancel()  # it holds on to the batch, which is large
            batch.turn = None
            self._large.release()

    def _done(self, batch: _Batch, future: asyncio.Future[RecordMetadata]) -> None:
        self._end_turn(batch)
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._broken = True
            self._failed(error)
            return
        for span in batch.spans.values():
            span.durable = True
        self._share.give(batch.held)
        self._acknowledged(batch.builder.record_count(), batch.size)
