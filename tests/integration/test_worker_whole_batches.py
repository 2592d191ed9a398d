"""A worker and batches of all kinds: those that go whole, that are read anew, and that are taken apart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

import pytest

from tests.integration.raw_batches import Feed, Row, batches_of, codecs_of, row
from tests.integration.topics import Found, committed, end_offsets, read_all
from tests.integration.way import THRESHOLD, MakeTopic, Way
from tests.integration.worker_process import WorkerProcess, until
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
