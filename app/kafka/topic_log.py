"""A topic with one partition as a log that several processes share: read from its beginning, followed, and written."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Never

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, OffsetOutOfRangeError

from app.config.settings import ClientSettings
from app.kafka.clients import ClusterError, translated, writing_producer
from app.kafka.consumer_controls import ConsumerControls
from app.kafka.producer import ProducerControls
from app.kafka.source_batch import UnreadBatch
from app.kafka.topic_reader import TopicReader, reading, topic_consumer
from app.kafka.topics import identities
from transforms.record import SourceRecord

_POLL_MS = 500
_QUIET_S = 30.0  # aiokafka never bootstraps again; after this time without a record the end of the log is requested
_LOOK_S = 2.5  # between two checks whether the topic was recreated
_REQUEST_MS = 10_000  # less than callers wait, as a machine that is gone does not close connections
_MOST_BYTES = 1_048_576  # of the records of a batch, before compression


class UnacknowledgedError(ClusterError):
    """A record was sent, but no broker has acknowledged it. It may be written, as the answer may have been lost."""


class TopicLog:
    """Partition 0 of a topic, in order. Used on one event loop at a time.

    Its methods raise a ConfigurationError if a certificate or key cannot be used, or a package is missing.

    Args:
        client: how to reach the cluster.
        topic: its name; it exists.
        take: called with each record, and whether it was written before the log was first read: by this process at
            all, or since the topic was recreated or cut.
        skipped: called with a message for records that are too large for the memory, or damaged.

    Attributes:
        position: the offset after the last record that was read; -1 before the first read.
    """

    def __init__(
        self,
        client: ClientSettings,
        topic: str,
        take: Callable[[SourceRecord, bool], None],
        skipped: Callable[[str], None],
    ) -> None:
        self._client = client
        self._topic = topic
        self._partition = TopicPartition(topic, 0)
        self._take = take
        self._skipped = skipped
        self.position = -1
        self._new_from = 0
        self._id: str | None = None

    async def read(self, seconds: float) -> None:
        """Reads up to the current end of the log.

        Raises:
            ClusterError: it was not read within `seconds`.
        """
        end: int | None = None
        try:
            async with asyncio.timeout(seconds), self._reading() as reader:
                end = await self._end(reader.controls)
                while self.position < end:
                    await self._poll(reader)
        except TimeoutError as exc:
            so_far = "" if end is None else f", but up to offset {self.position:,} of {end:,}"
            raise ClusterError(
                f"topic {self._topic} was not read to its end within {seconds:.0f} s{so_far}", retriable=True
            ) from exc

    async def follow(self, ready: Callable[[], None]) -> Never:
        """Continues reading until it is cancelled. `ready` is called once the end was reached.

        Raises:
            ClusterError: the cluster failed, or the log was replaced; call this again.
        """
        async with self._reading() as reader:
            controls = reader.controls
            end = await self._end(controls)
            heard_s = looked_s = time.monotonic()
            while True:
                if self.position >= end:
                    ready()
                if await self._poll(reader):
                    heard_s = time.monotonic()
                elif time.monotonic() - heard_s > _QUIET_S:
                    controls.check_fetcher()
                    if await self._end(controls) < self.position:
                        raise ClusterError(f"topic {self._topic} is shorter than it was", retriable=True)
                    heard_s = time.monotonic()
                if time.monotonic() - looked_s > _LOOK_S:
                    await self._check_same(controls)
                    looked_s = time.monotonic()

    async def append(self, key: bytes, value: bytes) -> None:
        """Writes a record to all replicas that are in sync. It retries until it is cancelled, and not after that.

        Raises:
            UnacknowledgedError: no broker has acknowledged it.
            ClusterError: it was not written: no broker was reached, or it was refused.
        """
        async with writing_producer(self._client, request_timeout_ms=_REQUEST_MS) as producer:
            try:
                await producer.send_and_wait(self._topic, value, key=key, partition=0)
            except (KafkaError, OSError, TimeoutError) as exc:
                error = translated(exc, f"topic {self._topic}")
                if error.forbidden or isinstance(exc, MessageSizeTooLargeError):
                    raise error from exc
                raise UnacknowledgedError(str(error), retriable=error.retriable) from exc
            finally:
                await ProducerControls(producer).abandon()  # `stop` would keep trying until it is written

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[TopicReader]:
        """A reader of the log, for the duration of a block; it starts where the last one has ended."""
        consumer = topic_consumer(
            self._client,
            auto_offset_reset="none",
            request_timeout_ms=_REQUEST_MS,
            # A transaction that was left open must not hide later records.
            isolation_level="read_uncommitted",
        )
        consumer.assign([self._partition])
        allowed = "1 MiB in this topic"
        async with reading(consumer, self._topic, most_bytes=_MOST_BYTES, allowed=allowed) as reader:
            try:
                consumer.seek(self._partition, await self._begin(reader.controls))
                yield reader
            except OffsetOutOfRangeError as exc:
                raise ClusterError(
                    f"topic {self._topic} was recreated or cut: it has no record at offset {self.position:,}",
                    retriable=True,
                ) from exc

    async def _begin(self, controls: ConsumerControls) -> int:
        """The offset at which to continue: the beginning if the log is new, or was replaced."""
        first = (await controls.consumer.beginning_offsets([self._partition]))[self._partition]
        end = await self._end(controls)
        other = await self._other_id(controls)
        if other is not None:
            self._id, self.position = other, -1
        if not first <= self.position <= end:
            self.position, self._new_from = first, end
        return self.position

    async def _check_same(self, controls: ConsumerControls) -> None:
        """Checks that the topic was not recreated: the new topic may have grown past the position."""
        with contextlib.suppress(KafkaError, OSError):  # without an answer, nothing is known
            if await self._other_id(controls) is not None:
                raise ClusterError(f"topic {self._topic} was deleted and recreated", retriable=True)

    async def _other_id(self, controls: ConsumerControls) -> str | None:
        """The id of the topic, if it has changed; brokers before Kafka 2.8 report none."""
        found = await identities(controls.send, [self._topic])
        identity = found.get(self._topic)
        if identity is None and self._topic in found:
            raise ClusterError(f"topic {self._topic} does not exist any more", retriable=True)
        return None if identity is None or identity.id == self._id else identity.id

    async def _end(self, controls: ConsumerControls) -> int:
        return int((await controls.consumer.end_offsets([self._partition]))[self._partition])

    async def _poll(self, reader: TopicReader) -> bool:
        """Passes on the records that have arrived; False if there were none."""
        async for _, records in reader.poll(self._partition, timeout_ms=_POLL_MS):
            for record in records:
                if isinstance(record, UnreadBatch):
                    self._skipped(f"offset {record.first}: {record.error}")
                else:
                    self._take(record, record.offset < self._new_from)
        reached = reader.controls.position(self._partition)
        if reached is None or reached == self.position:
            return False
        self.position = reached
        return True
