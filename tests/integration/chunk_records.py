"""Chunks with which a test does as it likes, in topics, and what is committed of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete

from transforms.chunk import Chunking
from transforms.record import Record


def value_of(size: int, seed: int = 0) -> bytes:
    """Bytes that do not repeat, the same for the same seed."""
    return random.Random(seed).randbytes(size)


def plain(value: bytes | None) -> Record:
    """An ordinary record."""
    return Record(b"k", value)


def pieces(uuid: str, size: int, seed: int = 0, key: bytes | None = b"k") -> list[Record]:
    """The chunks of a message: two of 1,000 bytes, three of 2,000, five of 3,000."""
    return list(Chunking(1_000).split(Record(key, value_of(size, seed)), uuid))


def interleaved(messages: Sequence[Sequence[Record]], seed: int) -> Iterator[Record]:
    """The chunks of several messages, each in order, in a random order among them."""
    rng = random.Random(seed)
    queues = [list(message) for message in messages]
    while any(queues):
        yield rng.choice([queue for queue in queues if queue]).pop(0)


async def write(broker: str, topic: str, records: Sequence[Record], partition: int = 0) -> list[int]:
    """Writes records as they are, each as a batch of its own; gives their offsets."""
    async with AIOKafkaProducer(bootstrap_servers=broker, acks="all") as producer:
        return [
            (
                await producer.send_and_wait(
                    topic, r.value, r.key, partition, None if r.timestamp < 0 else r.timestamp, list(r.headers)
                )
            ).offset
            for r in records
        ]


async def delete_up_to(broker: str, topic: str, offset: int) -> None:
    """Kafka removes the records below an offset, as retention does."""
    admin = AIOKafkaAdminClient(bootstrap_servers=broker)
    await admin.start()
    await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=offset)})
    await admin.close()
