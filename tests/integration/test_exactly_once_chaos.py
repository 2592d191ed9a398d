"""Exactly once, with processes: workers that are killed, or paused, while records flow.

A reader of committed records sees each one once, in the order in which it was sent. That others were written and
aborted is looked at too: else a test could not have failed. `make chaos` kills more often, and sends more.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.integration.topics import Counted, Sent, end_offsets, read_all, send
from tests.integration.way import THRESHOLD, MakeTopic, MakeWay, Way, expected, stream
from tests.integration.worker_process import WorkerProcess, until
from transforms.chunk import Chunk, is_chunk

KILLS = {"short": 6, "long": 200}
RECORDS = {"short": 200, "long": 5_000}  # while a worker stands still
ONCE = {"processing.guarantee": "exactly_once"}


@contextmanager
def flowing(way: Way, rng: random.Random) -> Iterator[list[Sent]]:
    """Sends small and large records while the block runs; gives those that were sent."""
    sent: list[Sent] = []
    ended = threading.Event()

    def send_on() -> None:
        records = stream(random.Random(rng.random()), 2)
        while not ended.wait(0.02):
            some = list(itertools.islice(records, 12))
            send(way.broker, way.raw, some)
            sent.extend(some)

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send_on)
        try:
            yield sent
        finally:
            ended.set()
        sending.result()


def more(way: Way, topic: str, count: int, *partitions: int) -> None:
    """Waits until so much more stands in partitions, whether committed, aborted, or the mark of either."""

    def end() -> int:
        ends = end_offsets(way.broker, topic)
        return sum(ends[number] for number in partitions or ends)

    least = end() + count
    until(lambda: end() >= least, f"{count} more are in {topic}")


def keys_of(sent: list[Sent]) -> dict[int, list[bytes | None]]:
    """The keys alone, by partition."""
    return {partition: [key for key, _ in rows] for partition, rows in expected(sent).items()}


def keys_once(broker: str, topic: str) -> dict[int, list[bytes | None]]:
    """The keys of a topic that has references, or chunks, each of which is asserted to be there once."""
    keys: dict[int, list[bytes | None]] = {}
    for partition, records in read_all(broker, topic, "read_committed").items():
        chunks = [Chunk.parse(each)[0] if is_chunk(each.headers) else None for each in records]
        ids = [(chunk.uuid, chunk.id) for chunk in chunks if chunk]
        assert len(ids) == len(set(ids))
        last = [not chunk or chunk.id == chunk.count - 1 for chunk in chunks]
        keys[partition] = [each.key for each, is_last in zip(records, last, strict=True) if is_last]
    return keys


@pytest.mark.chaos
@pytest.mark.parametrize("boundary", ["interval", "poll"])
def test_each_record_once_after_kills(
    make_way: MakeWay, make_topic: MakeTopic, rng: random.Random, chaos: str, boundary: str
) -> None:
    """After `kill -9` at random moments each record, small, offloaded or in chunks, is there once, in order."""
    if (chaos, boundary) == ("short", "poll"):
        pytest.skip("only with `make chaos`")
    way = make_way(2)
    chunked, whole = (make_topic(2, **{"retention.ms": "-1"}) for _ in range(2))
    sinks = (way.orders, way.inflated, chunked, whole)
    # A static member has its partitions again at once, whoever else has not noticed that it was gone.
    static = {"consumer.group.instance.id": "only", "consumer.session.timeout.ms": 10_000}
    # While records flow, a transaction that ends by time is nearly always open, for a kill to leave behind.
    keys = {**ONCE, **static, "transaction.boundary.type": boundary, "transaction.boundary.interval.ms": 200}
    there = {"transforms": ["chunk"], "output.topic": chunked, "group.id": chunked, "chunk.max.bytes": THRESHOLD}
    back = {"topics": [chunked], "transforms": ["assemble"], "output.topic": whole, "group.id": whole}
    pipelines = {
        **way.offload(**keys),
        **way.inflate(**keys),
        "chunk": way.offload(**keys, **there)["offload"],
        "assemble": way.offload(**keys, **back)["offload"],
    }
    arrived = {sink: Counted(way.broker, sink) for sink in (way.inflated, whole)}
    with WorkerProcess(way.folder, way.settings(), pipelines) as worker:
        with flowing(way, rng) as sent:
            for kill in range(KILLS[chaos]):
                if kill % 5:  # one in five while it starts, the others while it writes to one of the sinks
                    more(way, sinks[kill % 5 - 1], 1)
                time.sleep(rng.random() * 0.3)  # the moment is what is random here; nothing waits for this time
                worker.kill()
                worker.start()
        for each in arrived.values():
            until(lambda counted=each: counted.total() >= len(sent), "all have arrived", 120)  # type: ignore[misc]
        worker.wait_ready()
        assert worker.terminate() == 0
    for each in arrived.values():
        assert each.total() == len(sent)
        assert each.rows == expected(sent)
    for sink in (way.orders, chunked):
        assert keys_once(way.broker, sink) == keys_of(sent)
    aborted = [sum(map(len, read_all(way.broker, sink).values())) > len(sent) for sink in arrived]
    assert boundary == "poll" or any(aborted)


@pytest.mark.chaos
def test_zombie_is_fenced(make_way: MakeWay, rng: random.Random, chaos: str) -> None:
    """A worker that is paused until its partitions are another's writes nothing when it wakes, and joins again."""
    way = make_way(2)
    long = {"transaction.boundary.type": "interval", "transaction.boundary.interval.ms": 30_000}
    zombie, other = (
        WorkerProcess(way.folder, way.settings(), way.offload(**ONCE, **more)) for more in (long, dict[str, object]())
    )
    counted = Counted(way.broker, way.orders)
    with zombie, other:
        with flowing(way, rng) as sent:
            zombie.wait_ready()
            other.wait_ready()
            until(lambda: len(partitions_of(zombie)) == 1, "each has its part")
            # It stops with a transaction that is open, and has records.
            (own,) = partitions_of(zombie)
            more(way, way.orders, 20, own)
            assert zombie.process is not None
            os.kill(zombie.process.pid, signal.SIGSTOP)
            until(lambda: len(partitions_of(other)) == 2, "the other has all")
            more(way, way.orders, RECORDS[chaos], own)
            os.kill(zombie.process.pid, signal.SIGCONT)
            until(lambda: zombie.get("/pipelines")[1][0]["restarts"] == 1, "the zombie has begun again")
            zombie.wait_ready()
            until(lambda: len(partitions_of(other)) == 1, "it has its part again")
        assert zombie.terminate() == 0
        until(lambda: counted.total() >= len(sent), "all have arrived", 120)
        assert other.terminate() == 0
        log = zombie.log.read_text()
    assert "another producer has the transactional.id now" in log
    assert "Traceback" not in log
    assert keys_once(way.broker, way.orders) == keys_of(sent)
    assert sum(map(len, read_all(way.broker, way.orders).values())) > len(sent), "some were aborted"


def partitions_of(worker: WorkerProcess) -> list[int]:
    """What the one pipeline of a worker has been given."""
    return [each["partition"] for each in worker.get("/pipelines")[1][0]["partitions"]]
