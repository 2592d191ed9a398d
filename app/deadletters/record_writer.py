"""The writer of replayed records."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from app.config.settings import ClientSettings
from app.kafka.batches.raw import raw_batch
from app.kafka.clients import translated, writing_producer
from app.kafka.sender import BATCH_BYTES
from app.kafka.topics import Topic
from transforms.batch_size import BATCH_OVERHEAD_BYTES, batch_of_one_bytes
from transforms.record import Record, RecordLike
from transforms.record_format import is_writable, serialize

__all__ = ["RecordWriter", "open_writer", "size_alone"]


class RecordWriter:
    """Writes records to partitions, in order. Use `open_writer`."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def write(self, records: Sequence[tuple[Topic, int, RecordLike]]) -> None:
        """Writes all, and waits until they are durable.

        Args:
            records: each with its topic and its partition.

        Raises:
            ClusterError: some may not be durable.
        """
        try:
            futures = [
                await self._producer.send_batch(raw_batch(batch), topic.name, partition=partition)
                for topic, partition, batch in _batches(records)
            ]
            await asyncio.gather(*futures)
        except KafkaError as exc:
            raise translated(exc, "writing") from exc


def _batches(records: Sequence[tuple[Topic, int, RecordLike]]) -> Iterator[tuple[Topic, int, Sequence[RecordLike]]]:
    """The records in batches that their topics take; the records of a partition stay in order."""
    batches: dict[tuple[Topic, int], list[RecordLike]] = defaultdict(list)
    sizes: Counter[tuple[Topic, int]] = Counter()
    for topic, partition, record in records:
        key = topic, partition
        size = size_alone(record)
        if sizes[key] + size > min(BATCH_BYTES, topic.max_message_bytes) and batches[key]:
            yield *key, batches.pop(key)
            sizes[key] = 0
        batches[key].append(record)
        sizes[key] += size
    for key, batch in batches.items():
        yield *key, batch


def size_alone(record: RecordLike) -> int:
    """As the function of `transforms.batch_size`, also for a record that has a header whose name is not UTF-8."""
    if is_writable(record):
        return batch_of_one_bytes(record)
    return BATCH_OVERHEAD_BYTES + len(serialize(Record(record.key, record.value, record.headers, 0)))


@asynccontextmanager
async def open_writer(client: ClientSettings) -> AsyncIterator[RecordWriter]:
    """A writer; it is closed at the end of the block.

    Raises:
        ClusterError: the producer cannot start.
    """
    async with writing_producer(client) as producer:
        yield RecordWriter(producer)
