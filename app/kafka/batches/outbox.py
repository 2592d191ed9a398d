"""KIP-126 on top of aiokafka's producer: batches are closed by their estimated compressed size, and split if refused.

aiokafka limits the uncompressed size of a batch. If the broker refuses a batch, all its records fail; an idempotent
producer has used up their sequence numbers, so the broker refuses each later batch too. Here aiokafka gets only one
batch of a partition at a time, and each has the sequence number that follows the last one in the log. If a batch is
refused, its halves are sent in its place. This costs no throughput: aiokafka sends one batch of a partition at a time
anyway, and gets the next one as soon as the last one is acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    IllegalOperation,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    TopicAuthorizationFailedError,
)
from aiokafka.structs import RecordMetadata

from app.kafka.batches.batch import LARGEST_SEQUENCE, UNLIMITED_BYTES, Batch, Load
from app.kafka.batches.bounds import Bounds
from app.kafka.batches.numbers import BatchNumbers
from app.kafka.producer import TOO_LARGE, ProducerControls
from app.kafka.shielded import set_within
from transforms.batch_size import BATCH_OVERHEAD_BYTES
from transforms.errors import RecordUnfitError, WideloadError
from transforms.logger_name import logger_name
from transforms.ratio import room_bytes
from transforms.record import RecordLike
from transforms.record_batch import CODECS, RecordBatch, Stamp, pack

log = logging.getLogger(logger_name(__name__))

L = TypeVar("L", bound=Load)

# An uncompressed value of at least this size gets a separate batch: aiokafka's builder would copy it more often, and
# its checksum is slow.
_ALONE_BYTES = 131_072
_LARGE_BATCH_BYTES = 2 * 1_048_576
# Compressing this much takes one or two milliseconds; a thread costs a tenth of one.
_BUILT_ON_THREAD_BYTES = 262_144

_UNFIT = (InvalidTimestampError,)  # one record of the batch may cause it
# After these errors the broker has appended nothing, and accepts the next batch. After others that is not known.
_REFUSALS = (*TOO_LARGE, *_UNFIT, TopicAuthorizationFailedError, InvalidTopicError)


class RecordRefusedError(WideloadError):
    """A record is larger than its topic accepts.

    Attributes:
        topic, partition: where it was to be written.
        size: bytes of the record as a batch of one, as it was sent.
    """

    def __init__(self, topic: str, partition: int, size: int) -> None:
        super().__init__(topic, partition, size)
        self.topic = topic
        self.partition = partition
        self.size = size

    def __str__(self) -> str:
        return (
            f"topic {self.topic} has refused a record that takes {self.size:,} bytes as a batch of one; raise "
            f"max.message.bytes of topic {self.topic}"
        )


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """How batches are built and sent.

    Attributes:
        batch_bytes: `batch.size`: a batch is closed when its estimated compressed size reaches this; a larger record is
            sent alone.
        uncompressed_bytes: the greatest size of a batch before compression, whatever the estimate: it is the memory
            that the batch needs here and in each reader.
        linger_s: `linger.ms`: how long a batch that is not full waits for more records.
        delivery_timeout_s: `delivery.timeout.ms`: the time from the first record of a batch until it is acknowledged.
            It restarts with the response for the previous batch, because a slow topic has not failed.
    """

    batch_bytes: int = 131_072
    uncompressed_bytes: int = 16 * 1_048_576
    linger_s: float = 0.0
    delivery_timeout_s: float = 120.0


class Batches:
    """Sends batches through one aiokafka producer, in order, partition by partition. Belongs to one event loop.

    Records go through an `outbox`, one for each partition; nothing else may send to that partition by this producer.
    If the broker refuses a batch of several records, because it is too large or one record does not fit the topic, its
    halves are sent in its place, in order, and are split again if necessary. Sequence numbers have neither gaps nor
    duplicates. A record that is refused alone fails with `RecordRefusedError` for its size, or with `RecordUnfitError`;
    if this was not the first try, all sending ends.

    Args:
        producer: not with `acks=0`. If it is neither idempotent nor transactional, a retry may write records twice.
        settings: how batches are built.
        numbers: counts batches and records.
        halts: whether a batch that fails ends all sending, so that no later batch overtakes it.
        failed: called once, with the error that ended all sending, and the topic.
        bounds: limits of the batches in flight; several producers may share them.
        too_large: called with a topic, and the size of a batch of several records that it has refused for its size.

    Attributes:
        failure: the error that ended all sending; None if none has.
    """

    def __init__(
        self,
        producer: AIOKafkaProducer,
        settings: BatchSettings | None = None,
        *,
        numbers: BatchNumbers | None = None,
        halts: bool = False,
        failed: Callable[[BaseException, str], None] | None = None,
        bounds: Bounds | None = None,
        too_large: Callable[[str, int], None] | None = None,
    ) -> None:
        self.controls = ProducerControls(producer)
        if not self.controls.acknowledged:
            raise ValueError("acks=0: a broker that does not answer refuses nothing, so nothing could be split")
        self.producer = producer
        self.settings = settings or BatchSettings()
        self.numbers = numbers or BatchNumbers()
        self.halts = halts
        self.bounds = bounds or Bounds()
        self.too_large = too_large
        self.failure: BaseException | None = None
        self._failed = failed
        self._outboxes: dict[TopicPartition, Outbox[Any]] = {}
        self._deadlines: dict[asyncio.Timeout, None] = {}
        self._held_until_s = 0.0

    def outbox(
        self, topic: str, partition: int, make_load: Callable[[], L], *, limit_bytes: int | None = None
    ) -> Outbox[L]:
        """The outbox of a partition. The first call creates it; later calls return it whatever their arguments.

        Args:
            topic: the topic.
            partition: of the topic.
            make_load: creates the load of a batch.
            limit_bytes: the topic's `max.message.bytes`, which limits a batch too; None if it is not known.
        """
        place = TopicPartition(topic, partition)
        found = self._outboxes.get(place)
        if found is None:
            found = self._outboxes[place] = Outbox(self, place, make_load, limit_bytes)
        return found

    def hold(self, seconds: float) -> None:
        """Notes that a quota makes a broker accept nothing for so long: the time limit of batches starts after that."""
        until_s = asyncio.get_running_loop().time() + seconds
        self._held_until_s = max(self._held_until_s, until_s)
        for deadline in self._deadlines:
            when_s = deadline.when()
            if when_s is not None and not deadline.expired():
                deadline.reschedule(max(when_s, until_s + self.settings.delivery_timeout_s))

    async def flush(self) -> None:
        """Sends all appended records without lingering, and waits until each is delivered or has failed."""
        while self.failure is None and any(outbox.sender or outbox.waiting for outbox in self._outboxes.values()):
            self.press()
            await asyncio.wait([outbox.sender for outbox in self._outboxes.values() if outbox.sender is not None])
        await self.settled()

    async def settled(self) -> None:
        """Waits until no batch is in flight; waiting batches are sent too, unless all sending has ended."""
        while senders := [outbox.sender for outbox in self._outboxes.values() if outbox.sender is not None]:
            await asyncio.wait(senders)

    def press(self) -> None:
        """Sends all appended records without lingering; does not wait."""
        for outbox in self._outboxes.values():
            outbox.press()

    def drop(self) -> Sequence[Any]:
        """Drops the waiting batches, and returns their loads; one batch of each partition may already be in flight."""
        return [batch.load for outbox in self._outboxes.values() for batch in outbox.clear()]

    def discard(self) -> None:
        """Stops sending, and drops the records that were not sent."""
        for outbox in self._outboxes.values():
            if outbox.sender is not None:
                outbox.sender.cancel()
            outbox.clear()

    def fail(self, error: BaseException, topic: str) -> None:
        """Ends all sending; every undelivered record fails with `error`."""
        if self.failure is not None:
            return
        self.failure = error
        for outbox in self._outboxes.values():
            outbox.give_up(error)
        if self._failed is not None:
            self._failed(error, topic)

    async def send(self, batch: Batch[Any], place: TopicPartition, began_s: float) -> RecordMetadata:
        """Sends a batch of an outbox, and waits until it is acknowledged.

        Raises:
            KafkaError: it is refused, or was not acknowledged within `delivery.timeout.ms` from `began_s` on.
        """
        timeout_s = self.settings.delivery_timeout_s
        turn = self.bounds.turn() if batch.wire_bytes > _LARGE_BATCH_BYTES else contextlib.nullcontext()
        timeout = asyncio.timeout_at(max(began_s, self._held_until_s) + timeout_s)
        self._deadlines[timeout] = None
        try:
            async with timeout, turn:
                future = await self.producer.send_batch(batch, place.topic, partition=place.partition)
                metadata: RecordMetadata = await future
                return metadata
        except TimeoutError as exc:
            if not timeout.expired():
                raise
            reason = f"a batch was not acknowledged within the {timeout_s:g} s of delivery.timeout.ms"
            raise KafkaTimeoutError(f"topic {place.topic}, partition {place.partition}: {reason}") from exc
        finally:
            del self._deadlines[timeout]


class Outbox(Generic[L]):
    """Collects the records of one partition in batches, and sends these in order; see `Batches.outbox`.

    Attributes:
        partition: where the batches are written.
        sender: sends the batches, while there are any.
        limit_bytes: see `Batches.outbox`.
    """

    def __init__(
        self, batches: Batches, partition: TopicPartition, make_load: Callable[[], L], limit_bytes: int | None
    ) -> None:
        self.partition = partition
        self.sender: asyncio.Task[None] | None = None
        self._batches = batches
        self.limit_bytes = limit_bytes
        self._make_load = make_load
        self._codec = batches.controls.codec
        self._transactional = batches.controls.transactional
        self._filling: Batch[L] | None = None
        self._full: deque[Batch[L]] = deque()
        self._pressed = False
        self._roused = asyncio.Event()  # ends the wait of a batch for more records
        self._clock = asyncio.get_running_loop().time
        self._answered_s = 0.0  # when the broker last answered for a batch
        # Of the next record, from that of the client's first batch on. The client also counts refused batches.
        self._sequence: int | None = None
        self._client_sequence = 0
        self._stamp: Stamp | None = None  # of the last batch

    # --- records -----------------------------------------------------------------------------------------------------

    def append(self, record: RecordLike, codec: int | None = None) -> L:
        """Appends a record, and returns the load of its batch; `send` sends it.

        Args:
            record: the record.
            codec: the number of the codec with which it is sent; None for that of the producer.

        Raises:
            TypeError: a part of the record has the wrong type.
        """
        if codec is None:
            codec = self._codec
        if not codec and record.value is not None and len(record.value) >= _ALONE_BYTES:
            return self.forward(RecordBatch.read(memoryview(pack([record]))), 0)
        batch = self._filling
        if batch is not None:
            if batch.codec == codec and batch.append(record):
                return batch.load
            self._fill_no_more()
        room = self._room_bytes(codec)
        batch = Batch(self._make_load(), self._clock(), codec, transactional=self._transactional, room_bytes=room)
        batch.append(record)
        self._filling = batch
        return batch.load

    def extend(self, records: Sequence[RecordLike], codec: int) -> Iterator[tuple[L, int]]:
        """Appends records as fast as possible; `send` sends them.

        Yields:
            The load of a batch, and how many of the next records it has received.
        """
        at = 0
        while at < len(records):
            batch = self._filling
            taken = batch.extend(records, at) if batch is not None and batch.codec == codec else 0
            if not taken or batch is None:
                yield self.append(records[at], codec), 1
                at += 1
            else:
                yield batch.load, taken
                at += taken

    def forward(self, batch: RecordBatch, codec: int) -> L:
        """Appends a batch that is forwarded as it is, and returns its load; `send` sends it.

        It is sent with `codec`, which must be the codec of the batch unless that is uncompressed.
        """
        if self._filling is not None:
            self._fill_no_more()
        whole = Batch(self._make_load(), self._clock(), codec, transactional=self._transactional, whole=batch)
        self._full.append(whole)
        self._roused.set()
        return whole.load

    def _room_bytes(self, codec: int) -> int:
        """The maximum size of a batch before compression, by how the last batches were compressed."""
        name, settings, topic = CODECS[codec], self._batches.settings, self.partition.topic
        least = min(settings.batch_bytes, UNLIMITED_BYTES if self.limit_bytes is None else self.limit_bytes)
        if name is None:
            return least
        # Kafka too estimates the records alone: the header of the batch is not compressed.
        room = room_bytes(max(0, least - BATCH_OVERHEAD_BYTES), self._batches.numbers.estimates.of(topic, name))
        return min(room + BATCH_OVERHEAD_BYTES, max(least, settings.uncompressed_bytes), UNLIMITED_BYTES)

    def _fill_no_more(self) -> None:
        assert self._filling is not None
        self._full.append(self._filling)
        self._filling = None
        self._roused.set()

    # --- sending -----------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether there are unsent records."""
        return bool(self._full) or self._filling is not None

    def send(self) -> None:
        """Starts sending the batches, unless they are being sent already; does not wait."""
        if self.sender is None and self._batches.failure is None:
            self.sender = asyncio.get_running_loop().create_task(self._send_all())

    def press(self) -> None:
        """Like `send`, but no batch lingers."""
        if self.waiting:
            self._pressed = True
            self._roused.set()
            self.send()

    def take(self) -> Batch[L] | None:
        """Removes the next batch, and closes it; None if there is none."""
        if self._full:
            batch = self._full.popleft()
        elif self._filling is not None:
            batch, self._filling, self._pressed = self._filling, None, False
        else:
            return None
        batch.close()
        return batch

    def clear(self) -> list[Batch[L]]:
        """Drops all batches, and returns them."""
        batches = [*self._full, *([self._filling] if self._filling is not None else [])]
        self._full.clear()
        self._filling = None
        return batches

    def give_up(self, error: BaseException) -> None:
        """Fails the waiting batches."""
        self._roused.set()
        for batch in self.clear():
            self._failed(batch, error)

    def _failed(self, batch: Batch[L], error: BaseException) -> None:
        self._batches.numbers.failed(self.partition.topic, batch.records)
        batch.load.failed(error)

    async def _send_all(self) -> None:
        try:
            while (batch := await self._next()) is not None:
                try:
                    await self._send(batch)
                except Exception as exc:
                    self._failed(batch, exc)
                    raise
        except Exception as exc:  # nobody awaits this task
            if not isinstance(exc, (KafkaError, IllegalOperation, WideloadError, OSError, AssertionError)):
                log.exception("topic %s, partition %d: unexpected error", *self.partition)
            self._batches.fail(exc, self.partition.topic)
        finally:
            self.sender = None

    async def _next(self) -> Batch[L] | None:
        """The next batch, once it has lingered; None if there is none, or all sending has ended."""
        linger_s = self._batches.settings.linger_s
        if linger_s > 0 and self._filling is not None and not (self._full or self._pressed):
            self._roused.clear()
            left_s = self._filling.began_s + linger_s - self._clock()
            await set_within(self._roused, max(0.0, left_s))
        # Sending may have ended while it lingered. Later records are not sent: the earlier ones have been dropped.
        return self.take() if self._batches.failure is None else None

    async def _send(self, batch: Batch[L]) -> None:
        """Delivers a batch, replaces it by its halves, or fails its only record.

        Raises:
            KafkaError: it is not known whether the batch is in the log, or the batch failed and `halts` is set.
        """
        try:
            metadata = await self._deliver(batch)
        except _REFUSALS as exc:
            self._answered_s = self._clock()
            if isinstance(exc, (*TOO_LARGE, *_UNFIT)) and batch.records > 1:
                await self._split(batch, exc)
                return
            error = self._refused(batch, exc)
            # If an earlier try did reach the log, the broker would mistake the next batch for it, and drop it.
            if self._batches.halts or batch.tries > 1:
                raise error from exc
            self._failed(batch, error)
            return
        self._answered_s = self._clock()
        if self._sequence is not None:
            self._sequence = (self._sequence + batch.records) & LARGEST_SEQUENCE
        self._count(batch)
        batch.load.delivered(metadata, batch.records, batch.uncompressed_bytes)

    async def _deliver(self, batch: Batch[L]) -> RecordMetadata:
        bounds, asked_s = self._batches.bounds, self._clock()
        batch.sequence = self._sequence
        if batch.compresses and batch.uncompressed_bytes > _BUILT_ON_THREAD_BYTES:
            if self._stamp is not None and self._sequence is not None:
                # The client will set these values too, so the checksum is computed once.
                batch.stamped(self._stamp._replace(sequence=self._sequence))
            async with bounds.building:
                await asyncio.get_running_loop().run_in_executor(None, batch.built)
        async with bounds.request.taken(batch.wire_bytes):
            # The wait for other batches does not count: these have their own time limits.
            began_s = max(batch.began_s, self._answered_s) + self._clock() - asked_s
            try:
                return await self._batches.send(batch, self.partition, began_s)
            finally:
                self._stamp = batch.stamp
                if batch.client_sequence is not None:
                    if self._sequence is None:
                        self._sequence = self._client_sequence = batch.client_sequence
                    other = (batch.client_sequence - self._client_sequence) & LARGEST_SEQUENCE
                    assert not other, "something else has been sent to this partition"
                    self._client_sequence = batch.client_sequence + batch.records

    def _count(self, batch: Batch[L]) -> None:
        topic, wire, codec = self.partition.topic, batch.wire_bytes, CODECS[batch.codec]
        numbers = self._batches.numbers
        # The uncompressed size of a forwarded batch is not known.
        uncompressed = batch.uncompressed_bytes if batch.compresses or codec is None else None
        if codec is not None and uncompressed is not None:
            numbers.estimates.observe(topic, codec, wire / uncompressed)
        numbers.delivered(topic, wire_bytes=wire, uncompressed_bytes=uncompressed, records=batch.records)

    def _refused(self, batch: Batch[L], error: KafkaError) -> Exception:
        topic, number = self.partition
        if isinstance(error, TOO_LARGE):
            return RecordRefusedError(topic, number, batch.wire_bytes + BATCH_OVERHEAD_BYTES)
        if isinstance(error, _UNFIT):
            clock = "its timestamp is further from the broker's clock than message.timestamp.after.max.ms or "
            reason = f"INVALID_TIMESTAMP: {clock}message.timestamp.before.max.ms allows"
            return RecordUnfitError(topic, reason, batch.timestamp)
        return cast("Exception", error)

    async def _split(self, batch: Batch[L], error: KafkaError) -> None:
        """Replaces a refused batch by its halves."""
        topic, batches, codec = self.partition.topic, self._batches, CODECS[batch.codec]
        log.info(
            "topic %s, partition %d: a batch of %d records and %d bytes was refused, and is split in two: %s",
            *self.partition,
            batch.records,
            batch.wire_bytes,
            error,
        )
        if isinstance(error, TOO_LARGE):
            batches.numbers.split()
            if codec is not None:
                batches.numbers.estimates.reset(topic, codec)
            if batches.too_large is not None:
                batches.too_large(topic, batch.wire_bytes + BATCH_OVERHEAD_BYTES)
        if batch.uncompressed_bytes > _BUILT_ON_THREAD_BYTES:
            parts = await asyncio.get_running_loop().run_in_executor(None, batch.divided)
        else:
            parts = batch.divided()
        if batches.failure is None:
            batch.split_load(parts)
            self._full.extendleft(reversed(parts))
        else:
            self._failed(batch, batches.failure)
