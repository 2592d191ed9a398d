"""Chunks through the worker, against a real broker: there and back, what is discarded, and every way of ending."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from tests.integration.topics import Sent, marks, read_all, send
from tests.integration.way import MakeTopic, MakeWay, Way, reason_of
from tests.integration.worker_process import WorkerProcess, until
from transforms.batch_size import batch_of_one_bytes
from transforms.chunk import Chunk, Chunking
from transforms.record import Header, Record

CHUNK = 20_000
STAMP = 1_699_999_999_123

Split = dict[str, dict[str, object]]


@pytest.fixture
def way(make_way: MakeWay, make_topic: MakeTopic) -> Way:
    """Topics of one test, of which the one in the middle takes small records only."""
    way = make_way(partitions=2, large=20_000_000)
    way.orders = make_topic(2, **{"retention.ms": "-1", "max.message.bytes": CHUNK})
    return way


def split(way: Way, **more: object) -> Split:
    """The pipeline from raw to orders."""
    return way.offload(**{"producer.batch.size": 16_384, "transforms": ["chunk"], **more})


def join(way: Way, **more: object) -> Split:
    """The pipeline from orders to inflated."""
    return way.inflate(**{"transforms": ["assemble"], **more})


def write(way: Way, records: Iterable[Sent]) -> None:
    """Puts records into the topic of chunks, which takes no large batch either."""
    send(way.broker, way.orders, records, 16_000)


def mark(way: Way) -> tuple[int, str]:
    """What is committed of partition 0 of the topic of chunks: the offset, and what stands beside it."""
    return marks(way.broker, way.group("inflate"), way.orders)[0]


def message(key: bytes, size: int, partition: int = 0, headers: Sequence[Header] = ()) -> Sent:
    """A record with a random value."""
    return (partition, key, os.urandom(size), headers, STAMP)


def pieces(sent: Sent, limit: int = CHUNK) -> list[Sent]:
    """The chunks of a record, as `chunk` writes them."""
    partition, key, value, headers, stamp = sent
    record = Record(key, value, tuple(headers), stamp)
    split = Chunking(limit).split(record, str(uuid.uuid4()))
    return [(partition, each.key, each.value, each.headers, each.timestamp) for each in split]


@contextmanager
def running(way: Way, *pipelines: Split) -> Iterator[WorkerProcess]:
    """A worker with these pipelines, which ends well."""
    keys = {name: table for each in pipelines for name, table in each.items()}
    with WorkerProcess(way.folder, way.settings(), keys) as worker:
        yield worker
        assert worker.terminate() == 0


@pytest.mark.matrix
def test_chunks_there_and_back(way: Way) -> None:
    """Every odd record comes back as it was, in order, and the topic between never has to take more than it can."""
    own: list[Header] = [("trace", b"1"), ("trace", None), ("ü", b"\xff\x00")]
    records: list[Sent] = [
        message(b"small", 10, 0, own),
        message(b"large", 3_000_000, 0, own),
        (0, b"tombstone", None, own, STAMP),
        (0, None, b"", [], STAMP),
        message(b"at", CHUNK - 80, 1),
        message(b"over", CHUNK, 1, [("wide", b"x" * 12_000), *own]),
        (1, None, os.urandom(70_000), own, STAMP),
        # A record that is a chunk for readers, and small enough to pass, would be taken for one.
        message(b"looks like one", 50_000, 1, [("large-message.chunk.uuid", b"u"), ("large-message.chunk.id", b"0")]),
        message(b"last", 5, 1),
    ]
    send(way.broker, way.raw, records)
    with running(way, split(way), join(way)) as worker:
        until(lambda: way.arrived(len(records)), "all records have arrived")
        first, second = worker.get("/pipelines")[1]
    sent = {p: [(k, v, tuple(h), t) for q, k, v, h, t in records if q == p] for p in (0, 1)}
    arrived = read_all(way.broker, way.inflated)
    assert {p: [(r.key, r.value, r.headers, r.timestamp) for r in rs] for p, rs in arrived.items()} == sent
    between = [found for each in read_all(way.broker, way.orders).values() for found in each]
    sizes = [batch_of_one_bytes(Record(r.key, r.value, r.headers)) for r in between]
    assert CHUNK - 10 < max(sizes) <= CHUNK
    assert (first["msgChunkPublished"], first["chunked_messages"]) == (True, 4)
    assert first["chunks_published"] == len(between) - 5
    assert first["chunkedMessageRate"]["published"] > 0
    assert (second["assembled_messages"], second["pending_chunked_messages"]) == (4, 0)
    assert (second["pending_chunked_bytes"], second["chunkedMessageRate"]["consumed"] > 0) == (0, True)


def test_chunks_killed_in_the_middle(way: Way) -> None:
    """`kill -9` between chunks of several messages: a restart loses none, and repeats none that had been committed."""
    first, second, third = (message(key, 90_000) for key in (b"first", b"second", b"third"))
    a, b, c = (pieces(each) for each in (first, second, third))
    one, two, last = (message(key, 10) for key in (b"one", b"two", b"last"))
    before = [one, *a[:3], *b[:2], two, *c[:1], *b[2:], *a[3:4]]
    write(way, before)
    with running(way, join(way)) as worker:
        until(lambda: mark(way) == (1, f"wideload:delivered={len(before)}\0"), "all but the pending is committed")
        page = worker.get("/pipelines")[1][0]
        assert (page["pending_chunked_messages"], page["in_flight_bytes"]) == (2, 0)
        assert page["pending_chunked_bytes"] > 5 * (CHUNK - 1_000)
        worker.kill()
        write(way, [*c[1:], last])
        worker.start()
        until(lambda: way.arrived(5), "what was not whole has arrived")
        worker.kill()
        write(way, a[4:])
        worker.start()
        until(lambda: mark(way) == (len(before) + len(c) + len(a[4:]), ""), "all is committed")
    found = read_all(way.broker, way.inflated)[0]
    once = list(dict.fromkeys((record.key, record.value) for record in found))
    assert once == [each[1:3] for each in (one, two, second, third, last, first)]
    # Only what was not committed at the second kill, `third` and `last`, may have come twice.
    keys = [record.key for record in found]
    assert [keys.count(key) for key in (b"one", b"two", b"second", b"first")] == [1] * 4


def test_chunks_discarded_are_dead_letters(way: Way) -> None:
    """Chunks that make no message become dead letters, each whole, with the reason; what is around them passes."""
    names = ("late", "gap", "corrupt", "large", "good")
    lates, gaps, corrupts, larges, goods = (pieces(message(name.encode(), 90_000)) for name in names)
    partition, key, value, headers, stamp = corrupts[-1]
    corrupts[-1] = (partition, key, bytes(len(value or b"")), headers, stamp)
    oversized: Sent = (0, b"too large", b"x", Chunk(str(uuid.uuid4()), 0, 9, 9_000_000).headers(), STAMP)
    malformed: Sent = (0, b"malformed", b"x", [("large-message.chunk.uuid", b"no number behind it")], STAMP)
    mixed: list[Sent] = [lates[1], *gaps[:2], goods[0], *corrupts, gaps[3], goods[0], oversized, malformed]
    mixed += [*goods[1:], *larges, message(b"small", 10)]
    write(way, mixed)
    with running(way, join(way, **way.tolerant, **{"chunk.max.message.bytes": 100_000})) as worker:
        until(lambda: mark(way)[0] == len(mixed), "all are committed")
        page = worker.get("/pipelines")[1][0]
        metrics = worker.text("/metrics")
    assert [r.key for r in read_all(way.broker, way.inflated)[0]] == [b"good", b"large", b"small"]
    letters = read_all(way.broker, way.dead)[0]
    given_up = [lates[1], *corrupts, *gaps[:2], gaps[3], oversized, malformed]
    assert [(r.key, r.value) for r in letters] == [each[1:3] for each in given_up]
    context = dict(letters[-3].headers)
    assert context["__connect.errors.exception.class.name"] == b"transforms.errors.DiscardedChunkError"
    assert "out-of-order" in reason_of(letters[-3])
    assert mixed[int(context["__connect.errors.offset"] or b"")] == gaps[3]
    counts = {"missing-first": 1, "out-of-order": 1, "corrupt": 1, "oversized": 1, "malformed": 1}
    assert page["discarded_messages"] == counts
    assert (page["duplicate_chunks"], page["assembled_messages"]) == (1, 2)
    assert 'wideload_discarded_messages_total{pipeline="inflate",reason="corrupt"} 1.0' in metrics


def test_chunks_expire(way: Way) -> None:
    """A message whose last chunk does not come goes to the dead-letter topic in time, also where nothing else comes."""
    a = pieces(message(b"unfinished", 90_000))
    write(way, [*a[:3], message(b"small", 10)])
    soon = {"expire.time.of.incomplete.chunked.message.ms": 500}
    with running(way, join(way, **way.tolerant, **soon)) as worker:
        until(lambda: mark(way) == (4, ""), "the chunks are given up")
        # What comes too late is no message, and no reason to stop.
        write(way, [*a[3:], message(b"behind", 10)])
        until(lambda: mark(way) == (len(a) + 2, ""), "the late ones are given up")
        page = worker.get("/pipelines")[1][0]
    letters = read_all(way.broker, way.dead)[0]
    assert [(r.key, r.value) for r in letters] == [each[1:3] for each in a]
    assert all("expired" in reason_of(letter) for letter in letters)
    assert [r.key for r in read_all(way.broker, way.inflated)[0]] == [b"small", b"behind"]
    assert (page["discarded_messages"], page["late_chunks"]) == ({"expired": 1}, len(a) - 3)
    assert page["in_flight_bytes"] == 0


def test_chunks_while_the_store_is_down(way: Way) -> None:
    """With `auto`, values go as chunks while the store is down, as references else; `inflate` reads both."""
    root = way.folder / "store"
    way.store = {
        "large.message.payload.store.class": "tests.integration.switched_store:SwitchedStore",
        "switched.root": str(root),
    }
    auto = {"large.message.strategy": "auto", "large.message.threshold.bytes": 1_000}
    records = [message(b"%d" % n, 100_000 if n % 2 else 5_000) for n in range(63)]
    pipelines = split(way, transforms=["offload"], **auto), join(way, transforms=["inflate"], **auto)
    with running(way, *pipelines) as worker:
        send(way.broker, way.raw, records[:3])
        until(lambda: way.arrived(3), "the first have arrived")
        (root / "down").touch()
        send(way.broker, way.raw, records[3:])
        until(lambda: way.arrived(63), "they have arrived, and the store is still down")
        assert worker.get("/health")[1]["status"] == "degraded"
        tried = worker.get("/pipelines")[1][0]["store_errors"]
        assert 0 < tried < 30, "not each value asks a store that is down"
        (root / "down").unlink()
        numbers = itertools.count()

        def recovered() -> bool:
            send(way.broker, way.raw, [message(b"probe %d" % next(numbers), 5_000)])
            return bool(worker.get("/health")[1]["status"] == "ok")

        until(recovered, "the store is used again")
    values = [(record.key, record.value) for record in read_all(way.broker, way.inflated)[0]]
    assert values[:63] == [each[1:3] for each in records]
    between = [(record.value or b"").startswith(b"switched://") for record in read_all(way.broker, way.orders)[0]]
    assert (between[:3], any(between[3:90])) == ([True] * 3, False)
