"""Records written to and read from real topics, whole."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.built_batches import raw_batch
from tests.integration.offsets import committed, end_offsets, marks
from transforms.record import Header, Record

__all__ = ["Counted", "Found", "Sent", "committed", "end_offsets", "marks", "read_all", "send", "write_raw"]

_LARGE = 64 * 1024 * 1024
_COMMITTED = 1  # of the levels of isolation


@dataclass(frozen=True, slots=True)
class Found:
    """A record as it stands in a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp: int


Sent = tuple[int, bytes | None, bytes | None, Sequence[Header], int]


async def _send(bootstrap: str, topic: str, records: Iterable[Sent], batch_bytes: int, request_ms: int) -> None:
    # Batches take what `send` refuses: a key and a value that are both null.
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=True,
        max_batch_size=batch_bytes,
        request_timeout_ms=request_ms,
    ) as producer:
        batches: dict[int, Any] = {}
        futures = []
        for partition, key, value, headers, timestamp in records:
            batch = batches.setdefault(partition, producer.create_batch())
            while batch.append(timestamp=timestamp, key=key, value=value, headers=list(headers)) is None:
                futures.append(await producer.send_batch(batch, topic, partition=partition))
                batch = batches[partition] = producer.create_batch()
        for partition, batch in batches.items():
            batch.close()
            futures.append(await producer.send_batch(batch, topic, partition=partition))
        await asyncio.gather(*futures)


def send(
    bootstrap: str, topic: str, records: Iterable[Sent], batch_bytes: int = 1_000_000, *, request_ms: int = 40_000
) -> None:
    """Writes (partition, key, value, headers, timestamp) in order, and waits until all are durable."""
    asyncio.run(_send(bootstrap, topic, records, batch_bytes, request_ms))


async def write_raw(bootstrap: str, topic: str, records: Iterable[Record]) -> None:
    """Writes records to partition 0, each in a batch of its own, whatever the names of their headers."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True) as producer:
        for record in records:
            await (await producer.send_batch(raw_batch([record]), topic, partition=0))


@contextlib.asynccontextmanager
async def _started(bootstrap: str, **options: Any) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer, closed also if its start fails. aiokafka leaves it open then, and a later test gets the warning."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, **options)
    try:
        await consumer.start()
        yield consumer
    finally:
        await consumer.stop()


async def _read_all(bootstrap: str, topic: str, isolation: str) -> dict[int, list[Found]]:
    ends = end_offsets(bootstrap, topic)
    found: dict[int, list[Found]] = defaultdict(list)
    partitions = [TopicPartition(topic, number) for number, end in ends.items() if end]
    if not partitions:
        return found  # a consumer that stops as soon as it has started may raise CancelledError
    async with _started(bootstrap, max_partition_fetch_bytes=_LARGE, isolation_level=isolation) as consumer:
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        while any([await consumer.position(partition) < ends[partition.partition] for partition in partitions]):
            for partition, records in (await consumer.getmany(timeout_ms=500)).items():
                found[partition.partition] += [
                    Found(r.partition, r.offset, r.key, r.value, tuple(r.headers), r.timestamp) for r in records
                ]
    return found


def read_all(bootstrap: str, topic: str, isolation: str = "read_uncommitted") -> dict[int, list[Found]]:
    """Every record of a topic up to its end as it was at the call, by partition, in order.

    With `read_committed` it waits until no transaction is open below that.
    """
    return asyncio.run(asyncio.wait_for(_read_all(bootstrap, topic, isolation), 120))


class Counted:
    """Counts the records of a topic that readers of committed records see, and reads each of them once for that.

    Attributes:
        rows: keys and digests of those that were counted, by partition, in order.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._next: dict[TopicPartition, int] = {}
        self.rows: dict[int, list[tuple[bytes | None, str]]] = defaultdict(list)

    def total(self) -> int:
        """How many there are by now."""
        asyncio.run(asyncio.wait_for(self._read(), 120))
        return sum(map(len, self.rows.values()))

    async def _read(self) -> None:
        below = end_offsets(self._bootstrap, self._topic, isolation=_COMMITTED)
        ends = {TopicPartition(self._topic, number): end for number, end in below.items()}
        partitions = [partition for partition, end in ends.items() if self._next.get(partition, 0) < end]
        if not partitions:
            return
        async with _started(
            self._bootstrap, max_partition_fetch_bytes=_LARGE, isolation_level="read_committed"
        ) as consumer:
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, self._next.get(partition, 0))
            while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
                for partition, records in (await consumer.getmany(timeout_ms=500)).items():
                    rows = [(record.key, hashlib.sha256(record.value or b"").hexdigest()) for record in records]
                    self.rows[partition.partition] += rows
            for partition in partitions:
                self._next[partition] = await consumer.position(partition)
