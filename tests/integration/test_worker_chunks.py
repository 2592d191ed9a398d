"""Chunks through the worker, against a real broker: there and back, what is discarded, and every way of ending."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from app.cluster.preflight import check
from app.config.parsing import parse
from app.deadletters.reader import LetterReader
from tests.integration.limits import set_limit
from tests.integration.topics import Sent, committed, end_offsets, marks, read_all, send
from tests.integration.way import MakeTopic, digests, expected, first_occurrences
from tests.integration.worker_process import WorkerProcess, until
from transforms.batch_size import batch_of_one_bytes
from transforms.chunk import Chunk, Chunking
from transforms.errors import ConfigurationError
from transforms.record import Header, Record, SourceRecord

CHUNK = 20_000
STAMP = 1_699_999_999_123
FLUSH = {"offset.flush.interval.ms": 100}


class Chunks:
    """Three topics, of which the one in the middle takes small records only, and the two pipelines between them."""

    def __init__(
        self, broker: str, make_topic: MakeTopic, folder: Path, session_ms: int, partitions: int, limit: int
    ) -> None:
        self.broker = broker
        self.folder = folder
        forever = {"retention.ms": "-1"}
        big = {**forever, "max.message.bytes": "70000000"}
        self.raw = make_topic(partitions, **big)
        self.chunked = make_topic(partitions, **{**forever, "max.message.bytes": str(limit)})
        self.whole = make_topic(partitions, **big)
        self.dead = make_topic(partitions, **forever)
        self.settings: dict[str, object] = {
            "bootstrap.servers": broker,
            "consumer.session.timeout.ms": session_ms,
            "consumer.heartbeat.interval.ms": 300,
            "producer.batch.size": 16_384,
        }
        self.tolerance = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": self.dead}

    def split(self, **more: object) -> dict[str, dict[str, object]]:
        """The pipeline from raw to chunked."""
        return {"split": self._pipeline("split", self.raw, self.chunked, ["chunk"], more)}

    def join(self, **more: object) -> dict[str, dict[str, object]]:
        """The pipeline from chunked to whole."""
        return {"join": self._pipeline("join", self.chunked, self.whole, ["assemble"], more)}

    def worker(self, *pipelines: Mapping[str, dict[str, object]]) -> WorkerProcess:
        """A worker with these pipelines."""
        return WorkerProcess(
            self.folder, self.settings, {name: keys for each in pipelines for name, keys in each.items()}
        )

    def group(self, name: str) -> str:
        """The consumer group of a pipeline."""
        return f"{self.raw}-{name}"

    def arrived(self, count: int) -> bool:
        """Whether so many records have come out at the far end."""
        return sum(end_offsets(self.broker, self.whole).values()) >= count

    def write(self, records: Iterable[Sent]) -> None:
        """Puts records into the topic of chunks, which takes no large batch either."""
        send(self.broker, self.chunked, records, 16_000)

    def mark(self, name: str, topic: str, partition: int = 0) -> tuple[int, str]:
        """What is committed of a partition: the offset, and what stands beside it."""
        return marks(self.broker, self.group(name), topic)[partition]

    def _pipeline(
        self, name: str, source: str, sink: str, transforms: Sequence[str], more: Mapping[str, object]
    ) -> dict[str, object]:
        fixed = {"topics": [source], "output.topic": sink, "transforms": transforms, "group.id": self.group(name)}
        return {**fixed, **FLUSH, **more}


MakeChunks = Callable[..., Chunks]


@pytest.fixture
def make_chunks(broker: str, make_topic: MakeTopic, tmp_path: Path, least_session_ms: int) -> MakeChunks:
    """Makes the topics and the configuration of one test."""

    def make(partitions: int = 1, limit: int = CHUNK) -> Chunks:
        return Chunks(broker, make_topic, tmp_path, least_session_ms, partitions, limit)

    return make


def message(key: bytes, size: int, partition: int = 0, headers: Sequence[Header] = ()) -> Sent:
    """A record with a random value."""
    return (partition, key, os.urandom(size), headers, STAMP)


def pieces(sent: Sent, limit: int = CHUNK) -> list[Sent]:
    """The chunks of a record, as `chunk` writes them."""
    partition, key, value, headers, stamp = sent
    record = Record(key, value, tuple(headers), stamp)
    split = Chunking(limit).split(record, str(uuid.uuid4()))
    return [(partition, each.key, each.value, each.headers, each.timestamp) for each in split]


def interleaved(messages: Iterable[Sequence[Sent]], seed: int) -> list[Sent]:
    """All records in a random order that keeps that of each message."""
    rng = random.Random(seed)
    waiting = [list(each) for each in messages]
    mixed: list[Sent] = []
    while waiting:
        chosen = rng.choice(waiting)
        mixed.append(chosen.pop(0))
        waiting = [each for each in waiting if each]
    return mixed


def pending(worker: WorkerProcess) -> int:
    """Messages of which chunks are missing, in the only pipeline."""
    return int(worker.get("/pipelines")[1][0]["pending_chunked_messages"])


def plain(found: Mapping[int, Sequence[object]]) -> int:
    """How many records there are."""
    return sum(len(records) for records in found.values())


@pytest.mark.matrix
def test_chunks_there_and_back(make_chunks: MakeChunks) -> None:
    """Every odd record comes back as it was, in order, and the topic between never has to take more than it can."""
    chunks = make_chunks(partitions=2)
    own: list[Header] = [("trace", b"1"), ("trace", None), ("ü", b"\xff\x00")]
    records: list[Sent] = [
        message(b"small", 10, 0, own),
        message(b"large", 3_000_000, 0, own),
        (0, b"tombstone", None, own, STAMP),
        (0, None, b"", [], STAMP),
        message(b"at", CHUNK - 80, 1),
        message(b"over", CHUNK, 1, [("wide", b"x" * 12_000), *own]),
        (1, None, os.urandom(70_000), own, STAMP),
        message(b"looks like one", 50_000, 1, [("large-message.chunk.uuid", b"u"), ("large-message.chunk.id", b"0")]),
        message(b"last", 5, 1),
    ]
    # A record that is a chunk for readers, and small enough to pass, would be taken for one.
    send(chunks.broker, chunks.raw, records)
    with chunks.worker(chunks.split(), chunks.join()) as worker:
        until(lambda: chunks.arrived(len(records)), "all records have arrived")
        split, join = (worker.get("/pipelines")[1][index] for index in (0, 1))
        assert worker.terminate() == 0
    sent = {p: [(k, v, tuple(h), t) for q, k, v, h, t in records if q == p] for p in (0, 1)}
    arrived = read_all(chunks.broker, chunks.whole)
    assert {p: [(r.key, r.value, r.headers, r.timestamp) for r in rs] for p, rs in arrived.items()} == sent
    between = read_all(chunks.broker, chunks.chunked)
    sizes = [batch_of_one_bytes(Record(r.key, r.value, r.headers)) for rs in between.values() for r in rs]
    assert CHUNK - 10 < max(sizes) <= CHUNK
    assert (split["msgChunkPublished"], split["chunked_messages"]) == (True, 4)
    assert split["chunks_published"] == plain(between) - 5
    assert split["chunkedMessageRate"]["published"] > 0
    assert (join["assembled_messages"], join["pending_chunked_messages"], join["pending_chunked_bytes"]) == (4, 0, 0)
    assert join["chunkedMessageRate"]["consumed"] > 0


def test_chunks_of_many_producers(make_chunks: MakeChunks) -> None:
    """Messages whose chunks lie between one another, and between small records, all come whole, as they end."""
    chunks = make_chunks(partitions=3)
    messages = [message(b"m%d" % n, 25_000 + 4_000 * n, n % 3) for n in range(40)]
    small = [message(b"s%d" % n, n % 300, n % 3) for n in range(1_000)]
    mixed = interleaved([*(pieces(each) for each in messages), *([each] for each in small)], seed=1)
    chunks.write(mixed)
    with chunks.worker(chunks.join()) as worker:
        until(lambda: chunks.arrived(len(messages) + len(small)), "all have arrived")
        assert worker.terminate() == 0
    by_key = {each[1]: each for each in (*messages, *small)}
    ends = dict.fromkeys(reversed([each[1] for each in mixed]))
    in_order = [by_key[key] for key in reversed(ends)]
    assert digests(read_all(chunks.broker, chunks.whole)) == expected(in_order)
    assert committed(chunks.broker, chunks.group("join"), chunks.chunked) == end_offsets(chunks.broker, chunks.chunked)


def test_chunks_killed_in_the_middle(make_chunks: MakeChunks) -> None:
    """`kill -9` between chunks of several messages: a restart loses none, and repeats none that had been committed."""
    chunks = make_chunks()
    first, second, third = (message(key, 90_000) for key in (b"first", b"second", b"third"))
    a, b, c = (pieces(each) for each in (first, second, third))
    one, two, last = (message(key, 10) for key in (b"one", b"two", b"last"))
    before = [one, *a[:3], *b[:2], two, *c[:1], *b[2:], *a[3:4]]
    chunks.write(before)
    worker = chunks.worker(chunks.join())
    with worker:
        delivered = f"wideload:delivered={len(before)}\0"
        until(lambda: chunks.mark("join", chunks.chunked) == (1, delivered), "all but the pending is committed")
        page = worker.get("/pipelines")[1][0]
        assert page["pending_chunked_messages"] == 2
        assert page["pending_chunked_bytes"] > 5 * (CHUNK - 1_000)
        assert page["in_flight_bytes"] == 0
        worker.kill()
        chunks.write([*c[1:], last])
        worker.start()
        until(lambda: chunks.arrived(5), "what was not whole has arrived")
        worker.kill()
        chunks.write(a[4:])
        worker.start()
        end = len(before) + len(c) + len(a[4:])
        until(lambda: chunks.mark("join", chunks.chunked) == (end, ""), "all is committed")
        assert worker.terminate() == 0
    found = read_all(chunks.broker, chunks.whole)[0]
    assert [record.key for record in found[:3]] == [b"one", b"two", b"second"]
    once = list(dict.fromkeys((record.key, record.value) for record in found))
    assert once == [each[1:3] for each in (one, two, second, third, last, first)]
    # Only what was not committed at the second kill, `third` and `last`, may have come twice.
    assert [record.key for record in found].count(b"second") == 1
    assert [record.key for record in found].count(b"two") == 1


@pytest.mark.chaos
def test_chunks_killed_at_random(make_chunks: MakeChunks) -> None:
    """Killed with -9 at random moments, both ways: every value arrives whole, in order."""
    chunks = make_chunks(partitions=2)
    rng = random.Random(7)
    records = [message(b"%d" % n, rng.choice([50, 100, 45_000, 300_000]), n % 2) for n in range(400)]
    worker = chunks.worker(chunks.split(), chunks.join())
    for part in range(4):
        before = sum(end_offsets(chunks.broker, chunks.whole).values())
        with worker:  # which kills it
            send(chunks.broker, chunks.raw, records[part * 80 : (part + 1) * 80])
            until(lambda least=before: chunks.arrived(least + 1), "records flow")  # type: ignore[misc]
            time.sleep(rng.random() / 2)  # not a wait for a condition: the moment of the kill is to be random
    send(chunks.broker, chunks.raw, records[320:])
    with worker:
        all_split = end_offsets(chunks.broker, chunks.raw)
        until(lambda: committed(chunks.broker, chunks.group("split"), chunks.raw) == all_split, "all is split", 120)
    # A kill leaves the first chunks of a message without the others in the topic; those go to the dead-letter topic.
    with chunks.worker(
        chunks.split(), chunks.join(**chunks.tolerance, **{"expire.time.of.incomplete.chunked.message.ms": 2_000})
    ) as last:
        all_done = end_offsets(chunks.broker, chunks.chunked)
        until(lambda: committed_of(chunks) == all_done, "all is whole, or given up", 120)
        # Each value has arrived, in order.
        assert first_occurrences(digests(read_all(chunks.broker, chunks.whole))) == expected(records)
        until(lambda: last.get("/pipelines")[1][1]["pending_chunked_messages"] == 0, "nothing is pending")
        assert last.terminate() == 0


@pytest.mark.chaos
def test_chunks_second_worker_joins(make_chunks: MakeChunks) -> None:
    """A worker that takes over a partition in the middle of messages goes on there, and repeats none."""
    chunks = make_chunks(partitions=2)
    messages = [message(b"m%d" % n, 90_000, n % 2) for n in range(6)]
    small = [message(b"s%d" % n, 10, n % 2) for n in range(200)]
    halves = [pieces(each) for each in messages]
    chunks.write(interleaved([*(each[:3] for each in halves), *([s] for s in small)], seed=3))
    with chunks.worker(chunks.join()) as first:
        until(lambda: chunks.arrived(len(small)), "the small ones have arrived")
        with chunks.worker(chunks.join()) as second:
            second.wait_ready()
            until(
                lambda: all(len(w.get("/pipelines")[1][0]["partitions"]) == 1 for w in (first, second)), "each has one"
            )
            for worker in (first, second):
                until(lambda w=worker: pending(w) == 3, "each has the half of the messages")  # type: ignore[misc]
            chunks.write(interleaved([each[3:] for each in halves], seed=4))
            until(lambda: chunks.arrived(len(small) + len(messages)), "all have arrived")
            assert second.terminate() == 0
        assert first.terminate() == 0
    found = digests(read_all(chunks.broker, chunks.whole))
    everything = expected([*small, *messages])
    assert {p: sorted(rows, key=str) for p, rows in found.items()} == {
        p: sorted(rows, key=str) for p, rows in everything.items()
    }


def test_chunks_discarded_are_dead_letters(make_chunks: MakeChunks) -> None:
    """Chunks that make no message become dead letters, each whole, with the reason; what is around them passes."""
    chunks = make_chunks()
    names = ("late", "gap", "corrupt", "large", "good")
    late, gap, corrupt, large, good = (message(name.encode(), 90_000) for name in names)
    gaps, corrupts, goods, larges = pieces(gap), pieces(corrupt), pieces(good), pieces(large)
    partition, key, value, headers, stamp = corrupts[-1]
    corrupts[-1] = (partition, key, bytes(len(value or b"")), headers, stamp)
    too_large = Chunk(str(uuid.uuid4()), 0, 9, 9_000_000).headers()
    wrong = [("large-message.chunk.uuid", b"no number behind it")]
    mixed: list[Sent] = [
        pieces(late)[1],
        *gaps[:2],
        goods[0],
        *corrupts,
        gaps[3],
        goods[0],
        (0, b"too large", b"x", too_large, STAMP),
        (0, b"malformed", b"x", wrong, STAMP),
        *goods[1:],
        *larges,
        message(b"small", 10),
    ]
    chunks.write(mixed)
    limits = {"chunk.max.message.bytes": 100_000}
    with chunks.worker(chunks.join(**chunks.tolerance, **limits)) as worker:
        until(lambda: chunks.mark("join", chunks.chunked)[0] == len(mixed), "all are committed")
        page = worker.get("/pipelines")[1][0]
        metrics = worker.text("/metrics")
        assert worker.terminate() == 0
    assert [r.key for r in read_all(chunks.broker, chunks.whole)[0]] == [b"good", b"large", b"small"]
    letters = read_all(chunks.broker, chunks.dead)[0]
    assert [(r.key, r.value) for r in letters] == [
        (key, value)
        for _, key, value, *_ in (
            mixed[0],
            *corrupts,
            *gaps[:2],
            gaps[3],
            mixed[len(corrupts) + 6],
            mixed[len(corrupts) + 7],
        )
    ]
    context = dict(letters[-3].headers)
    assert context["__connect.errors.exception.class.name"] == b"transforms.errors.DiscardedChunkError"
    assert b"out-of-order" in (context["__connect.errors.exception.message"] or b"")
    offset = int(context["__connect.errors.offset"] or b"")
    assert (mixed[offset][1], mixed[offset][2]) == (letters[-3].key, letters[-3].value)
    counts = {"missing-first": 1, "out-of-order": 1, "corrupt": 1, "oversized": 1, "malformed": 1}
    assert page["discarded_messages"] == counts
    assert (page["duplicate_chunks"], page["assembled_messages"]) == (1, 2)
    assert 'wideload_discarded_messages_total{pipeline="join",reason="corrupt"} 1.0' in metrics


def test_chunks_discarded_stop_the_pipeline(make_chunks: MakeChunks) -> None:
    """Without tolerance a chunk that makes no message stops the pipeline, with its place, and is not committed."""
    chunks = make_chunks()
    gap = pieces(message(b"gap", 90_000))
    chunks.write([message(b"small", 10), gap[0], message(b"more", 10), gap[2], message(b"z", 1)])
    with chunks.worker(chunks.join()) as worker:
        assert worker.wait() == 1
    log = worker.log.read_text()
    assert f"topic {chunks.chunked}, partition 0, offset 1: the chunked message" in log
    assert "out-of-order: chunk 2 came, chunk 1 was next" in log
    assert "Traceback" not in log
    assert committed(chunks.broker, chunks.group("join"), chunks.chunked)[0] <= 1


def test_chunks_expire(make_chunks: MakeChunks) -> None:
    """A message whose last chunk does not come goes to the dead-letter topic in time, also where nothing else comes."""
    chunks = make_chunks()
    a = pieces(message(b"unfinished", 90_000))
    chunks.write([*a[:3], message(b"small", 10)])
    with chunks.worker(chunks.join(**chunks.tolerance)) as worker:
        until(lambda: chunks.mark("join", chunks.chunked) == (0, "wideload:delivered=4\0"), "the small one counts")
        assert worker.terminate() == 0
    soon = {"expire.time.of.incomplete.chunked.message.ms": 500}
    with chunks.worker(chunks.join(**chunks.tolerance, **soon)) as worker:
        until(lambda: chunks.mark("join", chunks.chunked) == (4, ""), "the chunks are given up")
        # What comes too late is no message, and no reason to stop.
        chunks.write([*a[3:], message(b"behind", 10)])
        until(lambda: chunks.mark("join", chunks.chunked) == (len(a) + 2, ""), "the late ones are given up")
        page = worker.get("/pipelines")[1][0]
        assert worker.terminate() == 0
    letters = read_all(chunks.broker, chunks.dead)[0]
    assert [(r.key, r.value) for r in letters] == [each[1:3] for each in a]
    assert all(b"expired" in (dict(r.headers)["__connect.errors.exception.message"] or b"") for r in letters)
    assert [r.key for r in read_all(chunks.broker, chunks.whole)[0]] == [b"small", b"behind"]
    assert (page["discarded_messages"], page["late_chunks"]) == ({"expired": 1}, len(a) - 3)
    assert page["in_flight_bytes"] == 0


def test_chunks_written_again_in_part(make_chunks: MakeChunks) -> None:
    """The commit passes what a writer began to write again and did not end, and notes it.

    The rest of it, which that writer writes when it wakes, is a duplicate, also after a restart.
    """
    chunks = make_chunks()
    a = pieces(message(b"whole", 50_000))
    chunks.write([*a, a[0]])
    begun = len(a) + 1
    with chunks.worker(chunks.join(**chunks.tolerance)) as worker:
        until(lambda: chunks.mark("join", chunks.chunked)[0] == begun, "the beginning of the repeat is read")
        assert chunks.mark("join", chunks.chunked)[1].startswith(f"wideload:delivered={begun};torn=")
        assert pending(worker) == 0
        assert worker.terminate() == 0
    rest = [*a[1:], message(b"small", 10)]
    chunks.write(rest)
    with chunks.worker(chunks.join(**chunks.tolerance)) as worker:
        until(lambda: chunks.mark("join", chunks.chunked) == (begun + len(rest), ""), "the rest is read")
        assert worker.terminate() == 0
    assert [r.key for r in read_all(chunks.broker, chunks.whole)[0]] == [b"whole", b"small"]
    assert end_offsets(chunks.broker, chunks.dead) == {0: 0}


@pytest.mark.parametrize("drops", [True, False])
def test_chunks_evicted(make_chunks: MakeChunks, drops: bool) -> None:  # noqa: FBT001
    """The oldest message, where there are too many: dropped with a warning by the rule, else a dead letter."""
    chunks = make_chunks()
    old, young, whole = (message(key, 50_000) for key in (b"old", b"young", b"whole"))
    mixed = [pieces(old)[0], pieces(young)[0], *pieces(whole), message(b"small", 10)]
    chunks.write(mixed)
    few = {"max.pending.chunked.message": 2, "auto.ack.oldest.chunked.message.on.queue.full": drops}
    with chunks.worker(chunks.join(**chunks.tolerance, **few)) as worker:
        delivered = f"wideload:delivered={len(mixed)}\0"
        until(lambda: chunks.mark("join", chunks.chunked) == (1, delivered), "the oldest is given up")
        log = worker.log.read_text()
        assert worker.terminate() == 0
    assert [r.key for r in read_all(chunks.broker, chunks.whole)[0]] == [b"whole", b"small"]
    assert end_offsets(chunks.broker, chunks.dead) == {0: 0 if drops else 1}
    assert ("offset 0 and 0 other chunks are dropped" in log) is drops


def test_chunks_foreign_metadata_is_ignored(make_chunks: MakeChunks) -> None:
    """What another program wrote beside the offset is told in the log, and changes nothing."""
    chunks = make_chunks()
    chunks.write([message(b"%d" % n, 10) for n in range(3)])

    async def commit() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=chunks.broker,
            group_id=chunks.group("join"),
            enable_auto_commit=False,  # it would commit its own position when it ends
        )
        partition = TopicPartition(chunks.chunked, 0)
        consumer.assign([partition])
        async with consumer:
            await consumer.commit({partition: (1, "wideload:delivered=many")})

    asyncio.run(commit())
    with chunks.worker(chunks.join()) as worker:
        until(lambda: chunks.arrived(2), "the records behind the offset have arrived")
        assert "is not ours and is ignored: 'wideload:delivered=many'" in worker.log.read_text()
    assert [r.key for r in read_all(chunks.broker, chunks.whole)[0]] == [b"1", b"2"]


def test_chunks_assembled_are_offloaded(make_chunks: MakeChunks) -> None:
    """What is assembled goes on through the transforms behind: here to the store, and back."""
    chunks = make_chunks()
    (chunks.folder / "store").mkdir()
    store = {"large.message.payload.store.class": "filesystem", "filesystem.root": str(chunks.folder / "store")}
    large = message(b"large", 200_000, 0, [("own", b"1")])
    chunks.write([*pieces(large), message(b"small", 10)])
    references = chunks.dead
    offload = chunks.join(**store, **{"transforms": ["assemble", "offload"], "output.topic": references})
    offload["join"]["large.message.threshold.bytes"] = 1_000
    back = chunks._pipeline("back", references, chunks.whole, ["inflate"], store)
    with chunks.worker(offload, {"back": back}) as worker:
        until(lambda: chunks.arrived(2), "both have arrived")
        assert worker.terminate() == 0
    found = read_all(chunks.broker, chunks.whole)[0]
    assert (found[0].key, found[0].value, found[0].headers) == (b"large", large[2], (("own", b"1"),))
    assert found[1].key == b"small"
    assert read_all(chunks.broker, references)[0][0].value.startswith(b"file://")  # type: ignore[union-attr]


def test_chunks_by_strategy(make_chunks: MakeChunks) -> None:
    """With the strategy `chunk` nothing is asked of a store; `inflate` reads what comes, and need not be told of it."""
    chunks = make_chunks()
    (chunks.folder / "store").mkdir()
    store = {"large.message.payload.store.class": "filesystem", "filesystem.root": str(chunks.folder / "store")}
    records = [message(b"large", 200_000), message(b"small", 10)]
    send(chunks.broker, chunks.raw, records)
    strategy = {"large.message.strategy": "chunk"}
    split = chunks.split(**{"transforms": ["offload"], **strategy})
    join = chunks.join(**{"transforms": ["inflate"], **store})
    with chunks.worker(split, join) as worker:
        until(lambda: chunks.arrived(2), "both have arrived")
        assert worker.terminate() == 0
    assert digests(read_all(chunks.broker, chunks.whole)) == expected(records)
    assert list((chunks.folder / "store").iterdir()) == []


def test_chunks_while_the_store_is_down(make_chunks: MakeChunks) -> None:
    """With `auto`, values go as chunks while the store is down, as references else; `inflate` reads both."""
    chunks = make_chunks()
    root = chunks.folder / "store"
    root.mkdir()
    store: dict[str, object] = {
        "large.message.payload.store.class": "tests.integration.switched_store:SwitchedStore",
        "switched.root": str(root),
    }
    strategy = {"large.message.strategy": "auto", "large.message.threshold.bytes": 1_000}
    split = chunks.split(**{"transforms": ["offload"], **strategy, **store})
    join = chunks.join(**{"transforms": ["inflate"], "large.message.strategy": "auto", **store})
    records = [message(b"%d" % n, 100_000 if n % 2 else 5_000) for n in range(63)]
    with chunks.worker(split, join) as worker:
        send(chunks.broker, chunks.raw, records[:3])
        until(lambda: chunks.arrived(3), "the first have arrived")
        (root / "down").touch()
        send(chunks.broker, chunks.raw, records[3:])
        until(lambda: plain(read_all(chunks.broker, chunks.chunked)) > 66, "the next are in the log")
        assert worker.get("/health")[1]["status"] == "degraded"
        until(lambda: chunks.arrived(63), "they have arrived, and the store is still down")
        tried = worker.get("/pipelines")[1][0]["store_errors"]
        assert 0 < tried < 30, "not each value asks a store that is down"
        (root / "down").unlink()
        counter = itertools.count(1)

        def recovered() -> bool:
            send(chunks.broker, chunks.raw, [message(b"probe %d" % next(counter), 5_000)])
            return bool(worker.get("/health")[1]["status"] == "ok")

        until(recovered, "the store is used again")
        assert worker.terminate() == 0
    values = [(record.key, record.value) for record in read_all(chunks.broker, chunks.whole)[0]]
    assert values[:63] == [each[1:3] for each in records]
    between = read_all(chunks.broker, chunks.chunked)[0]
    assert any((record.value or b"").startswith(b"switched://") for record in between[:3])
    assert not any((record.value or b"").startswith(b"switched://") for record in between[3:90])


def test_chunks_dead_letter_topic_as_small_as_theirs(make_chunks: MakeChunks, make_topic: MakeTopic) -> None:
    """A chunk of the largest size is a letter of chunks where there is no room beside it for what says why."""
    chunks = make_chunks()
    chunks.tolerance["errors.deadletterqueue.topic.name"] = small = make_topic(1, **{"max.message.bytes": str(CHUNK)})
    late = pieces(message(b"late", 90_000))[1]
    chunks.write([late])
    with chunks.worker(chunks.join(**chunks.tolerance)) as worker:
        until(lambda: chunks.mark("join", chunks.chunked) == (1, ""), "the chunk is a dead letter")
        assert worker.get("/pipelines")[1][0]["failed_records"] == {"discarded-chunk": 1}
        assert worker.terminate() == 0
    reader = LetterReader(None, 1_000_000)
    (found,) = [each for record in read_all(chunks.broker, small)[0] for each in reader.add(cast(SourceRecord, record))]
    letter = reader.open(found)
    assert letter.record == Record(late[1], late[2], tuple(late[3]), STAMP)
    assert letter.origin == (chunks.chunked, 0, 0)
    assert letter.context["exception.class.name"] == "transforms.errors.DiscardedChunkError"


def test_chunks_in_little_memory(make_chunks: MakeChunks) -> None:
    """What is pending does not take the budget from what would make it whole, however small both are.

    Each message arrives whole, once, or each of its chunks is a dead letter, once.
    """
    chunks = make_chunks(partitions=3)
    chunks.settings["in.flight.bytes"] = 400_000
    messages = [message(b"m%d" % n, 90_000, n % 3) for n in range(30)]
    # Three at a time in each partition: 9 · 90,000 bytes are more than the budget, and no more than may be pending.
    chunked = [pieces(each) for each in messages]
    groups = [interleaved(chunked[start : start + 9], start) for start in (0, 9, 18, 27)]
    chunks.write(record for group in groups for record in group)
    limits = {"max.pending.chunked.bytes": 400_000, "chunk.max.message.bytes": 90_000}
    with chunks.worker(chunks.join(**limits, **chunks.tolerance)) as worker:
        until(lambda: sum(committed_of(chunks).values()) == sum(map(len, groups)), "all chunks are done with")
        page = worker.get("/pipelines")[1][0]
        assert worker.terminate() == 0
    whole = digests(read_all(chunks.broker, chunks.whole))
    arrived = [row for rows in whole.values() for row in rows]
    sent = [row for rows in expected(messages).values() for row in rows]
    assert set(arrived) <= set(sent)
    assert len(arrived) == len(set(arrived)) == page["assembled_messages"]
    assert len(arrived) >= 10
    # Those that had to go for others are dead letters, chunk by chunk, and nothing else was discarded.
    assert set(page["discarded_messages"]) <= {"evicted"}
    assert page["discarded_messages"].get("evicted", 0) == len(messages) - len(arrived)
    keys = {row[0] for row in arrived}
    given_up = [chunk[:3] for each in chunked if each[0][1] not in keys for chunk in each]
    letters = read_all(chunks.broker, chunks.dead)
    assert sorted((number, r.key, r.value) for number, found in letters.items() for r in found) == sorted(given_up)


def committed_of(chunks: Chunks) -> dict[int, int]:
    """The committed offsets of the topic of chunks."""
    return committed(chunks.broker, chunks.group("join"), chunks.chunked)


def test_chunks_follow_a_limit_that_is_lowered(make_chunks: MakeChunks) -> None:
    """Where the sink's limit is lowered while the worker runs, it begins again, and splits by the new one."""
    chunks = make_chunks()
    before, after = message(b"before", 90_000), message(b"after", 90_000)
    send(chunks.broker, chunks.raw, [before])
    with chunks.worker(chunks.split(**{"producer.batch.size": 1_000}), chunks.join()) as worker:
        until(lambda: chunks.arrived(1), "the first has arrived")
        asyncio.run(set_limit(chunks.broker, chunks.chunked, 5_000))
        send(chunks.broker, chunks.raw, [after])
        until(lambda: chunks.arrived(2), "the second has arrived")
        assert worker.get("/pipelines")[1][0]["restarts"] in (1, 2)
        assert worker.terminate() == 0
    assert [r.value for r in read_all(chunks.broker, chunks.whole)[0]] == [before[2], after[2]]
    last = read_all(chunks.broker, chunks.chunked)[0][-1]
    assert batch_of_one_bytes(Record(last.key, last.value, last.headers)) <= 5_000


REFUSED: list[tuple[str, dict[str, object], dict[str, str], str]] = [
    (
        "split",
        {},
        {"cleanup.policy": "compact"},
        "output.topic: topic {sink} has cleanup.policy compact; the chunks of",
    ),
    (
        "join",
        {},
        {"cleanup.policy": "compact,delete"},
        "topics: topic {sink} has cleanup.policy compact,delete; the chunks",
    ),
    ("split", {"chunk.max.bytes": 30_000}, {}, "chunk.max.bytes: found 30,000, allowed is no more than the sink takes"),
    ("split", {"chunk.max.bytes": 300}, {}, "chunk.max.bytes: found 300; a chunk takes "),
    (
        "split",
        {},
        {"max.message.bytes": "300"},
        "output.topic: max.message.bytes of topic {sink} is 300; a chunk takes ",
    ),
    (
        "split",
        {"transforms": ["offload", "chunk"], "large.message.threshold.bytes": 10_000},
        {},
        "transforms: found ['offload', 'chunk']; offload takes all values over 10,000 bytes, and chunk",
    ),
]


@pytest.mark.parametrize(("name", "more", "config", "told"), REFUSED)
def test_chunks_refused_at_start(
    broker: str,
    make_chunks: MakeChunks,
    make_topic: MakeTopic,
    name: str,
    more: dict[str, object],
    config: dict[str, str],
    told: str,
) -> None:
    """Topics that would lose or refuse chunks are refused before a record is read, with the reason."""
    chunks = make_chunks()
    chunks.chunked = make_topic(1, **{"max.message.bytes": str(CHUNK), **config})
    keys = {**(chunks.split() if name == "split" else chunks.join())[name], "producer.batch.size": 100}
    if name == "split" and "transforms" in more:
        keys |= {"large.message.payload.store.class": "memory"}
    settings = parse({"bootstrap.servers": broker, "pipeline": {name: {**keys, **more}}}, {})
    with pytest.raises(ConfigurationError) as caught:
        asyncio.run(check(settings))
    assert str(caught.value).startswith(f"[pipeline.{name}] {told.format(sink=chunks.chunked)}")
