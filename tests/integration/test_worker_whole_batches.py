"""A worker and batches of all kinds: those that go whole, that are read anew, and that are taken apart."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.fetch import FetchRequest

from app.kafka.source_batch import decoded
from tests.built_batches import PACKERS, repacked, whole_batch
from tests.integration.topics import Found, end_offsets, read_all
from tests.integration.way import THRESHOLD, MakeWay, Way
from tests.integration.worker_process import WorkerProcess, until
from transforms.record import Header, Record, RecordLike
from transforms.record_batch import RecordBatch, pack, split

STAMP = 1_700_000_000_000
PARTITIONS = 2
ZSTD = 4  # its number
ONCE = {"processing.guarantee": "exactly_once", "transaction.boundary.interval.ms": 50}


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

    async def mixed(self, rng: random.Random, records: Mapping[int, list[Record]]) -> None:
        """All records of each partition, in batches of a few and of many, by each codec.

        Some are in transactions, between the batches of others, which are aborted.
        """
        options: dict[str, Any] = {"bootstrap_servers": self.broker, "max_request_size": _LARGE}
        rest = {partition: list(each) for partition, each in records.items()}
        packers = itertools.cycle(PACKERS)
        async with (
            AIOKafkaProducer(enable_idempotence=True, **options) as plain,
            AIOKafkaProducer(transactional_id=f"{self.topic}-kept", **options) as kept,
            AIOKafkaProducer(transactional_id=f"{self.topic}-lost", **options) as lost,
        ):
            while any(rest.values()):
                partition = rng.choice([each for each in rest if rest[each]])
                count = rng.choice((1, 3, 40, 150))
                taken, rest[partition] = rest[partition][:count], rest[partition][count:]
                packer = next(packers)
                self.rows[partition] += map(row, taken)
                self.codecs[partition] += [PACKERS[packer][0]] * len(taken)
                if rng.random() >= 0.2:
                    await self._send(plain, partition, packer, taken, transactional=False)
                    continue
                dropped = [Record(b"aborted", b"x" * 500, (), 1)] * rng.choice((1, 60))
                middle = len(taken) // 2
                await kept.begin_transaction()
                await lost.begin_transaction()
                for part in filter(None, (taken[:middle], taken[middle:])):
                    await self._send(kept, partition, packer, part, transactional=True)
                    await self._send(lost, partition, rng.choice([*PACKERS]), dropped, transactional=True)
                await lost.abort_transaction()
                await kept.commit_transaction()

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


def records(rng: random.Random, count: int, large: float = 0.0) -> list[Record]:
    """Records of all kinds, some of which are large; their values compress well, but for those."""
    made = []
    for number in range(count):
        value: bytes | None = b"%d," % rng.randrange(1_000) * rng.randrange(150)
        if rng.random() < 0.05:
            value = None
        elif rng.random() < large:
            value = rng.randbytes(rng.randrange(THRESHOLD + 1, 2 * THRESHOLD))
        headers: tuple[Header, ...] = (("n", b"%d" % number), ("n", None), ("\N{SNOWMAN}", b""))[: rng.randrange(4)]
        key = None if rng.random() < 0.1 else b"%d" % number
        made.append(Record(key, value, headers, STAMP + rng.randrange(-5, 5) * 1_000 + number))
    return made


def rows_of(found: Mapping[int, list[Found]]) -> dict[int, list[Row]]:
    """What was read."""
    return {
        partition: [(each.key, each.value, each.headers, each.timestamp) for each in each_of]
        for partition, each_of in found.items()
    }


def fed(way: Way, made: Mapping[int, list[Record]]) -> Feed:
    """Writes these records to the source, in mixed batches."""
    feed = Feed(way.broker, way.raw)
    asyncio.run(feed.mixed(random.Random(1), made))
    assert {partition: [row(each) for each in every] for partition, every in made.items()} == feed.rows
    return feed


@pytest.mark.parametrize("once", [{}, ONCE], ids=["at_least_once", "exactly_once"])
def test_offload_and_inflate_keep_all_of_mixed_batches(make_way: MakeWay, once: Mapping[str, object]) -> None:
    """Each record arrives once, in order and whole, large ones among small ones; each small one keeps its codec."""
    way = make_way(PARTITIONS)
    rng = random.Random(4)
    made = {partition: records(rng, 900, large=0.003) for partition in range(PARTITIONS)}
    feed = fed(way, made)
    with way.worker(**once) as worker:
        until(lambda: way.all_read("offload"), "all is offloaded")
        until(lambda: way.all_read("inflate"), "all is inflated")
        assert [page["restarts"] for page in worker.get("/pipelines")[1]] == [0, 0]
        assert worker.terminate() == 0
    assert rows_of(read_all(way.broker, way.inflated, "read_committed")) == feed.rows
    batches = {topic: batches_of(way.broker, topic) for topic in (way.raw, way.orders, way.inflated)}
    for partition, rows in feed.rows.items():
        for topic in (way.orders, way.inflated):
            found = zip(
                codecs_of(batches[topic][partition]), zip(feed.codecs[partition], rows, strict=True), strict=True
            )
            # The builder leaves out a compression that makes a batch longer, as it may one of few short records.
            kept = [(number, codec) for (number, came), (codec, sent) in found if came == sent and is_long(sent[1])]
            assert len(kept) > 300
            assert all(number == codec for number, codec in kept)
        came_out = {bytes(batch.data[57:]) for batch in batches[way.orders][partition]}
        large_enough = [batch for batch in batches[way.raw][partition] if batch.count > 90 and batch.fits(THRESHOLD)]
        assert len(large_enough) > 1
        assert {bytes(batch.data[57:]) for batch in large_enough} <= came_out


def is_long(value: bytes | None) -> bool:
    """Whether a value compresses, and is not offloaded."""
    return value is not None and 100 < len(value) < THRESHOLD


def test_codec_of_the_configuration_wins(make_way: MakeWay) -> None:
    """With `producer.compression.type` all batches have its codec, whichever they came with."""
    way = make_way(1)
    feed = fed(way, {0: records(random.Random(5), 600)})
    with WorkerProcess(way.folder, way.settings(), way.offload(**{"producer.compression.type": "zstd"})) as worker:
        until(lambda: way.all_read("offload"), "all is read")
        assert worker.terminate() == 0
    assert rows_of(read_all(way.broker, way.orders)) == feed.rows
    assert {batch.codec for batch in batches_of(way.broker, way.orders)[0] if batch.count > 3} == {ZSTD}
