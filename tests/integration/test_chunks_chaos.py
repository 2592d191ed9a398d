"""Chunks in bulk and in disorder: many producers, values of up to 30 MB, and a worker that is killed at random.

What is promised is held record by record. One life of a worker, from its start to its kill, writes the records of a
source partition in order and leaves none out. It begins at what was committed, and writes nothing of what was noted
beside that. So each record in the sink is the one that follows, or is one step back, to where a kill found the commit.

`make test` runs it at a small volume, `make chaos` at a large one: the values have 3.6 GB, in two topics, 7 GB of disk,
until it ends. `make chaos SEED=N` has the same chance again.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from app.chunks import ChunkedRecordMetadata, ChunkingProducer
from tests.integration.topics import Counted, end_offsets, marks
from tests.integration.way import MakeWay, Way
from tests.integration.worker_process import WorkerProcess, until
from transforms.commit_metadata import noted

PARTITIONS = 3
SMALLEST, LARGEST = 1_100_000, 30_000_000  # bytes; the least is more than a record of Kafka's default limit
PENDING = 400_000_000  # bytes; more than the largest message of each producer takes
STAMP = 1_700_000_000_000
SECONDS = 300.0

Row = tuple[bytes, str]  # key, and SHA-256 of the value

_BLOCK = random.Random(0).randbytes(LARGEST)


@dataclass(frozen=True, slots=True)
class Volume:
    """How much is done: messages in chunks of each producer, small records beside each, the largest message, kills."""

    producers: int
    messages: int
    small: int
    largest: int
    kills: int

    @property
    def count(self) -> int:
        """All records and messages."""
        return self.producers * self.messages * (1 + self.small)


VOLUMES = {"short": Volume(8, 3, 8, 6_000_000, kills=3), "long": Volume(8, 50, 25, LARGEST, kills=20)}


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
class Written:
    """What producers were told, by partition.

    Attributes:
        rows: what is durable, with the offset of the record, or of the last chunk.
        spans: the offsets of the first and the last chunk of messages.
    """

    rows: dict[int, list[tuple[int, Row]]] = field(default_factory=lambda: defaultdict(list))
    spans: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def interleaved(self) -> int:
        """How many messages have chunks of another one between their own."""
        return sum(
            any(other_first < last and first < other_last for other_first, other_last in spans if other_last != last)
            for spans in self.spans.values()
            for first, last in spans
        )


async def produce(producer: ChunkingProducer, topic: str, volume: Volume, rng: random.Random, written: Written) -> None:
    """Sends one message after the other, and small records meanwhile, so that they come between the chunks."""

    async def send(key: bytes, value: bytes) -> None:
        told = await (await producer.send(topic, value, key, rng.randrange(PARTITIONS), STAMP))
        written.rows[told.partition].append((told.offset, (key, hashlib.sha256(value).hexdigest())))
        if isinstance(told, ChunkedRecordMetadata):
            written.spans[told.partition].append((told.chunk_message_id.first, told.chunk_message_id.last))

    async def small(message: bytes) -> None:
        for number in range(volume.small):
            await send(b"%b-%d" % (message, number), rng.randbytes(rng.randrange(200)))

    name = rng.randbytes(4).hex().encode()
    async with producer:
        for number in range(volume.messages):
            # Each size class as often as any other, as 1 to 6 MB and 6 to 30; each producer begins with the largest.
            size = int(SMALLEST * (volume.largest / SMALLEST) ** (rng.random() if number else 1.0))
            start = rng.randrange(LARGEST - size + 1)
            key = b"%b-%d" % (name, number)
            await asyncio.gather(send(key, key + _BLOCK[start + len(key) : start + size]), small(key))


async def produce_all(way: Way, volume: Volume, rng: random.Random) -> Written:
    """Lets all producers send beside each other."""
    written = Written()
    async with asyncio.TaskGroup() as group:
        for _ in range(volume.producers):
            producer = ChunkingProducer({"bootstrap.servers": way.broker})
            group.create_task(produce(producer, way.orders, volume, random.Random(rng.random()), written))
    return written


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
    reached = [0]  # behind the last of the expected ones, by the number of those found
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
        reached.append(max(reached[-1], following))
    assert reached[-1] == len(expected)
    assert all(start <= reached[end] for start, end in restarts), "what is committed was durable before"
    return again


def look(way: Way) -> Kill:
    """What stands in the cluster."""
    delivered = {}
    for partition, (offset, metadata) in marks(way.broker, way.group("inflate"), way.orders).items():
        found = noted(metadata)
        delivered[partition] = offset if found is None else found.delivered
    return Kill(delivered, end_offsets(way.broker, way.inflated))


def killed(way: Way, worker: WorkerProcess) -> Kill:
    """Kills a worker, and looks at what there is then."""
    worker.kill()
    # What it had sent, a commit too, may arrive after its end: two looks have to agree.
    found = look(way)
    while (again := look(way)) != found:
        found = again
    return found


def pending_of(worker: WorkerProcess) -> int:
    """The bytes of messages that are not complete; 0 where nothing answers yet."""
    status, pipelines = worker.get("/pipelines")
    return int(pipelines[0]["pending_chunked_bytes"]) if status == 200 else 0


@pytest.mark.chaos
def test_many_producers_and_a_worker_killed_at_random(make_way: MakeWay, rng: random.Random, chaos: str) -> None:
    """Messages of many producers, and records between, arrive whole, in order; what was noted does not come again."""
    volume, way = VOLUMES[chaos], make_way(PARTITIONS, large=LARGEST)
    kills, pending = list[Kill](), list[int]()
    arrived = Counted(way.broker, way.inflated)
    # It tolerates nothing: it ends with the first chunk that makes no message. On a busy machine none is to expire.
    limits = {"max.pending.chunked.bytes": PENDING, "chunk.max.message.bytes": LARGEST}
    keys = {"transforms": ["assemble"], **limits, "expire.time.of.incomplete.chunked.message.ms": 300_000}
    settings = {**way.settings(), "in.flight.bytes": PENDING}
    worker = WorkerProcess(way.folder, settings, way.inflate(**keys, **{"offset.flush.interval.ms": 100}))
    with ThreadPoolExecutor(1) as pool, worker:
        producing = pool.submit(asyncio.run, produce_all(way, volume, random.Random(rng.random())))
        # All begin with the largest, so that there is something pending before the first has arrived.
        pending.append(until(lambda: pending_of(worker), "chunks of messages are pending", SECONDS))
        for moment in sorted(rng.sample(range(volume.count * 9 // 10), volume.kills)):
            until(lambda least=moment: arrived.total() >= least, f"{moment} have arrived", SECONDS)  # type: ignore[misc]
            pending.append(pending_of(worker))
            kills.append(killed(way, worker))
            worker.start()
        written = producing.result()
        until(lambda: way.all_read("inflate"), "all is committed", SECONDS)
        worker.wait_ready()
        (page,) = worker.get("/pipelines")[1]
        assert worker.terminate() == 0
    arrived.total()
    again = [repeats(arrived.rows[number], sorted(rows), kills, number) for number, rows in written.rows.items()]
    assert sum(map(len, written.rows.values())) == volume.count
    assert (page["pending_chunked_messages"], page["pending_chunked_bytes"], page["in_flight_bytes"]) == (0, 0, 0)
    assert page["discarded_messages"] == {}
    assert 0 < max(pending) <= PENDING
    assert written.interleaved() > volume.producers * volume.messages // 2
    print(f"{volume.count:,} records, {len(kills)} kills, {max(pending):,} bytes pending; {sum(again)} came again")  # noqa: T201
