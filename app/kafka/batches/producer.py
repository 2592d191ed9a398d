"""KIP-126 over aiokafka's producer: batches are closed by an estimate of the compression, and split if refused.

aiokafka limits the uncompressed size of a batch. If the broker refuses a batch, all its records fail; an idempotent
producer has used up their sequence numbers, so the broker refuses each later batch too. Here aiokafka has only one
batch of a partition at a time. If that is refused, its sequence numbers are taken back, and its halves are sent in its
place. That costs no throughput: aiokafka sends one batch of a partition at a time, and gets the next one as soon as the
last one is acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    IllegalOperation,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
)
from aiokafka.structs import RecordMetadata

from app.kafka.batches.batch import Batch, Builder, Load
from app.kafka.batches.bounds import Bounds
from app.kafka.batches.numbers import BatchNumbers
from app.kafka.batches.outbox import Outbox
from app.kafka.producer import UNLIMITED_BYTES, ProducerControls
from transforms.batch_size import BATCH_OVERHEAD_BYTES
from transforms.errors import RecordUnfitError, WideloadError
from transforms.logger_name import logger_name
from transforms.ratio import room_bytes
from transforms.record_batch import CODECS

__all__ = ["BatchSettings", "Batches", "RecordRefusedError"]

log = logging.getLogger(logger_name(__name__))

L = TypeVar("L", bound=Load)

_LARGE_BATCH_BYTES = 2 * 1_048_576
# To compress this takes one or two milliseconds; a thread costs a tenth of one.
_BUILT_ON_THREAD_BYTES = 262_144

# After these errors the broker has appended nothing, and takes the next batch. After others that is not known.
_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
# One record of the batch may cause it.
_UNFIT = (InvalidTimestampError,)
_REFUSALS = (*_TOO_LARGE, *_UNFIT, TopicAuthorizationFailedError, InvalidTopicError)


class RecordRefusedError(WideloadError):
    """A record is larger than its topic takes.

    Attributes:
        topic, partition: of the sink.
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
    """How batches are made and sent.

    Attributes:
        batch_bytes: `batch.size`: a batch is closed when it is estimated to compress to this; a larger record is sent
            alone.
        uncompressed_bytes: the greatest size of a batch before compression, for any estimate: here and in each reader
            it takes this memory.
        linger_s: `linger.ms`: how long a batch that is not full waits for more records.
        delivery_timeout_s: `delivery.timeout.ms`: the time from the first record of a batch until it is acknowledged.
            It begins again with the response for the batch before, because a slow sink has not failed.
    """

    batch_bytes: int = 131_072
    uncompressed_bytes: int = 16 * 1_048_576
    linger_s: float = 0.0
    delivery_timeout_s: float = 120.0


class Batches:
    """Sends batches through one aiokafka producer, in order, partition by partition. Belongs to one event loop.

    Records go through an `outbox`, one for each partition; nothing else may send to that partition by this producer.
    If the broker refuses a batch of several records, because it is too large or one record does not fit the topic, its
    halves are sent in its place, in order, and are split in turn if need be. Sequence numbers have neither gap nor
    duplicate. A record that is refused alone fails with `RecordRefusedError` for its size, or with `RecordUnfitError`;
    if that was not the first try, all sending ends.

    Args:
        producer: not with `acks=0`. If it is neither idempotent nor transactional, a retry may write records twice.
        settings: how batches are made.
        numbers: count batches and records.
        halts: whether a batch that fails ends all sending, so that no later batch overtakes it.
        failed: called once, with the error that ended all sending, and the topic.
        bounds: limits of the batches in flight; several producers may share them.
        limits: the `max.message.bytes` of topics for which it has changed since their outboxes were made.
        too_large: called with a topic, and the bytes of a batch of several records that it has refused for its size.

    Attributes:
        failure: the error that ended all sending; None if none has.
    """

    # State that changes: `_outboxes`, `_estimates`, `failure`, `_deadlines`, `_held_until_s`; on the event loop alone.

    def __init__(
        self,
        producer: AIOKafkaProducer,
        settings: BatchSettings | None = None,
        *,
        numbers: BatchNumbers | None = None,
        halts: bool = False,
        failed: Callable[[BaseException, str], None] | None = None,
        bounds: Bounds | None = None,
        limits: Mapping[str, int] | None = None,
        too_large: Callable[[str, int], None] | None = None,
    ) -> None:
        self._controls = ProducerControls(producer)
        if not self._controls.acknowledged:
            raise ValueError("acks=0: a broker that does not answer refuses nothing, so nothing could be split")
        self.failure: BaseException | None = None
        self.numbers = numbers or BatchNumbers()
        self._settings = settings or BatchSettings()
        self._producer = producer
        self._halts = halts
        self._failed = failed
        self._estimates = self.numbers.estimates
        self._limits = {} if limits is None else limits
        self._too_large = too_large
        self._outboxes: dict[TopicPartition, Outbox[Any]] = {}
        self._bounds = bounds or Bounds()
        self._deadlines: dict[asyncio.Timeout, None] = {}
        self._held_until_s = 0.0

    def outbox(
        self, topic: str, partition: int, make_load: Callable[[], L], *, limit_bytes: int | None = None
    ) -> Outbox[L]:
        """The outbox of a partition. The first call makes it; later calls return the same, with any other arguments.

        Args:
            topic: the topic.
            partition: of the topic.
            make_load: makes the data for the records of a batch.
            limit_bytes: the topic's `max.message.bytes`, which limits a batch too; None if it is not known.
        """
        place = TopicPartition(topic, partition)
        found = self._outboxes.get(place)
        if found is None:
            make_builder = partial(self._make_builder, topic, limit_bytes)
            controls = self._controls
            codec, transactional = controls.codec_number, controls.transactional
            found = self._outboxes[place] = Outbox(
                place, make_builder, make_load, self._start, codec=codec, transactional=transactional
            )
        return found

    def hold(self, seconds: float) -> None:
        """Takes in that a broker takes nothing for so long, by a quota: the time limit of batches begins after that."""
        until_s = asyncio.get_running_loop().time() + seconds
        self._held_until_s = max(self._held_until_s, until_s)
        for deadline in self._deadlines:
            when_s = deadline.when()
            if when_s is not None and not deadline.expired():
                deadline.reschedule(max(when_s, until_s + self._settings.delivery_timeout_s))

    async def flush(self) -> None:
        """Sends all appended records without lingering, and waits until each is delivered or has failed."""
        while self.failure is None:
            waiting = [outbox for outbox in self._outboxes.values() if outbox.sender or outbox.filling or outbox.full]
            if not waiting:
                return
            self.press()
            await asyncio.wait([outbox.sender for outbox in waiting if outbox.sender is not None])
        await self.settled()

    async def settled(self) -> None:
        """Waits until no batch is in flight; batches that wait are sent too, unless all sending has ended."""
        while senders := [outbox.sender for outbox in self._outboxes.values() if outbox.sender is not None]:
            await asyncio.wait(senders)

    def press(self) -> None:
        """Sends all appended records without lingering; does not wait."""
        for outbox in self._outboxes.values():
            if outbox.filling or outbox.full:
                outbox.press()
                self._start(outbox)

    def drop(self) -> Sequence[Any]:
        """Drops the batches that wait, and returns their loads; of each partition one may be on its way already."""
        return [batch.load for outbox in self._outboxes.values() for batch in outbox.clear()]

    def discard(self) -> None:
        """Stops sending, and drops the records that were not sent."""
        for outbox in self._outboxes.values():
            if outbox.sender is not None:
                outbox.sender.cancel()
            outbox.clear()

    def _fail(self, error: BaseException, topic: str) -> None:
        """Ends all sending; each record that is not delivered fails with `error`."""
        if self.failure is not None:
            return
        self.failure = error
        for outbox in self._outboxes.values():
            outbox.rouse()
            for batch in outbox.clear():
                self._give_up(batch, outbox.partition, error)
        if self._failed is not None:
            self._failed(error, topic)

    def _make_builder(self, topic: str, limit_bytes: int | None, number: int) -> Builder:
        batch_bytes = self._settings.batch_bytes
        limit_bytes = self._limits.get(topic, limit_bytes)
        if limit_bytes is not None:
            batch_bytes = min(batch_bytes, limit_bytes)
        codec = CODECS[number]
        if codec is None:
            return self._builder(batch_bytes, number)
        # Kafka too estimates the records alone: the header of the batch is not compressed.
        room = room_bytes(max(0, batch_bytes - BATCH_OVERHEAD_BYTES), self._estimates.of(topic, codec))
        room = min(room + BATCH_OVERHEAD_BYTES, max(batch_bytes, self._settings.uncompressed_bytes))
        return self._builder(room, number)

    def _builder(self, room: int, number: int) -> Builder:
        return Builder(min(room, UNLIMITED_BYTES), number, transactional=self._controls.transactional)

    def _start(self, outbox: Outbox[Any]) -> None:
        if outbox.sender is None and self.failure is None:
            outbox.sender = asyncio.get_running_loop().create_task(self._send_all(outbox))

    async def _send_all(self, outbox: Outbox[L]) -> None:
        try:
            while (batch := await self._next(outbox)) is not None:
                try:
                    await self._send(outbox, batch)
                except Exception as exc:
                    self._give_up(batch, outbox.partition, exc)
                    raise
        except Exception as exc:  # nobody awaits this task
            if not isinstance(exc, (KafkaError, IllegalOperation, WideloadError, OSError, AssertionError)):
                log.exception("topic %s, partition %d: unexpected error", *outbox.partition)
            self._fail(exc, outbox.partition.topic)
        finally:
            outbox.sender = None

    async def _next(self, outbox: Outbox[L]) -> Batch[L] | None:
        """The next batch, once it has lingered; None if there is none, or all sending has ended."""
        if self.failure is None and self._settings.linger_s > 0:
            await outbox.linger(self._settings.linger_s)
        # It may have ended meanwhile. Later records stay: the earlier ones have been dropped.
        return outbox.take() if self.failure is None else None

    async def _send(self, outbox: Outbox[L], batch: Batch[L]) -> None:
        """Delivers a batch, or puts its halves in its place, or lets its one record fail.

        Raises:
            KafkaError: it is not known whether the batch is in the log, or the batch failed and `halts` is set.
        """
        place = outbox.partition
        try:
            metadata = await self._deliver(outbox, batch)
        except _REFUSALS as exc:
            outbox.answered()
            if batch.builder.stamp is not None:
                self._controls.rewind(place, batch.builder.stamp, batch.records)
            if isinstance(exc, (*_TOO_LARGE, *_UNFIT)) and batch.records > 1:
                await self._split(outbox, batch, exc)
                return
            error = self._refused(exc, place, batch)
            # If an earlier try did reach the log, the broker would take the next batch for that one, and drop it.
            if self._halts or batch.builder.tries > 1:
                raise error from exc
            self._give_up(batch, place, error)
            return
        outbox.answered()
        self._observe(place.topic, batch)
        batch.load.delivered(metadata, batch.records, batch.uncompressed_bytes)

    def _refused(self, error: KafkaError, place: TopicPartition, batch: Batch[Any]) -> Exception:
        if isinstance(error, _TOO_LARGE):
            return RecordRefusedError(place.topic, place.partition, batch.wire_bytes + BATCH_OVERHEAD_BYTES)
        if isinstance(error, _UNFIT):
            clock = "its timestamp is further from the broker's clock than message.timestamp.after.max.ms or "
            told = f"INVALID_TIMESTAMP: {clock}message.timestamp.before.max.ms allows"
            return RecordUnfitError(place.topic, told, batch.timestamp)
        return cast("Exception", error)

    async def _deliver(self, outbox: Outbox[L], batch: Batch[L]) -> RecordMetadata:
        place = outbox.partition
        self._controls.wrap(place)
        asked_s = asyncio.get_running_loop().time()
        builder = batch.builder
        if builder.compresses and batch.uncompressed_bytes > _BUILT_ON_THREAD_BYTES:
            await self._build(place, batch.builder)
        async with self._bounds.request.taken(batch.wire_bytes):
            # Until here it has waited for other batches, which have time limits of their own.
            waited_s = asyncio.get_running_loop().time() - asked_s
            return await self._send_by(max(batch.began_s, outbox.answered_s) + waited_s, place, batch)

    async def _send_by(self, began_s: float, place: TopicPartition, batch: Batch[Any]) -> RecordMetadata:
        timeout_s = self._settings.delivery_timeout_s
        turn = self._bounds.turn() if batch.wire_bytes > _LARGE_BATCH_BYTES else nullcontext()
        timeout = asyncio.timeout_at(max(began_s, self._held_until_s) + timeout_s)
        self._deadlines[timeout] = None
        try:
            async with timeout, turn:
                future = await self._producer.send_batch(batch.builder, place.topic, partition=place.partition)
                metadata: RecordMetadata = await future
                return metadata
        except TimeoutError as exc:
            if not timeout.expired():
                raise
            told = f"a batch was not acknowledged within the {timeout_s:g} s of delivery.timeout.ms"
            raise KafkaTimeoutError(f"topic {place.topic}, partition {place.partition}: {told}") from exc
        finally:
            del self._deadlines[timeout]

    async def _build(self, place: TopicPartition, builder: Builder) -> None:
        stamp = self._controls.next_stamp(place)
        if stamp is not None:
            builder.stamped(stamp)
        async with self._bounds.building:
            await asyncio.get_running_loop().run_in_executor(None, builder.built)

    async def _split(self, outbox: Outbox[L], batch: Batch[L], error: KafkaError) -> None:
        """Puts the halves of a refused batch in its place."""
        place = outbox.partition
        log.info(
            "topic %s, partition %d: a batch of %d records and %d bytes is refused, and split in two: %s",
            place.topic,
            place.partition,
            batch.records,
            batch.wire_bytes,
            error,
        )
        codec = CODECS[batch.builder.codec]
        if isinstance(error, _TOO_LARGE):
            self.numbers.split()
            if codec is not None:
                self._estimates.reset(place.topic, codec)
            if self._too_large is not None:
                self._too_large(place.topic, batch.wire_bytes + BATCH_OVERHEAD_BYTES)
        make = partial(self._builder, UNLIMITED_BYTES, batch.builder.codec)
        if batch.uncompressed_bytes > _BUILT_ON_THREAD_BYTES:
            builders = await asyncio.get_running_loop().run_in_executor(None, batch.divided, make)
        else:
            builders = batch.divided(make)
        if self.failure is None:
            outbox.put_back(batch.parts(builders))
        else:
            self._give_up(batch, outbox.partition, self.failure)

    def _observe(self, topic: str, batch: Batch[Any]) -> None:
        wire, codec = batch.wire_bytes, CODECS[batch.builder.codec]
        # Nobody has looked how much a batch that went whole holds uncompressed.
        uncompressed = batch.uncompressed_bytes if batch.builder.compresses or codec is None else None
        if codec is not None and uncompressed is not None:
            self._estimates.observe(topic, codec, wire / uncompressed)
        self.numbers.delivered(topic, wire_bytes=wire, uncompressed_bytes=uncompressed, records=batch.records)

    def _give_up(self, batch: Batch[Any], place: TopicPartition, error: BaseException) -> None:
        self.numbers.failed(place.topic, batch.records)
        batch.load.failed(error)
