"""Sends the messages of a command to one topic, with a limit of the bytes in flight."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from app.config.naming import check_name
from app.config.settings import ClientSettings
from app.kafka.batches import BatchingProducer, BatchSettings
from app.kafka.clients import admin, translated, writing_producer
from app.kafka.producer import ProducerControls
from app.kafka.topics import Topic, topics
from transforms.batch_size import batch_of_one_bytes
from transforms.errors import ConfigurationError, RecordTooLargeError, WideloadError
from transforms.record import Record, RecordLike

__all__ = ["BATCH_BYTES", "Message", "SendError", "Sender", "Sent", "find_topic", "open_sender"]

BATCH_BYTES = 131_072
_WINDOW_BYTES = 64 * 1024 * 1024
_BUFFER_BYTES = 2**40  # of the producer below: it is the window that limits


class SendError(WideloadError):
    """Not all messages were sent; says how many were, and why not the rest."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it is sent.

    Attributes:
        records: one; or its chunks, which go to one partition, in order.
        size: bytes of its key and its value.
        applied: the names of the transforms that made it what it is.
    """

    records: Sequence[RecordLike]
    size: int
    applied: Sequence[str] = ()

    @classmethod
    def plain(cls, record: Record) -> Message:
        """The message that is sent as it is."""
        return cls((record,), len(record.key or b"") + len(record.value or b""))


@dataclass(slots=True)
class Sent:
    """The messages that the cluster has acknowledged.

    Attributes:
        size: bytes of keys and values.
        offsets: the first and the last offset, by partition.
        applied: how many of the messages went through a transform, by its name.
        chunks: records of the messages that went as chunks.
    """

    messages: int = 0
    size: int = 0
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    applied: Counter[str] = field(default_factory=Counter)
    chunks: int = 0

    def note_record(self, partition: int, offset: int) -> None:
        """Counts one record."""
        if offset >= 0:  # unknown to a broker that had the record from an earlier try
            first, last = self.offsets.get(partition, (offset, offset))
            self.offsets[partition] = (min(first, offset), max(last, offset))

    def note_message(self, message: Message) -> None:
        """Counts one message, all of whose records are counted."""
        self.messages += 1
        self.size += message.size
        self.applied.update(message.applied)
        self.chunks += len(message.records) if "chunk" in message.applied else 0


@dataclass(frozen=True, slots=True)
class _Flying:
    """A record that was handed over; `ends` is the message that is sent with it, None for a chunk before the last."""

    future: asyncio.Future[Any]
    size: int
    name: str
    ends: Message | None


class Sender:
    """Sends messages to one topic in order, with at most 64 MiB and one record in flight.

    A batch that the topic refuses is split and sent again in its place (KIP-126), so a message that is refused fails
    alone.

    Args:
        producer: started, with `acks=all`; nothing else sends through it.
        topic: the topic.
        batch_bytes: at which a batch is closed.
        limit_bytes: the greatest size of a record as a batch of one; None if only the broker knows it.
        done: called with the number of bytes that were acknowledged.
    """

    def __init__(
        self,
        producer: AIOKafkaProducer,
        topic: str,
        batch_bytes: int,
        limit_bytes: int | None,
        done: Callable[[int], None],
    ) -> None:
        self.sent = Sent()
        self._controls = ProducerControls(producer)
        self._producer = BatchingProducer(producer, BatchSettings(batch_bytes=batch_bytes), buffer_bytes=_BUFFER_BYTES)
        self._topic = topic
        self._limit_bytes = limit_bytes
        self._done = done
        self._waiting: deque[_Flying] = deque()
        self._waiting_bytes = 0

    async def send(self, record: Record, name: str, partition: int | None = None) -> None:
        """Sends a record as it is; see `send_message`."""
        await self.send_message(Message.plain(record), name, partition)

    async def send_message(self, message: Message, name: str, partition: int | None = None) -> None:
        """Sends a message, once fewer bytes are in flight.

        Raises:
            SendError: this message cannot be sent, or an earlier one was not acknowledged; `name` says which.
        """
        sizes = [batch_of_one_bytes(record) for record in message.records]
        for size in sizes:
            if self._limit_bytes is not None and size > self._limit_bytes:
                raise SendError(f"{name}: {RecordTooLargeError(self._topic, size, self._limit_bytes)}")
        now_ms = int(time.time() * 1000)
        last = len(sizes) - 1
        if last and partition is None:
            partition = await self._partition(message.records[0], name)
        for number, (record, size) in enumerate(zip(message.records, sizes, strict=True)):
            # All chunks of a message have one timestamp.
            stamp = now_ms if record.timestamp < 0 else record.timestamp
            stamped = Record(record.key, record.value, record.headers, stamp)
            await self._put(stamped, size, name, partition, message if number == last else None)

    async def drain(self) -> None:
        """Waits until all messages in flight are acknowledged.

        Raises:
            SendError: one of them was not acknowledged.
        """
        while self._waiting:
            await self._acknowledge()

    async def close(self) -> None:
        """Waits until each message in flight is acknowledged, or has failed."""
        await self._producer.close()

    async def _partition(self, record: RecordLike, name: str) -> int:
        try:
            return await self._controls.partition(self._topic, None, record.key)
        except KafkaError as exc:
            raise SendError(f"{name}: {translated(exc, 'it cannot be sent')}") from exc

    async def _put(self, record: Record, size: int, name: str, partition: int | None, ends: Message | None) -> None:
        while self._waiting and (self._waiting_bytes + size > _WINDOW_BYTES or self._waiting[0].future.done()):
            await self._acknowledge()
        try:
            future = await self._producer.send(self._topic, record, partition=partition)
        except (KafkaError, WideloadError, OSError) as exc:
            raise self._failed(name, exc) from exc
        self._waiting.append(_Flying(future, size, name, ends))
        self._waiting_bytes += size

    async def _acknowledge(self) -> None:
        flying = self._waiting.popleft()
        self._waiting_bytes -= flying.size
        try:
            metadata = await flying.future
        except (KafkaError, WideloadError, OSError) as exc:
            raise self._failed(flying.name, exc) from exc
        self.sent.note_record(metadata.partition, metadata.offset)
        if flying.ends is not None:
            self.sent.note_message(flying.ends)
            self._done(flying.ends.size)

    def _failed(self, name: str, error: Exception) -> SendError:
        if isinstance(error, WideloadError):
            return SendError(f"{name}: {error}")
        return SendError(f"{name}: {translated(error, f'topic {self._topic} did not take it')}")


async def find_topic(client: ClientSettings, name: str) -> Topic:
    """A topic that must exist, as the cluster describes it.

    Raises:
        ConfigurationError: no broker answers, or there is no such topic.
        ClusterError: the cluster does not describe it.
    """
    check_name("topic", name, "TOPIC")
    async with admin(client) as connection:
        found = await topics(connection, [name])
    if name not in found:
        raise ConfigurationError("TOPIC", f"topic {name} does not exist at {client.bootstrap_servers}; create it first")
    return found[name]


@asynccontextmanager
async def open_sender(
    client: ClientSettings, topic: Topic, codec: str = "none", done: Callable[[int], None] = lambda _: None
) -> AsyncIterator[Sender]:
    """A sender for the length of a block; what is in flight at its end is still sent.

    Raises:
        ClusterError: the producer cannot start.
    """
    compression = None if codec == "none" else codec
    limit = topic.max_message_bytes if codec == "none" else None
    async with writing_producer(client, compression_type=compression) as producer:
        sender = Sender(producer, topic.name, min(BATCH_BYTES, topic.max_message_bytes), limit, done)
        try:
            yield sender
        finally:
            await sender.close()
