"""Exactly once, with processes: workers that are killed, paused, joined and stopped while records flow.

A reader of committed records sees each one once, in the order in which it was sent. That others were written and
aborted is looked at too: else a test could not have failed. `make chaos` kills more often, and sends more.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.integration.topics import read_all
from tests.integration.way import MakeTopic
from tests.integration.worker_process import WorkerProcess, until
from transforms.chunk import Chunk, is_chunk

PARTITIONS = 2
THRESHOLD = 20_000
KILLS = {"short": 6, "long": 200}
RECORDS = {"short": 200, "long": 5_000}  # between two moves of the group
STAMP = 1_700_000_000_000
ONCE = {"processing.guarantee": "exactly_once"}

Row = tuple[bytes | None, str]  # key, and SHA-256 of the value


class Traffic:
    """Sends records of all sizes until it is told to stop.

    Attributes:
        rows: what was sent, by partition, in order.
    """

    def __init__(self, broker: str, topic: str, seed: int, *, every_s: float = 0.02) -> None:
        self.rows: dict[int, list[Row]] = defaultdict(list)
        self._broker = broker
        self._topic = topic
        self._rng = random.Random(seed)
        self._every_s = every_s
        self._stopped = False

    @property
    def count(self) -> int:
        """How many were sent."""
        return sum(map(len, self.rows.values()))

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        """Sends while the block runs; all is durable when it ends."""
        async with AIOKafkaProducer(
            bootstrap_servers=self._broker, enable_idempotence=True, max_request_size=2**20
        ) as producer:
            task = asyncio.create_task(self._send(producer))
            try:
                yield
            finally:
                self._stopped = True
                await task
                await producer.flush()

    async def _send(self, producer: AIOKafkaProducer) -> None:
        while not self._stopped:
            for _ in range(12):
                partition = self._rng.randrange(PARTITIONS)
                large = self._rng.random() < 0.04
                size = self._rng.randrange(THRESHOLD + 1, 4 * THRESHOLD) if large else self._rng.randrange(200)
                key = b"%d-%d" % (partition, len(self.rows[partition]))
                value = self._rng.randbytes(size)
                self.rows[partition].append((key, hashlib.sha256(value).hexdigest()))
                await producer.send(self._topic, value, key, partition, STAMP)
            await asyncio.sleep(self._every_s)


@asynccontextmanager
async def ends_of(broker: str, *topics: str) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer of topics, to ask where they end."""
    async with AIOKafkaConsumer(bootstrap_servers=broker, enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS)])
        yield consumer


async def end_of(consumer: AIOKafkaConsumer, *partitions: TopicPartition) -> int:
    """All that stands in its topics, or in some partitions, whether committed, aborted, or the mark of either."""
    return sum((await consumer.end_offsets(list(partitions or consumer.assignment()))).values())


async def more(consumer: AIOKafkaConsumer, count: int, *partitions: TopicPartition) -> None:
    """Waits until so much more stands there."""
    before = await end_of(consumer, *partitions)
    async with asyncio.timeout(60):
        while await end_of(consumer, *partitions) < before + count:  # noqa: ASYNC110  # nobody tells but the broker
            await asyncio.sleep(0.01)


def rows(broker: str, topic: str, isolation: str = "read_committed") -> dict[int, list[Row]]:
    """Keys and digests, by partition, in order."""
    found = read_all(broker, topic, isolation)
    return {
        partition: [(record.key, hashlib.sha256(record.value or b"").hexdigest()) for record in records]
        for partition, records in found.items()
    }


async def whole(broker: str, topic: str, traffic: Traffic, worker: WorkerProcess) -> None:
    """Waits until readers of committed records have as many as were sent."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    async with AIOKafkaConsumer(bootstrap_servers=broker, isolation_level="read_committed") as consumer:
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        found = 0
        async with asyncio.timeout(120):
            while found < traffic.count:
                assert worker.process is not None
                assert worker.process.poll() is None, "the worker has ended"
                found += sum(map(len, (await consumer.getmany(timeout_ms=200)).values()))


def assert_once(found: Mapping[int, Sequence[object]], sent: Mapping[int, Sequence[object]]) -> None:
    """Each record is there once, in order; says where that ends."""
    assert found.keys() == sent.keys()
    for partition, wanted in sent.items():
        own = found[partition]
        at = next((i for i, (a, b) in enumerate(zip(own, wanted, strict=False)) if a != b), min(len(own), len(wanted)))
        told = f"{own[at - 2 : at + 3]} instead of {wanted[at - 2 : at + 3]}"
        assert at == len(own) == len(wanted), f"partition {partition}: {len(own)} for {len(wanted)}, at {at} {told}"


def keys_of(found: Mapping[int, Sequence[Row]]) -> dict[int, list[bytes | None]]:
    """The keys alone."""
    return {partition: [key for key, _ in each] for partition, each in found.items()}


def chunked_keys(broker: str, topic: str) -> dict[int, list[bytes | None]]:
    """The keys of a topic in which values are chunks, each of which is asserted to be there once, in order."""
    keys: dict[int, list[bytes | None]] = {}
    for partition, records in read_all(broker, topic, "read_committed").items():
        open_: dict[str, int] = {}
        keys[partition] = []
        for record in records:
            if not is_chunk(record.headers):
                keys[partition].append(record.key)
                continue
            chunk, _ = Chunk.parse(record)
            assert chunk.id == open_.pop(chunk.uuid, 0)
            if chunk.id == chunk.count - 1:
                keys[partition].append(record.key)
            else:
                open_[chunk.uuid] = chunk.id + 1
        assert not open_
    return keys


class Road:
    """Topics, and pipelines between them that deliver exactly once."""

    def __init__(self, broker: str, make_topic: MakeTopic, folder: Path, session_ms: int) -> None:
        self.broker = broker
        self._folder = folder
        self._session_ms = session_ms
        forever = {"retention.ms": "-1"}
        self.raw, self.orders, self.inflated, self.chunked, self.whole = (
            make_topic(PARTITIONS, **forever) for _ in range(5)
        )
        (folder / "store").mkdir()
        self._store = {
            "large.message.payload.store.class": "filesystem",
            "filesystem.root": str(folder / "store"),
            "filesystem.fsync": False,
            "large.message.threshold.bytes": THRESHOLD,
        }

    def worker(self, *names: str, **keys: object) -> WorkerProcess:
        """A worker with these pipelines."""
        small = {"chunk.max.bytes": THRESHOLD, "chunk.max.message.bytes": 1_000_000}
        pipelines: Mapping[str, Mapping[str, object]] = {
            "offload": {**self._pipeline("offload", self.raw, self.orders), **self._store},
            "inflate": {**self._pipeline("inflate", self.orders, self.inflated), **self._store},
            "chunk": {**self._pipeline("chunk", self.raw, self.chunked), **small},
            "assemble": {**self._pipeline("assemble", self.chunked, self.whole), **small},
        }
        settings = {
            "bootstrap.servers": self.broker,
            "consumer.session.timeout.ms": self._session_ms,
            "consumer.heartbeat.interval.ms": 300,
        }
        return WorkerProcess(self._folder, settings, {name: {**pipelines[name], **ONCE, **keys} for name in names})

    def _pipeline(self, name: str, source: str, sink: str) -> dict[str, object]:
        return {"topics": [source], "output.topic": sink, "transforms": [name], "group.id": f"{self.raw}-{name}"}


@pytest.fixture
def road(broker: str, make_topic: MakeTopic, tmp_path: Path, least_session_ms: int) -> Road:
    """The topics of one test."""
    return Road(broker, make_topic, tmp_path, least_session_ms)


@pytest.mark.chaos
@pytest.mark.parametrize("boundary", ["poll", "interval"])
async def test_each_record_once_after_kills(road: Road, rng: random.Random, chaos: str, boundary: str) -> None:
    """After `kill -9` at random moments each record, small, offloaded or in chunks, is there once, in order."""
    traffic = Traffic(road.broker, road.raw, rng.randrange(2**32), every_s=0.04)
    sinks = (road.orders, road.inflated, road.chunked, road.whole)
    # A static member has its partitions again at once, whoever else has not noticed that it was gone.
    static = {"consumer.group.instance.id": "only", "consumer.session.timeout.ms": 10_000}
    # While records flow, one that ends by time is nearly always open, for a kill to leave behind.
    open_ = {"transaction.boundary.type": boundary, "transaction.boundary.interval.ms": 200}
    with road.worker("offload", "inflate", "chunk", "assemble", **static, **open_) as worker:
        async with ends_of(road.broker, *sinks) as ends, traffic.flowing():
            for kill in range(KILLS[chaos]):
                # One in five while it starts, the others while it writes to one of the sinks.
                if kill % 5:
                    sink = sinks[kill % 5 - 1]
                    await more(ends, 1, *(TopicPartition(sink, number) for number in range(PARTITIONS)))
                # The moment is what is random here; nothing waits for this time to pass.
                await asyncio.sleep(rng.random() * 0.3)
                await asyncio.to_thread(worker.kill)
                worker.start()
        await whole(road.broker, road.inflated, traffic, worker)
        await whole(road.broker, road.whole, traffic, worker)
        assert await asyncio.to_thread(worker.terminate) == 0
    aborted = {}
    for sink in (road.inflated, road.whole):
        assert_once(await asyncio.to_thread(rows, road.broker, sink), traffic.rows)
        uncommitted = await asyncio.to_thread(rows, road.broker, sink, "read_uncommitted")
        aborted[sink] = sum(map(len, uncommitted.values())) - traffic.count
    keys = keys_of(traffic.rows)
    assert_once(keys_of(await asyncio.to_thread(rows, road.broker, road.orders)), keys)
    assert_once(await asyncio.to_thread(chunked_keys, road.broker, road.chunked), keys)
    print(f"{traffic.count:,} records, {KILLS[chaos]} kills; aborted {aborted}")  # noqa: T201
    assert boundary == "poll" or any(aborted.values())


@pytest.mark.chaos
async def test_zombie_is_fenced(road: Road, rng: random.Random, chaos: str) -> None:
    """A worker that is paused until its partitions are another's writes nothing when it wakes, and joins again."""
    traffic = Traffic(road.broker, road.raw, rng.randrange(2**32))
    zombie = road.worker(
        "offload", **{"transaction.boundary.type": "interval", "transaction.boundary.interval.ms": 30_000}
    )
    other = road.worker("offload")
    with zombie, other:
        async with ends_of(road.broker, road.orders) as ends, traffic.flowing():
            await asyncio.to_thread(zombie.wait_ready)
            await asyncio.to_thread(other.wait_ready)
            await asyncio.to_thread(until, lambda: len(partitions_of(zombie)) == 1, "each has its part")
            # It stops with a transaction that is open, and has records.
            own = TopicPartition(road.orders, partitions_of(zombie)[0])
            await more(ends, 20, own)
            assert zombie.process is not None
            os.kill(zombie.process.pid, signal.SIGSTOP)
            await asyncio.to_thread(until, lambda: len(partitions_of(other)) == PARTITIONS, "the other has all")
            await more(ends, RECORDS[chaos], own)
            os.kill(zombie.process.pid, signal.SIGCONT)
            await asyncio.to_thread(until, lambda: restarts_of(zombie) == 1, "the zombie has begun again")
            await asyncio.to_thread(zombie.wait_ready)
            await asyncio.to_thread(until, lambda: len(partitions_of(other)) < PARTITIONS, "it has its part again")
        assert await asyncio.to_thread(zombie.terminate) == 0
        await whole(road.broker, road.orders, traffic, other)
        assert await asyncio.to_thread(other.terminate) == 0
        log = zombie.log.read_text()
    assert "another producer has the transactional.id now" in log
    assert "Traceback" not in log
    assert_once(keys_of(await asyncio.to_thread(rows, road.broker, road.orders)), keys_of(traffic.rows))
    uncommitted = await asyncio.to_thread(rows, road.broker, road.orders, "read_uncommitted")
    assert sum(map(len, uncommitted.values())) > traffic.count


@pytest.mark.chaos
async def test_rebalance_aborts_nothing(road: Road, rng: random.Random, chaos: str) -> None:
    """Workers that join and stop while records flow finish what they hold: each is written once, and none aborted."""
    traffic = Traffic(road.broker, road.raw, rng.randrange(2**32))
    patient = {"consumer.session.timeout.ms": 10_000}  # nobody is to be taken for dead, however slow the machine is
    first, second = road.worker("offload", **patient), road.worker("offload", **patient)
    with first, second:
        async with ends_of(road.broker, road.orders) as ends, traffic.flowing():
            for worker in (first, second):
                await asyncio.to_thread(worker.wait_ready)
                await more(ends, RECORDS[chaos])
            assert await asyncio.to_thread(first.terminate) == 0
            await asyncio.to_thread(until, lambda: len(partitions_of(second)) == PARTITIONS, "the second has all")
            await more(ends, RECORDS[chaos])
            first.start()
            await asyncio.to_thread(until, lambda: len(partitions_of(first)) == 1, "the first has its part again")
            await more(ends, RECORDS[chaos])
        await whole(road.broker, road.orders, traffic, first)
        assert [await asyncio.to_thread(each.terminate) for each in (first, second)] == [0, 0]
        assert "restarts in" not in first.log.read_text() + second.log.read_text()
    for isolation in ("read_committed", "read_uncommitted"):
        found = await asyncio.to_thread(rows, road.broker, road.orders, isolation)
        assert_once(keys_of(found), keys_of(traffic.rows))


def partitions_of(worker: WorkerProcess) -> list[int]:
    """What the one pipeline of a worker has been given."""
    status, pipelines = worker.get("/pipelines")
    return [each["partition"] for each in pipelines[0]["partitions"]] if status == 200 else []


def restarts_of(worker: WorkerProcess) -> int:
    """How often the one pipeline of a worker has begun again."""
    status, pipelines = worker.get("/pipelines")
    return int(pipelines[0]["restarts"]) if status == 200 else 0
