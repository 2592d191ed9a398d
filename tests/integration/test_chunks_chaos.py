"""Chunks in bulk and in disorder: many producers, values of up to 30 MB, and workers that are killed at random.

What is promised is held record by record. One life of a worker, from its start to its kill, writes the records of a
source partition in order and leaves none out. It begins at what was committed, and writes nothing of what was noted
beside that. So each record in a sink is the one that follows, or is one step back, to where a kill found the commit.

`make test` runs each test at a small volume, `make chaos` at a large one. It prints the seed; `make chaos SEED=N` has
the same chance again. The values of its first test have 3.6 GB, in two topics: 7 GB of disk, until it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from app.chunks import ChunkedRecordMetadata, ChunkingProducer
from tests.integration.limits import alter_configs
from tests.integration.topics import end_offsets, marks
from tests.integration.way import MakeTopic
from tests.integration.worker_process import WorkerProcess, until
from transforms.chunk import Chunk, is_chunk
from transforms.commit_metadata import noted

PARTITIONS = 3
SMALLEST, LARGEST = 1_100_000, 30_000_000  # bytes; the least is more than a record of Kafka's default limit
PENDING = 400_000_000  # bytes; more than the largest message of each producer takes
STAMP = 1_700_000_000_000
SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Volume:
    """How much a test does.

    Attributes:
        producers: that send beside each other.
        messages: of each producer, in chunks.
        small: records beside each message, of each producer.
        largest: bytes of the largest message.
        kills: of a worker, or of one or both where there are two.
    """

    producers: int
    messages: int
    small: int
    largest: int
    kills: int = 0

    @property
    def count(self) -> int:
        """All records and messages."""
        return self.producers * self.messages * (1 + self.small)


JOINED = {"short": Volume(8, 3, 8, 6_000_000, kills=3), "long": Volume(8, 50, 25, LARGEST, kills=20)}
SPLIT_AND_JOINED = {"short": Volume(6, 3, 8, 4_000_000, kills=5), "long": Volume(8, 12, 25, LARGEST, kills=30)}
LIMITED = {"short": Volume(4, 3, 8, 3_000_000), "long": Volume(8, 12, 25, 6_000_000)}

Row = tuple[bytes, str]  # key, and SHA-256 of the value
Unit = tuple[bytes, str, int, int]  # key, uuid, which chunk, of how many

_BLOCK = random.Random(0).randbytes(LARGEST)


@dataclass(frozen=True, slots=True)
class Kill:
    """What stood in the cluster just after a kill, by partition.

    Attributes:
        delivered: all that ended below this offset of the source was delivered, as the commit says.
        end: the end of the sink.
    """

    delivered: dict[int, int]
    end: dict[int, int]


@dataclass(slots=True)
class Sent:
    """What producers were told, by partition.

    Attributes:
        rows: what is durable, with the offset of the record, or of the last chunk.
        spans: the offsets of the first and the last chunk of messages.
        size: bytes of all values.
    """

    rows: dict[int, list[tuple[int, Row]]] = field(default_factory=lambda: defaultdict(list))
    spans: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    size: int = 0

    def interleaved(self) -> int:
        """How many messages have chunks of another one between their own."""
        return sum(
            any(other_first < last and first < other_last for other_first, other_last in spans if other_last != last)
            for spans in self.spans.values()
            for first, last in spans
        )


async def produce(
    producer: AIOKafkaProducer, topic: str, volume: Volume, messages: int, rng: random.Random, sent: Sent
) -> None:
    """Sends one message after the other, and small records meanwhile, so that they come between the chunks."""

    async def send(key: bytes, value: bytes) -> None:
        digest = hashlib.sha256(value).hexdigest()
        told = await (await producer.send(topic, value, key, rng.randrange(PARTITIONS), STAMP))
        sent.rows[told.partition].append((told.offset, (key, digest)))
        sent.size += len(value)
        if isinstance(told, ChunkedRecordMetadata):
            sent.spans[told.partition].append((told.chunk_message_id.first, told.chunk_message_id.last))

    async def small(message: bytes) -> None:
        for number in range(volume.small):
            await send(b"%b-%d" % (message, number), rng.randbytes(rng.randrange(200)))

    name = rng.randbytes(4).hex().encode()
    async with producer:
        for number in range(messages):
            # Each size class as often as any other, as 1 to 6 MB and 6 to 30; each producer begins with the largest.
            size = int(SMALLEST * (volume.largest / SMALLEST) ** (rng.random() if number else 1.0))
            start = rng.randrange(LARGEST - size + 1)
            key = b"%b-%d" % (name, number)
            await asyncio.gather(send(key, key + _BLOCK[start + len(key) : start + size]), small(key))


def _lives(name: str, worker: WorkerProcess) -> None:
    ended = worker.process is not None and worker.process.poll() is not None
    assert not ended, f"{name} has ended by itself:\n{worker.log.read_text()[-5_000:]}"


class Arrivals:
    """Reads a topic while it is written.

    Attributes:
        rows: what `row` makes of each record, by partition, in order.
        seen: the same, without order and repetition.
    """

    def __init__(self, broker: str, topic: str, row: Callable[[Any], Any]) -> None:
        self.rows: dict[int, list[Any]] = defaultdict(list)
        self.seen: set[Hashable] = set()
        self._broker = broker
        self._topic = topic
        self._row = row
        self._more = asyncio.Event()

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Reads until the block ends."""
        task = asyncio.create_task(self._read())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def different(self, count: int, workers: Mapping[str, WorkerProcess]) -> None:
        """Waits until so many different records have arrived; no worker may end meanwhile."""
        await self._until(lambda: len(self.seen) >= count, f"there are {count} different ones", workers)

    async def to(self, ends: Mapping[int, int]) -> None:
        """Waits until all has been read up to these offsets."""
        await self._until(
            lambda: all(len(self.rows[p]) >= end for p, end in ends.items()), f"all to {ends} is read", {}
        )

    async def _until(self, condition: Callable[[], bool], what: str, workers: Mapping[str, WorkerProcess]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            for name, worker in workers.items():
                _lives(name, worker)
            assert time.monotonic() < deadline, f"{self._topic}: waited {SECONDS} s in vain until {what}"
            self._more.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._more.wait(), 1)

    async def _read(self) -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=self._broker, auto_offset_reset="earliest")
        consumer.assign([TopicPartition(self._topic, number) for number in range(PARTITIONS)])
        async with consumer:
            while True:
                for partition, records in (await consumer.getmany(timeout_ms=200)).items():
                    for record in records:
                        row = self._row(record)
                        self.rows[partition.partition].append(row)
                        self.seen.add(row)
                self._more.set()


def row_of(record: Any) -> Row:
    """A whole record."""
    return record.key, hashlib.sha256(record.value).hexdigest()


def unit_of(record: Any) -> Unit:
    """A record between chunks, or one of them."""
    if not is_chunk(record.headers):
        return record.key, "", 0, 1
    chunk, _ = Chunk.parse(record)
    return record.key, chunk.uuid, chunk.id, chunk.count


def repeats(
    found: Sequence[Hashable], expected: Sequence[tuple[int, Hashable]], kills: Sequence[Kill], partition: int
) -> int:
    """Holds that lives of workers wrote just that (the module says how), and returns how many records came again.

    Args:
        found: what stands in a partition of the sink.
        expected: what should, once each, with its offset in the source.
        kills: in order.
        partition: which.
    """
    offsets = [offset for offset, _ in expected]
    restarts = [(bisect_left(offsets, kill.delivered[partition]), kill.end[partition]) for kill in kills]
    place = {each: number for number, (_, each) in enumerate(expected)}
    again, following, lives = 0, 0, 0
    reference_scope = [0]  # behind the last of the expected ones, by the number of those found
    for position, each in enumerate(found):
        number = place[each]
        if number != following:
            where = f"partition {partition}, offset {position}: {each!r}, number {number}, where {following} follows"
            assert number < following, where
            later = list(enumerate(restarts, 1))[lives:]
            lives = next((life for life, (start, end) in later if start == number and end <= position), 0)
            assert lives, f"{where}; lives begin at {restarts}"
            again += following - number
        following = number + 1
        reference_scope.append(max(reference_scope[-1], following))
    assert reference_scope[-1] == len(expected)
    assert all(start <= reference_scope[end] for start, end in restarts), "what is committed was durable before"
    return again


class Road:
    """The topics, and the two pipelines between them, each in a worker of its own."""

    def __init__(self, broker: str, make_topic: MakeTopic, folder: Path, session_ms: int) -> None:
        self.broker = broker
        forever = {"retention.ms": "-1"}
        big = {**forever, "max.message.bytes": str(LARGEST + 1_000_000)}
        self.raw = make_topic(PARTITIONS, **big)
        self.chunked = make_topic(PARTITIONS, **forever)  # with Kafka's own limit: 1,048,588 bytes
        self.whole = make_topic(PARTITIONS, **big)
        self.dead = make_topic(PARTITIONS, **big)
        self._ways = {"split": (self.raw, self.chunked), "join": (self.chunked, self.whole)}
        self._folder = folder
        self._settings: dict[str, object] = {
            "bootstrap.servers": broker,
            "consumer.session.timeout.ms": session_ms,
            "consumer.heartbeat.interval.ms": 300,
            "in.flight.bytes": PENDING,
        }

    def split(self) -> WorkerProcess:
        """From raw to chunked."""
        # Batches of small records are to be smaller than each limit.
        return self._worker("split", {"producer.batch.size": 16_384, "transforms": ["chunk"]})

    def join(self, **more: object) -> WorkerProcess:
        """From chunked to whole. By itself it tolerates nothing: it ends with the first chunk that makes no message."""
        limits = {"max.pending.chunked.bytes": PENDING, "chunk.max.message.bytes": LARGEST}
        # On a machine that is busy with other things no message is to expire.
        keys = {"transforms": ["assemble"], **limits, "expire.time.of.incomplete.chunked.message.ms": 300_000}
        return self._worker("join", {**keys, **more})

    def kill(self, name: str, worker: WorkerProcess) -> Kill:
        """Kills a worker, and looks at what there is then."""
        worker.kill()
        # What it had sent, a commit too, may arrive after its end: two looks have to agree.
        found = self._look(name)
        while (again := self._look(name)) != found:
            found = again
        return found

    def _look(self, name: str) -> Kill:
        source, sink = self._ways[name]
        commits = marks(self.broker, self._group(name), source)
        delivered = {}
        for partition, (offset, metadata) in commits.items():
            found = noted(metadata)
            delivered[partition] = offset if found is None else found.delivered
        return Kill(delivered, end_offsets(self.broker, sink))

    async def finished(self, name: str, worker: WorkerProcess, arrivals: Arrivals | None = None) -> None:
        """Waits until a pipeline has committed all that is in its source, and its sink is read to its end."""
        source, sink = self._ways[name]

        def done() -> bool:
            _lives(name, worker)
            found = marks(self.broker, self._group(name), source)
            return {partition: offset for partition, (offset, _) in found.items()} == end_offsets(self.broker, source)

        await asyncio.to_thread(until, done, f"{name} has committed all", SECONDS)
        if arrivals is not None:
            await arrivals.to(await asyncio.to_thread(end_offsets, self.broker, sink))

    def _group(self, name: str) -> str:
        return f"{self.raw}-{name}"

    def _worker(self, name: str, keys: Mapping[str, object]) -> WorkerProcess:
        source, sink = self._ways[name]
        fixed = {"topics": [source], "output.topic": sink, "group.id": self._group(name)}
        return WorkerProcess(self._folder, self._settings, {name: {**fixed, **keys, "offset.flush.interval.ms": 100}})


@pytest.fixture
def road(broker: str, make_topic: MakeTopic, tmp_path: Path, least_session_ms: int) -> Road:
    """The topics of one test."""
    return Road(broker, make_topic, tmp_path, least_session_ms)


def told(began: float, what: str) -> None:
    """Prints what a test has measured, as `make chaos` shows it."""
    print(f"{what}; {time.monotonic() - began:.0f} s")  # noqa: T201


def lives(worker: WorkerProcess) -> bool:
    """Whether its pages answer: before that, SIGTERM finds nobody who would end in order."""
    return worker.get("/health/live")[0] == 200


def pending_of(worker: WorkerProcess) -> int:
    """The bytes of messages that are not complete; 0 where nothing answers yet."""
    status, pipelines = worker.get("/pipelines")
    return int(pipelines[0]["pending_chunked_bytes"]) if status == 200 else 0


@pytest.mark.chaos
async def test_many_producers_and_a_worker_killed_at_random(road: Road, rng: random.Random, chaos: str) -> None:
    """Messages of many producers, and records between, arrive whole, in order; what was noted does not come again."""
    volume = JOINED[chaos]
    sent, kills, pending = Sent(), list[Kill](), list[int]()
    arrivals = Arrivals(road.broker, road.whole, row_of)
    producers = [ChunkingProducer({"bootstrap.servers": road.broker}) for _ in range(volume.producers)]
    began = time.monotonic()
    with road.join() as worker:
        async with arrivals.reading():
            async with asyncio.TaskGroup() as group:
                for producer in producers:
                    own = random.Random(rng.random())
                    group.create_task(produce(producer, road.chunked, volume, volume.messages, own, sent))
                # All begin with the largest, so that there is something pending before the first has arrived.
                waited = partial(until, partial(pending_of, worker), "chunks of messages are pending", SECONDS)
                pending.append(await asyncio.to_thread(waited))
                for moment in sorted(rng.sample(range(volume.count * 9 // 10), volume.kills)):
                    await arrivals.different(moment, {"join": worker})
                    pending.append(await asyncio.to_thread(pending_of, worker))
                    kills.append(await asyncio.to_thread(road.kill, "join", worker))
                    worker.start()
            await road.finished("join", worker, arrivals)
        until(partial(lives, worker), "the worker that was killed last has begun again")
        (page,) = worker.get("/pipelines")[1]
        assert worker.terminate() == 0
    again = sum(
        repeats(arrivals.rows[partition], sorted(rows), kills, partition) for partition, rows in sent.rows.items()
    )
    assert sum(map(len, sent.rows.values())) == volume.count
    assert (page["pending_chunked_messages"], page["pending_chunked_bytes"], page["in_flight_bytes"]) == (0, 0, 0)
    assert page["discarded_messages"] == {}
    assert 0 < max(pending) <= PENDING
    assert sent.interleaved() > volume.producers * volume.messages // 2
    told(
        began,
        f"{volume.count:,} records, {sent.size:,} bytes, {sent.interleaved()} interleaved; {len(kills)} kills, "
        f"with at most {max(pending):,} bytes pending; {again} came again",
    )


@pytest.mark.chaos
async def test_workers_that_split_and_join_killed_at_random(road: Road, rng: random.Random, chaos: str) -> None:
    """What splits goes on with what it had begun, so what joins, and tolerates nothing, gives all, in order."""
    volume = SPLIT_AND_JOINED[chaos]
    sent = Sent()
    kills: dict[str, list[Kill]] = {"split": [], "join": []}
    between = Arrivals(road.broker, road.chunked, unit_of)
    arrivals = Arrivals(road.broker, road.whole, row_of)
    workers = {"split": road.split(), "join": road.join()}
    began = time.monotonic()
    with workers["split"], workers["join"]:
        async with between.reading(), arrivals.reading():
            async with asyncio.TaskGroup() as group:
                for _ in range(volume.producers):
                    producer = AIOKafkaProducer(
                        bootstrap_servers=road.broker, enable_idempotence=True, max_request_size=2 * LARGEST
                    )
                    own = random.Random(rng.random())
                    group.create_task(produce(producer, road.raw, volume, volume.messages, own, sent))
                for moment in sorted(rng.sample(range(volume.count * 9 // 10), volume.kills)):
                    await arrivals.different(moment, workers)
                    victims = rng.choice((["split"], ["join"], ["split", "join"]))
                    for name in victims:
                        kills[name].append(await asyncio.to_thread(road.kill, name, workers[name]))
                    for name in victims:
                        workers[name].start()
            await road.finished("split", workers["split"], between)
            await road.finished("join", workers["join"], arrivals)
        for worker in workers.values():
            until(partial(lives, worker), "the worker that was killed last has begun again")
        (page,) = workers["join"].get("/pipelines")[1]
        assert [worker.terminate() for worker in workers.values()] == [0, 0]
    split_again = joined_again = 0
    for partition, rows in sent.rows.items():
        units = list[tuple[int, Unit]]()
        begins = {key: (uuid, chunks) for key, uuid, number, chunks in between.rows[partition] if not number}
        for offset, (key, _) in sorted(rows):
            uuid, chunks = begins[key]
            units += [(offset, (key, uuid, number, chunks)) for number in range(chunks)]
        split_again += repeats(between.rows[partition], units, kills["split"], partition)
        found = arrivals.rows[partition]
        assert list(dict.fromkeys(found)) == [row for _, row in sorted(rows)]
        joined_again += len(found) - len(rows)
        # Where it came from at the latest.
        ends = {key: at for at, (key, _, number, chunks) in enumerate(between.rows[partition]) if number == chunks - 1}
        for kill in kills["join"]:
            assert all(ends[key] >= kill.delivered[partition] for key, _ in found[kill.end[partition] :])
    assert sum(map(len, sent.rows.values())) == volume.count
    assert (page["pending_chunked_messages"], page["pending_chunked_bytes"], page["in_flight_bytes"]) == (0, 0, 0)
    assert page["discarded_messages"] == {}
    told(
        began,
        f"{volume.count:,} records, {sent.size:,} bytes; kills {len(kills['split'])} and {len(kills['join'])}; "
        f"split {split_again} again, joined {joined_again} again",
    )


@pytest.mark.chaos
async def test_limit_lowered_under_traffic(road: Road, rng: random.Random, chaos: str) -> None:
    """Where the sink takes less and less while values are split for it, all arrive; what had begun is a dead letter."""
    volume, limits = LIMITED[chaos], (400_000, 150_000)
    count = volume.count + len(limits) * (1 + volume.small)
    sent = Sent()
    arrivals = Arrivals(road.broker, road.whole, row_of)
    letters = Arrivals(road.broker, road.dead, lambda record: (record.partition, *unit_of(record)))
    tolerance = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": road.dead}
    soon = {"expire.time.of.incomplete.chunked.message.ms": 10_000}
    workers = {"split": road.split(), "join": road.join(**tolerance, **soon)}

    began = time.monotonic()

    def restarts() -> int:
        """How often the pipeline has begun again and runs, so that it knows the limit of that time; else none."""
        _lives("split", workers["split"])
        page = workers["split"].get("/pipelines")[1][0]
        return int(page["restarts"]) if page["state"] == "RUNNING" else 0

    with workers["split"], workers["join"]:
        async with arrivals.reading(), letters.reading():
            async with asyncio.TaskGroup() as group:
                for _ in range(volume.producers):
                    producer = AIOKafkaProducer(bootstrap_servers=road.broker, max_request_size=2 * volume.largest)
                    own = random.Random(rng.random())
                    group.create_task(produce(producer, road.raw, volume, volume.messages, own, sent))
                for number, limit in enumerate(limits):
                    await arrivals.different(rng.randrange(count * number // 3, count * (number + 1) // 3), workers)
                    configs = {"max.message.bytes": str(limit), "retention.ms": "-1"}
                    await alter_configs(road.broker, road.chunked, configs)
                    # All others may have gone through by now.
                    producer = AIOKafkaProducer(bootstrap_servers=road.broker, max_request_size=2 * volume.largest)
                    group.create_task(produce(producer, road.raw, volume, 1, random.Random(rng.random()), sent))
                    began_again = f"the pipeline has begun again for {limit:,} bytes"
                    await asyncio.to_thread(until, lambda least=number: restarts() > least, began_again)
            await road.finished("split", workers["split"])
            await road.finished("join", workers["join"], arrivals)
            await letters.to(await asyncio.to_thread(end_offsets, road.broker, road.dead))
        (page,) = workers["join"].get("/pipelines")[1]
        until(lambda: restarts() == 2, "it has begun again for each limit, and runs")
        for worker in workers.values():
            until(partial(lives, worker), "the worker that was killed last has begun again")
        assert [worker.terminate() for worker in workers.values()] == [0, 0]
    assert sum(map(len, sent.rows.values())) == count
    for partition, rows in sent.rows.items():
        assert list(dict.fromkeys(arrivals.rows[partition])) == [row for _, row in sorted(rows)]
    # In each partition one message may have begun when the limit was lowered.
    begun = {(partition, uuid) for rows in letters.rows.values() for partition, _, uuid, _, _ in rows}
    assert set(page["discarded_messages"]) <= {"expired"}
    assert page["discarded_messages"].get("expired", 0) == len(begun) <= 2 * PARTITIONS
    told(began, f"{count:,} records, {sent.size:,} bytes; {len(begun)} messages had begun when the limit was lowered")
