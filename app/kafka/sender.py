"""Sends the messages of a command to one topic, and limits the bytes in flight."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.structs import RecordMetadata

from app.config.naming import check_name
from app.config.settings import ClientSettings
from app.kafka.batches.batch import Each
from app.kafka.batches.bounds import ByteLimit
from app.kafka.batches.outbox import Batches, BatchSettings
from app.kafka.clients import admin, translated, writing_producer
from app.kafka.topics import Topic, missing_topic, topics
from transforms.batch_size import batch_of_one_bytes
from transforms.errors import ConfigurationError, RecordTooLargeError, WideloadError
from transforms.record import Record, RecordLike

DELIVERY_TIMEOUT_S = 120.0  # as Kafka's delivery.timeout.ms
_WINDOW_BYTES = 32 * 1024 * 1024  # as Kafka's buffer.memory
_RECORD_BYTES = 400  # of memory, in addition to what is sent
BATCH_BYTES = 131_072
CHUNK = "chunk"
"""The name of the transform that splits a message into several records."""


class SendError(WideloadError):
    """Not all messages were sent; the text names the first that failed, and why."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it is sent.

    Attributes:
        records: a single record, or the chunks, which are written to one partition, in order.
        size: bytes of the key and the value.
        applied: the names of the transforms that were applied.
    """

    records: Sequence[RecordLike]
    size: int
    applied: Sequence[str] = ()

    @classmethod
    def plain(cls, record: Record) -> Message:
        """A message that is sent without transforms."""
        return cls((record,), len(record.key or b"") + len(record.value or b""))


@dataclass(slots=True)
class Sent:
    """The messages that the cluster has acknowledged.

    Attributes:
        size: bytes of keys and values.
        offsets: the first and the last offset, by partition.
        applied: the number of messages to which a transform was applied, by its name.
        chunks: the number of records of chunked messages.
    """

    messages: int = 0
    size: int = 0
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    applied: Counter[str] = field(default_factory=Counter)
    chunks: int = 0

    def note_records(self, partition: int, first: int, last: int) -> None:
        """Counts the records from `first` to `last`; below 0 if the broker, after a retry, did not report offsets."""
        if first >= 0:
            earliest, latest = self.offsets.get(partition, (first, last))
            self.offsets[partition] = (min(earliest, first), max(latest, last))

    def note_message(self, message: Message) -> None:
        """Counts a message all of whose records were counted."""
        self.messages += 1
        self.size += message.size
        self.applied.update(message.applied)
        self.chunks += len(message.records) if CHUNK in message.applied else 0


# The bytes of a record, the name of its message, and the message if it ends with the record.
_Flying = tuple[int, str, Message | None]


class Sender:
    """Sends messages to one topic in order, with at most 32 MiB and one record in flight.

    A batch that the topic refuses is split and its parts are sent in its place (KIP-126), so a refused message fails
    alone.

    Args:
        producer: started, with `acks=all`; nothing else sends through it.
        topic: the topic.
        batch_bytes: the size at which a batch is closed.
        limit_bytes: the maximum size of a record as a batch of one; None if only the broker knows it.
        done: called with the number of bytes that were acknowledged.
        delivery_timeout_s: how long to wait for an acknowledgement.
    """

    def __init__(
        self,
        producer: AIOKafkaProducer,
        topic: str,
        batch_bytes: int,
        limit_bytes: int | None,
        done: Callable[[int], None],
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
    ) -> None:
        self.sent = Sent()
        settings = BatchSettings(batch_bytes=batch_bytes, delivery_timeout_s=delivery_timeout_s)
        self._batches = Batches(producer, settings)
        self._topic = topic
        self._limit_bytes = limit_bytes
        self._done = done
        self._flying = ByteLimit(_WINDOW_BYTES)
        self._unsent_bytes = 0
        self._failure: SendError | None = None

    async def send(self, record: Record, name: str, partition: int | None = None) -> None:
        """Sends a record as it is; see `send_message`."""
        await self.send_message(Message.plain(record), name, partition)

    async def send_message(self, message: Message, name: str, partition: int | None = None) -> None:
        """Sends a message, once fewer bytes are in flight.

        Raises:
            SendError: this message cannot be sent, or an earlier one was not acknowledged; the error has its `name`.
        """
        sizes = [batch_of_one_bytes(record) for record in message.records]
        for size in sizes:
            if self._limit_bytes is not None and size > self._limit_bytes:
                raise SendError(f"{name}: {RecordTooLargeError(self._topic, size, self._limit_bytes)}")
        now_ms = int(time.time() * 1000)
        last = len(sizes) - 1
        try:
            number = await self._batches.controls.partition(self._topic, partition, message.records[0].key)
        except KafkaError as exc:
            raise SendError(f"{name}: {translated(exc, 'it cannot be sent')}") from exc
        for position, (record, size) in enumerate(zip(message.records, sizes, strict=True)):
            held = size + _RECORD_BYTES
            await self._flying.take(held)
            try:
                self._check()
                outbox = self._batches.outbox(
                    self._topic, number, lambda: Each(partial(self._acknowledged, number), self._failed)
                )
                # All chunks of a message have one timestamp.
                stamp = now_ms if record.timestamp < 0 else record.timestamp
                load = outbox.append(Record(record.key, record.value, record.headers, stamp))
            except BaseException:
                self._flying.give(held)
                raise
            load.entries.append((held, name, message if position == last else None))
            outbox.send()
            await self._breathe(size)

    async def drain(self) -> None:
        """Waits until no message is in flight.

        Raises:
            SendError: one of them was not acknowledged.
        """
        await self._batches.flush()
        self._check()

    async def close(self) -> None:
        """Waits until each message in flight is acknowledged, or has failed."""
        await self._batches.flush()
        if self._batches.failure is not None:
            # The producer still has the batch whose outcome is unknown, and its `stop` would wait forever.
            await self._batches.controls.abandon()

    def _acknowledged(self, partition: int, records: Sequence[_Flying], metadata: RecordMetadata) -> None:
        self.sent.note_records(partition, metadata.offset, metadata.offset + len(records) - 1)
        for held, _, message in records:
            self._flying.give(held)
            if message is not None:
                self.sent.note_message(message)
                self._done(message.size)

    def _failed(self, records: Sequence[_Flying], error: BaseException) -> None:
        for held, _, _ in records:
            self._flying.give(held)
        if self._failure is None:
            name = records[0][1]
            reason = error if isinstance(error, WideloadError) else translated(error, f"topic {self._topic} refuses it")
            self._failure = SendError(f"{name}: {reason}")
            self._failure.__cause__ = error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _breathe(self, size: int) -> None:
        """Lets batches be sent while a caller passes one message after the other."""
        self._unsent_bytes += size
        if self._unsent_bytes >= BATCH_BYTES:
            self._unsent_bytes = 0
            await asyncio.sleep(0)


async def find_topic(client: ClientSettings, name: str) -> Topic:
    """A topic that must exist, as the cluster describes it.

    Raises:
        ConfigurationError: no broker answers, or there is no such topic.
        ClusterError: the cluster did not describe it.
    """
    check_name("topic", name, "TOPIC")
    async with admin(client) as connection:
        found = await topics(connection, [name])
        if name not in found:
            hint = f" at {client.bootstrap_servers}; create it first"
            raise ConfigurationError("TOPIC", await missing_topic(connection, name, hint))
    return found[name]


@asynccontextmanager
async def open_sender(
    client: ClientSettings,
    topic: Topic,
    codec: str = "none",
    done: Callable[[int], None] = lambda _: None,
    delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
) -> AsyncIterator[Sender]:
    """A sender for the duration of a block; messages in flight at its end are still sent.

    Raises:
        ClusterError: the producer cannot start.
    """
    compression = None if codec == "none" else codec
    limit = topic.max_message_bytes if codec == "none" else None
    async with writing_producer(client, compression_type=compression) as producer:
        sender = Sender(
            producer, topic.name, min(BATCH_BYTES, topic.max_message_bytes), limit, done, delivery_timeout_s
        )
        try:
            yield sender
        finally:
            await sender.close()
