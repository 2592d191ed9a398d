"""Sends the records of a command to one topic, with a limit of the bytes in flight."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from app.config.naming import check_name
from app.config.settings import ClientSettings
from app.kafka.clients import admin, translated, writing_producer
from app.kafka.topics import Topic, topics
from transforms.batch_size import batch_of_one_bytes
from transforms.errors import ConfigurationError, RecordTooLargeError, WideloadError
from transforms.record import Record

__all__ = ["BATCH_BYTES", "SendError", "Sender", "Sent", "find_topic", "open_sender"]

BATCH_BYTES = 131_072
_WINDOW_BYTES = 64 * 1024 * 1024


class SendError(WideloadError):
    """Not all messages were sent; says how many were, and why not the rest."""


@dataclass(slots=True)
class Sent:
    """The messages that the cluster has acknowledged.

    Attributes:
        size: bytes of keys and values.
        offsets: the first and the last offset, by partition.
    """

    messages: int = 0
    size: int = 0
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)

    def note(self, partition: int, offset: int, size: int) -> None:
        """Counts one message."""
        self.messages += 1
        self.size += size
        first, last = self.offsets.get(partition, (offset, offset))
        self.offsets[partition] = (min(first, offset), max(last, offset))


class Sender:
    """Sends records to one topic in order, with at most 64 MiB and one record in flight.

    Args:
        producer: started, with `acks=all`.
        topic: the topic.
        limit_bytes: the greatest size of a record as a batch of one; None if only the broker knows it.
        done: called with the number of bytes that were acknowledged.
    """

    def __init__(
        self,
        producer: AIOKafkaProducer,
        topic: str,
        limit_bytes: int | None,
        done: Callable[[int], None],
    ) -> None:
        self.sent = Sent()
        self._producer = producer
        self._topic = topic
        self._limit_bytes = limit_bytes
        self._done = done
        self._waiting: deque[tuple[asyncio.Future[Any], int, str]] = deque()
        self._waiting_bytes = 0

    async def send(self, record: Record, name: str, partition: int | None = None) -> None:
        """Sends a record, once fewer bytes are in flight.

        Raises:
            SendError: this record cannot be sent, or an earlier one was not acknowledged; `name` says which.
        """
        if self._limit_bytes is not None:
            size = batch_of_one_bytes(record)
            if size > self._limit_bytes:
                raise SendError(f"{name}: {RecordTooLargeError(self._topic, size, self._limit_bytes)}")
        size = len(record.key or b"") + len(record.value or b"")
        while self._waiting and (self._waiting_bytes + size > _WINDOW_BYTES or self._waiting[0][0].done()):
            await self._acknowledge()
        try:
            future = await self._producer.send(
                self._topic, record.value, record.key, partition=partition, headers=list(record.headers)
            )
        except KafkaError as exc:
            raise SendError(f"{name}: {translated(exc, 'it cannot be sent')}") from exc
        self._waiting.append((future, size, name))
        self._waiting_bytes += size

    async def drain(self) -> None:
        """Waits until all records in flight are acknowledged.

        Raises:
            SendError: one of them was not acknowledged.
        """
        while self._waiting:
            await self._acknowledge()

    async def _acknowledge(self) -> None:
        future, size, name = self._waiting.popleft()
        self._waiting_bytes -= size
        try:
            metadata = await future
        except MessageSizeTooLargeError as exc:
            raise SendError(
                f"{name}: topic {self._topic} does not take {size:,} bytes, even compressed; raise its "
                "max.message.bytes"
            ) from exc
        except KafkaError as exc:
            raise SendError(f"{name}: {translated(exc, f'topic {self._topic} did not take it')}") from exc
        self.sent.note(metadata.partition, metadata.offset, size)
        self._done(size)


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
    """A sender for the length of a block; records that are not drained at its end may be lost.

    Raises:
        ClusterError: the producer cannot start.
    """
    compression = None if codec == "none" else codec
    batch_bytes = min(BATCH_BYTES, topic.max_message_bytes)
    async with writing_producer(client, compression_type=compression, max_batch_size=batch_bytes) as producer:
        yield Sender(producer, topic.name, topic.max_message_bytes if codec == "none" else None, done)
