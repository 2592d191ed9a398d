"""The topics of a benchmark: made, filled, watched, and compared."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, for_code
from aiokafka.partitioner import DefaultPartitioner
from kafka import KafkaAdminClient

from benchmarks import digests, source
from benchmarks.digests import Digester, Digests
from benchmarks.source import Batches
from transforms.record import RecordLike

PARTITIONS = 4
_UNLIMITED_BYTES = 2**31 - 1
_LOAD_BATCH_BYTES = 262_144
_KNOWN_S = 30.0


class Watch:
    """The number of records in a topic, asked of the broker without reading a record."""

    def __init__(self, consumer: AIOKafkaConsumer, partitions: list[TopicPartition]) -> None:
        self._consumer = consumer
        self._partitions = partitions

    async def count(self) -> int:
        """Records that the topic has now: the sum of its end offsets."""
        ends = await self._consumer.end_offsets(self._partitions)
        return int(sum(ends.values()))


class CommitWatch:
    """How far a group has come in a topic: the sum of what it has committed."""

    def __init__(self, admin: AIOKafkaAdminClient, group: str, partitions: list[TopicPartition]) -> None:
        self._admin = admin
        self._group = group
        self._partitions = partitions

    async def count(self) -> int:
        """Records of the topic before the committed offsets; of one without transactions, whose log has no markers."""
        try:
            found = await self._admin.list_consumer_group_offsets(self._group, partitions=self._partitions)
        except KafkaError:  # there is no such group yet, or no coordinator
            return 0
        return sum(max(0, commit.offset) for commit in found.values())


class Topics:
    """Topics on one cluster, deleted when the block ends.

    Args:
        bootstrap: `host:port` of the cluster.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        self._made: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        await self._admin.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.delete(*self._made)
        await self._admin.close()

    async def make(self, what: str, *, max_message_bytes: int = 1_048_588, partitions: int = PARTITIONS) -> str:
        """A new topic; `what` is part of its name.

        Raises:
            KafkaError: the cluster refused.
        """
        name = f"bench-{what}-{uuid.uuid4().hex[:8]}"
        config = {"max.message.bytes": str(max_message_bytes), "retention.ms": "-1"}
        answer = await self._admin.create_topics([NewTopic(name, partitions, 1, topic_configs=config)])
        for _, code, *rest in answer.topic_errors:
            if code:
                raise for_code(code)(*rest)
        self._made[name] = partitions
        return name

    async def delete(self, *names: str) -> None:
        """Deletes topics that `make` made."""
        if names:
            await self._admin.delete_topics(list(names))
            for name in names:
                self._made.pop(name, None)

    async def load(self, topic: str, records: Iterable[tuple[bytes, bytes]]) -> Digests:
        """Writes (key, value) records, each to the partition that its key decides, and waits until all are durable.

        Returns:
            What `digests` finds in a topic that has the same records.
        """
        digester = Digester()
        numbers = list(range(self._made[topic]))
        partition_of = DefaultPartitioner()
        async with AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            enable_idempotence=True,
            max_batch_size=_LOAD_BATCH_BYTES,
            max_request_size=_UNLIMITED_BYTES,
        ) as producer:
            futures = []
            for key, value in records:
                partition = partition_of(key, numbers, numbers)
                digester.add(partition, key, value)
                futures.append(await producer.send(topic, value, key, partition=partition))
            await asyncio.gather(*futures)
        return digester.result()

    async def write(self, topic: str, records: Iterable[RecordLike], *, partition: int) -> None:
        """Writes whole records to one partition, in order, and waits until all are durable."""
        async with AIOKafkaProducer(
            bootstrap_servers=self.bootstrap, acks="all", enable_idempotence=True, max_request_size=_UNLIMITED_BYTES
        ) as producer:
            futures = [
                await producer.send(
                    topic,
                    record.value,
                    record.key,
                    partition=partition,
                    timestamp_ms=record.timestamp,
                    headers=list(record.headers),
                )
                for record in records
            ]
            await asyncio.gather(*futures)

    @asynccontextmanager
    async def watch(self, topic: str, *partitions: int) -> AsyncIterator[Watch]:
        """A watch on the topic, or on some partitions of it, for the block."""
        consumer = await self._consumer(topic, paused=True)
        try:
            watched = sorted(consumer.assignment())
            yield Watch(consumer, [each for each in watched if not partitions or each.partition in partitions])
        finally:
            await consumer.stop()

    @asynccontextmanager
    async def watch_commits(self, group: str, topic: str) -> AsyncIterator[CommitWatch]:
        """A watch on what a group commits of the topic, for the block."""
        yield CommitWatch(self._admin, group, self._partitions(topic))

    def _partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in range(self._made[topic])]

    async def read(self, topic: str) -> AsyncIterator[Any]:
        """Every committed record up to the end as it is at the call; in order within a partition."""
        consumer = await self._consumer(topic, paused=False)
        try:
            partitions = consumer.assignment()
            left = {p: end for p, end in (await consumer.end_offsets(list(partitions))).items() if end}
            while left:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    for record in records:
                        yield record
                # Behind the last record there may be the mark of a transaction.
                left = {p: end for p, end in left.items() if await consumer.position(p) < end}
        finally:
            await consumer.stop()

    async def digests(self, topic: str) -> Digests:
        """What the topic has, see `benchmarks.digests`."""
        return await asyncio.to_thread(digests.read, self.bootstrap, topic, self._made[topic])

    async def fill(self, topic: str, count: int, batches: Batches) -> tuple[Digests, float]:
        """Writes small records in batches of one kind, see `benchmarks.source.fill`."""
        return await asyncio.to_thread(source.fill, self.bootstrap, topic, self._made[topic], count, batches)

    async def size_bytes(self, topic: str) -> int:
        """What the log of the topic takes on the brokers, without its indexes."""
        return await asyncio.to_thread(_size_bytes, self.bootstrap, topic)

    async def _consumer(self, topic: str, *, paused: bool) -> AIOKafkaConsumer:
        partitions = self._partitions(topic)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            max_partition_fetch_bytes=8 * 2**20,
        )
        await consumer.start()
        consumer.assign(partitions)
        if paused:
            consumer.pause(*partitions)
        async with asyncio.timeout(_KNOWN_S):
            while True:
                try:
                    await consumer.end_offsets(partitions)
                    return consumer
                except KafkaError:  # the brokers may not know a new topic yet
                    await asyncio.sleep(0.05)


def _size_bytes(bootstrap: str, topic: str) -> int:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        return sum(
            partition["partition_size"]
            for broker in admin.describe_log_dirs([topic])
            for folder in broker["log_dirs"]
            for each in folder["topics"]
            for partition in each["partitions"]
        )
    finally:
        admin.close()
