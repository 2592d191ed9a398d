"""A worker and batches of all kinds: those that go whole, that are read anew, and that are taken apart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.integration.raw_batches import Feed, Row, batches_of, codecs_of, row
from tests.integration.topics import Counted, Found, committed, end_offsets, read_all
from tests.integration.way import THRESHOLD, MakeTopic, Way
from tests.integration.worker_process import WorkerProcess, until
from transforms.chunk import Chunking, checksum
from transforms.record import Header, Record

MakeWay = Callable[..., Way]

STAMP = 1_700_000_000_000
PARTITIONS = 2
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
ONCE = {"processing.guarantee": "exactly_once", "transaction.boundary.interval.ms": 50}


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


def fed(way: Way, topic: str, made: Mapping[int, list[Record]], seed: int = 1) -> Feed:
    """A topic with these records, in mixed batches."""
    feed = Feed(way.broker, topic)

    async def write() -> None:
        async with feed.open():
            await feed.mixed(random.Random(seed), len(made), made)

    asyncio.run(write())
    assert {partition: [row(each) for each in every] for partition, every in made.items()} == feed.rows
    return feed


def all_read(way: Way, pipeline: str, topic: str) -> None:
    """Waits until all of a topic is committed by the group of a pipeline: also what is no record at its end."""
    group = way.group(pipeline)
    until(lambda: committed(way.broker, group, topic) == end_offsets(way.broker, topic), f"all of {topic} is committed")


@pytest.mark.parametrize("once", [{}, ONCE], ids=["at_least_once", "exactly_once"])
def test_offload_and_inflate_keep_all_of_mixed_batches(make_way: MakeWay, once: Mapping[str, object]) -> None:
    """Each record arrives once, in order and whole, large ones among small ones; each small one keeps its codec."""
    way = make_way(PARTITIONS)
    rng = random.Random(4)
    made = {partition: records(rng, 900, large=0.003) for partition in range(PARTITIONS)}
    feed = fed(way, way.raw, made)
    with way.worker(**once) as worker:
        all_read(way, "offload", way.raw)
        all_read(way, "inflate", way.orders)
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
    feed = fed(way, way.raw, {0: records(random.Random(5), 600)})
    sinks = {"none": way.orders, "zstd": way.inflated}
    pipelines = {}
    for codec, sink in sinks.items():
        keys = way.offload(**{"producer.compression.type": codec})["offload"]
        pipelines[codec] = {**keys, "output.topic": sink, "group.id": way.group(codec)}
    with WorkerProcess(way.folder, way.settings(), pipelines) as worker:
        for codec in sinks:
            all_read(way, codec, way.raw)
        assert worker.terminate() == 0
    for codec, sink in sinks.items():
        assert rows_of(read_all(way.broker, sink)) == feed.rows
        assert {batch.codec for batch in batches_of(way.broker, sink)[0] if batch.count > 3} == {CODECS[codec]}


def test_values_that_producers_compress_are_not_split(make_way: MakeWay, make_topic: MakeTopic) -> None:
    """A value far over the limit of the sink goes on as it came, if its batch is within; alone and beside others."""
    way = make_way(1)
    text = Record(b"text", b",".join(b'{"id": %d}' % number for number in range(30_000)), (), STAMP)
    noise = Record(b"noise", random.Random(3).randbytes(100_000), (), STAMP)
    feed = Feed(way.broker, way.raw)

    async def write() -> None:
        async with feed.open():
            await feed.write(0, "zstd", [text])
            await feed.write(0, "zstd", [text, noise])
            await feed.write(0, "none", [text])

    asyncio.run(write())
    sink = make_topic(1, **{"max.message.bytes": 90_000, "retention.ms": -1})
    keys = {"topics": [way.raw], "output.topic": sink, "transforms": ["chunk"], "producer.batch.size": 10_000}
    with WorkerProcess(way.folder, way.settings(), {"chunk": {**keys, "group.id": way.group("chunk")}}) as worker:
        all_read(way, "chunk", way.raw)
        page = worker.get("/pipelines")[1][0]
        assert worker.terminate() == 0
    found = read_all(way.broker, sink)[0]
    pieces = -(-len(text.value or b"") // 90_000)
    assert [each.value == text.value for each in found] == [True, True] + [False] * (2 + pieces)
    assert (page["batches_whole"], page["batches_taken_apart"], page["restarts"]) == (1, 2, 0)
    assert (page["chunked_messages"], page["producer"]["batch-split-total"]) == (2, 0)


def chunked(rng: random.Random, made: list[Record]) -> tuple[list[Record], list[Row]]:
    """Records with chunks of messages among them; and what comes of it: a message where its last chunk is."""
    chunking = Chunking(3_000)
    sent: list[Record] = []
    expected: list[Row] = []
    waiting: list[tuple[Record, Iterator[Record]]] = []
    for number, each in enumerate(made):
        if number % 40 == 0:
            whole = Record(b"whole-%d" % number, rng.randbytes(9_000), (("own", b"1"),), STAMP)
            assert whole.value is not None
            waiting.append((whole, chunking.split(whole, f"uuid-{number}", checksum(whole.value))))
        if waiting and rng.random() < 0.3:
            whole, pieces = waiting[0]
            piece = next(pieces, None)
            if piece is None:
                waiting.pop(0)
            else:
                sent.append(piece)
                if dict(piece.headers)["large-message.chunk.id"] == b"%d" % _last(piece):
                    expected.append(row(whole))
        sent.append(each)
        expected.append(row(each))
    for whole, pieces in waiting:
        rest = list(pieces)
        sent += rest
        if rest:
            expected.append(row(whole))
    return sent, expected


def _last(piece: Record) -> int:
    return int(dict(piece.headers)["large-message.chunk.count"] or b"") - 1


def test_assemble_finds_the_chunks_in_mixed_batches(make_way: MakeWay, make_topic: MakeTopic) -> None:
    """Messages become whole, each in the place of its last chunk; the records between their chunks stay in order."""
    way = make_way(1)
    sink = make_topic(1, **{"retention.ms": "-1"})
    rng = random.Random(6)
    sent, expected = chunked(rng, records(rng, 700))
    fed(way, way.raw, {0: sent})
    keys = {"topics": [way.raw], "output.topic": sink, "transforms": ["assemble"], "group.id": way.group("assemble")}
    with WorkerProcess(way.folder, way.settings(), {"assemble": keys | {"offset.flush.interval.ms": 200}}) as worker:
        all_read(way, "assemble", way.raw)
        assert worker.get("/pipelines")[1][0]["restarts"] == 0
        assert worker.terminate() == 0
    assert rows_of(read_all(way.broker, sink)) == {0: expected}


@pytest.mark.chaos
@pytest.mark.parametrize("once", [{}, ONCE], ids=["at_least_once", "exactly_once"])
def test_worker_that_is_killed_between_batches(make_way: MakeWay, once: Mapping[str, object], chaos: str) -> None:
    """After each `kill -9` nothing is lost; exactly once, nothing comes twice."""
    way = make_way(PARTITIONS)
    rng = random.Random(7)
    made = {partition: records(rng, 1_000 if chaos == "short" else 30_000) for partition in range(PARTITIONS)}
    named = {p: [Record(b"%d" % n, r.value, r.headers, r.timestamp) for n, r in enumerate(m)] for p, m in made.items()}
    # What comes behind the last kill: a worker that is fast may have done all of the rest by then.
    first = {partition: each[: len(each) * 2 // 3] for partition, each in named.items()}
    rest = {partition: each[len(each) * 2 // 3 :] for partition, each in named.items()}
    counted = Counted(way.broker, way.orders)
    total = sum(map(len, first.values()))
    # A small budget, so that only a part of it all is in flight at any time.
    settings = {**way.settings(), "in.flight.bytes": 60_000}
    worker = WorkerProcess(way.folder, settings, way.offload(**once, **{"producer.linger.ms": 20}))
    with ThreadPoolExecutor(1) as pool, worker:
        worker.wait_ready()
        feeding = pool.submit(fed, way, way.raw, first)
        kills = 1 if chaos == "short" else 20
        for kill in range(kills):
            least = total * (kill + 1) // (3 * kills)
            until(lambda least=least: counted.total() >= least, "some have come")  # type: ignore[misc]
            worker.kill()
            worker.start()
        feeds = [feeding.result(), fed(way, way.raw, rest)]
        all_read(way, "offload", way.raw)
        worker.wait_ready()
        assert worker.terminate() == 0
    found = rows_of(read_all(way.broker, way.orders, "read_committed"))
    sent = {partition: [one for feed in feeds for one in feed.rows[partition]] for partition in named}
    if once:
        assert found == sent
    else:
        assert {partition: list(dict.fromkeys(each)) for partition, each in found.items()} == sent


def test_group_begins_in_the_middle_of_a_batch(make_way: MakeWay) -> None:
    """Where the commit of the group is within a batch, the records behind it come once; the next batches go whole."""
    way = make_way(1)
    made = records(random.Random(8), 600)
    feed = Feed(way.broker, way.raw)

    async def write() -> None:
        async with feed.open():
            await feed.write(0, "lz4", made[:300])
            await feed.write(0, "zstd", made[300:])
        group = way.group("offload")
        async with AIOKafkaConsumer(bootstrap_servers=way.broker, group_id=group, enable_auto_commit=False) as consumer:
            consumer.assign([TopicPartition(way.raw, 0)])
            await consumer.commit({TopicPartition(way.raw, 0): 123})

    asyncio.run(write())
    with WorkerProcess(way.folder, way.settings(), way.offload()) as worker:
        all_read(way, "offload", way.raw)
        assert worker.get("/pipelines")[1][0]["records_in"] == 600 - 123
        assert worker.terminate() == 0
    assert rows_of(read_all(way.broker, way.orders))[0] == feed.rows[0][123:]
    assert [batch.codec for batch in batches_of(way.broker, way.orders)[0]] == [3, 4]
