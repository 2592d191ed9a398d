"""Batches of several producers, written and read as they are: each codec, transactions, and aborted ones."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.fetch import FetchRequest

from app.kafka.source_batch import decoded
from tests.built_batches import PACKERS, repacked, whole_batch
from tests.integration.offsets import end_offsets
from transforms.record import Record, RecordLike
from transforms.record_batch import RecordBatch, pack, split

__all__ = ["Feed", "Row", "batches_of", "codecs_of", "row"]

_LARGE = 1 << 26

Row = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]


def row(record: RecordLike) -> Row:
    """What has to arrive of a record."""
    return record.key, record.value, tuple(record.headers), record.timestamp


@dataclass(slots=True)
class Feed:
    """Writes batches to one topic, by producers with and without transactions.

    Attributes:
        rows: the records that readers of committed records see, by partition, in order.
        codecs: the number of the codec of each of them.
    """

    broker: str
    topic: str
    rows: dict[int, list[Row]] = field(default_factory=lambda: defaultdict(list))
    codecs: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    _plain: AIOKafkaProducer = None
    _transactional: list[AIOKafkaProducer] = field(default_factory=list)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """The producers live as long as the block."""
        async with AsyncExitStack() as stack:
            make = AIOKafkaProducer
            self._plain = await stack.enter_async_context(
                make(bootstrap_servers=self.broker, enable_idempotence=True, max_request_size=_LARGE)
            )
            self._transactional = [
                await stack.enter_async_context(
                    make(bootstrap_servers=self.broker, transactional_id=f"{self.topic}-{n}", max_request_size=_LARGE)
                )
                for n in range(2)
            ]
            yield

    async def write(self, partition: int, packer: str, records: Sequence[Record]) -> None:
        """A batch of a producer without transactions."""
        await self._send(self._plain, partition, packer, records, transactional=False)
        self._note(partition, packer, records)

    async def transactions(
        self,
        partition: int,
        first: Sequence[tuple[str, Sequence[Record]]],
        second: Sequence[tuple[str, Sequence[Record]]],
    ) -> None:
        """Two transactions whose batches lie between each other: the first is committed, the second is aborted."""
        kept, lost = self._transactional
        await kept.begin_transaction()
        await lost.begin_transaction()
        for (packer, records), (other, dropped) in zip(first, second, strict=True):
            await self._send(kept, partition, packer, records, transactional=True)
            await self._send(lost, partition, other, dropped, transactional=True)
            self._note(partition, packer, records)
        await lost.abort_transaction()
        await kept.commit_transaction()

    async def mixed(self, rng: random.Random, partitions: int, records: Mapping[int, list[Record]]) -> None:
        """All records of each partition, in batches of a few and of many, by each codec; with transactions between."""
        rest = {partition: list(each) for partition, each in records.items()}
        packers = list(PACKERS)
        turn = 0
        while any(rest.values()):
            partition = rng.choice([each for each in range(partitions) if rest[each]])
            count = rng.choice((1, 3, 40, 150))
            taken, rest[partition] = rest[partition][:count], rest[partition][count:]
            packer = packers[turn % len(packers)]
            turn += 1
            if rng.random() < 0.2:
                dropped = [Record(b"aborted", b"x" * 500, (), 1)] * rng.choice((1, 60))
                middle = len(taken) // 2
                parts = [(packer, part) for part in (taken[:middle], taken[middle:]) if part]
                await self.transactions(partition, parts, [(rng.choice(packers), dropped) for _ in parts])
            else:
                await self.write(partition, packer, taken)

    def _note(self, partition: int, packer: str, records: Sequence[Record]) -> None:
        self.rows[partition] += map(row, records)
        self.codecs[partition] += [PACKERS[packer][0]] * len(records)

    async def _send(
        self, producer: AIOKafkaProducer, partition: int, packer: str, records: Sequence[Record], *, transactional: bool
    ) -> None:
        batch = RecordBatch.read(memoryview(repacked(bytes(pack(records)), packer)))
        builder = whole_batch(batch, transactional=transactional)
        await (await producer.send_batch(builder, self.topic, partition=partition))


async def _fetch(broker: str, topic: str, ends: Mapping[int, int]) -> dict[int, list[RecordBatch]]:
    client = AIOKafkaClient(bootstrap_servers=broker)
    found: dict[int, list[RecordBatch]] = {partition: [] for partition in ends}
    try:
        await client.bootstrap()
        await client.add_topic(topic)
        async with asyncio.timeout(30):
            for partition, end in ends.items():
                offset = 0
                while offset < end:
                    leader = client.cluster.leader_for_partition(TopicPartition(topic, partition))
                    wanted = [(topic, [(partition, offset, _LARGE)])]
                    response = await client.send(leader, FetchRequest(100, 1, _LARGE, 0, wanted))
                    ((_, ((_, code, *rest),)),) = response.topics
                    assert code == 0
                    for piece in split(memoryview(rest[-1])):
                        found[partition].append(RecordBatch.read(memoryview(bytes(piece))))
                        offset = found[partition][-1].last_offset + 1
    finally:
        await client.close()
    return found


def batches_of(broker: str, topic: str) -> dict[int, list[RecordBatch]]:
    """The batches of a topic as they are in its log, but for the marks of transactions, by partition."""
    found = asyncio.run(_fetch(broker, topic, end_offsets(broker, topic)))
    return {partition: [batch for batch in batches if not batch.control] for partition, batches in found.items()}


def codecs_of(batches: Sequence[RecordBatch]) -> list[tuple[int, Row]]:
    """Each record of batches with the number of its codec."""
    return [(batch.codec, row(each)) for batch in batches for _, each in decoded(batch)]
