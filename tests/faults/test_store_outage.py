"""A worker whose S3 server has every kind of trouble: it waits, says why, holds little, and goes on by itself."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.faults.proxy import Cut, Down, Error, Fault, FaultProxy, Hang, Ok, Slow
from tests.integration.topics import Sent, end_offsets, send
from tests.integration.way import MakeTopic, Way, expected
from tests.integration.worker_process import WorkerProcess, until
from tests.s3_server import S3Server

BUDGET_BYTES = 1_200_000
VALUE_BYTES = 150_000
BURST = 10  # values to each of two partitions: more than twice the budget
DELAY_MAX_S = 0.2
ATTEMPT_S = 2.5  # the most that one call takes: large.message.store.timeout.ms
INTERVAL_S = 3.0
SLOW_S = 0.6
MORE_BYTES = 20_000_000  # the most that the worker grows by; three times as much goes through it
PARTITIONS = 3
SMALL_PARTITION = 2
PIPELINES = 4

TIMES = {
    "s3.connection.timeout.ms": 200,
    "s3.read.timeout.ms": 1_300,
    "s3.retry.attempts": 1,
    "large.message.store.timeout.ms": int(ATTEMPT_S * 1000),
    "errors.retry.delay.max.ms": int(DELAY_MAX_S * 1000),
    "consumer.max.poll.interval.ms": int(INTERVAL_S * 1000),
}

# What it is called, the fault, how long it lasts at least, and what /health says then.
TROUBLES: list[tuple[str, Fault, float, str | None]] = [
    ("down", Down(), INTERVAL_S + 1, "EndpointConnectionError|ConnectionClosedError|Connection"),
    ("hang", Hang(), 0, "ReadTimeout|not answered"),
    ("half 503", Error(503, share=0.5), 0, None),
    ("all 503", Error(503), 10 * DELAY_MAX_S, "SlowDown"),
    ("full", Error(507, code="XMinioStorageFull"), 0, "XMinioStorageFull"),
    ("denied", Error(403, code="AccessDenied"), 0, "AccessDenied"),
    ("refused", Error(400, code="InvalidArgument"), 0, "InvalidArgument"),
    ("cut upload", Cut(100_000, "upload"), 0, "Connection"),
    ("cut download", Cut(100_000, "download"), 0, "closed after|Connection"),
    ("slow", Slow(SLOW_S), 0, None),
]


class Ends:
    """Reads topics, as readers of committed records do, in a thread of its own while a test goes on.

    Attributes:
        rows: keys and digests by topic and partition, in order.
        position: the offset behind what was read, by topic and partition.
    """

    def __init__(self, broker: str, *topics: str) -> None:
        self.rows: dict[str, dict[int, list[tuple[bytes | None, str]]]] = {
            topic: {number: [] for number in range(PARTITIONS)} for topic in topics
        }
        self.position: dict[str, dict[int, int]] = {topic: dict.fromkeys(rows, 0) for topic, rows in self.rows.items()}
        self._broker = broker
        self._stopping = threading.Event()
        self._reading = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._read = self._reading.submit(asyncio.run, self._run())
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._reading.shutdown()
        self._read.result()

    def least(self, partitions: Sequence[int] = range(PARTITIONS)) -> int:
        """How many records of these partitions have come, in the topic that has the fewest."""
        return min(sum(len(rows[number]) for number in partitions) for rows in self.rows.values())

    def most(self) -> int:
        """How many records have come, in the topic that has the most."""
        return max(sum(map(len, rows.values())) for rows in self.rows.values())

    async def _run(self) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._broker, isolation_level="read_committed", auto_offset_reset="earliest"
        )
        consumer.assign([TopicPartition(topic, number) for topic, rows in self.rows.items() for number in rows])
        try:
            await consumer.start()
            while not self._stopping.is_set():
                for partition, records in (await consumer.getmany(timeout_ms=100)).items():
                    self.rows[partition.topic][partition.partition] += [
                        (record.key, hashlib.sha256(record.value).hexdigest()) for record in records
                    ]
                for partition in consumer.assignment():
                    self.position[partition.topic][partition.partition] = await consumer.position(partition)
        finally:
            await consumer.stop()


@dataclass
class Traffic:
    """What is sent to a topic, numbered in the keys."""

    way: Way
    sent: list[Sent] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _chance: random.Random = field(default_factory=lambda: random.Random(13))

    def burst(self) -> None:
        """Large values to two partitions."""
        self._send([(n % 2, VALUE_BYTES) for n in range(2 * BURST)])

    def large(self, count: int) -> None:
        """Large values to one partition."""
        self._send([(0, VALUE_BYTES)] * count)

    def small(self) -> None:
        """A small one to the third."""
        self._send([(SMALL_PARTITION, 10)])

    def count(self, partition: int) -> int:
        """How many were sent to a partition."""
        return sum(number == partition for number, *_ in self.sent)

    def _send(self, wanted: list[tuple[int, int]]) -> None:
        records: list[Sent] = [
            (partition, b"%d" % next(self._numbers), self._chance.randbytes(size), [], 1) for partition, size in wanted
        ]
        self.sent += records
        send(self.way.broker, self.way.raw, records)


def memory_bytes(worker: WorkerProcess, name: str) -> int:
    """A line of the process's status, as `VmRSS`, or `VmHWM` for the most there has been."""
    assert worker.process is not None
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{worker.process.pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def held_bytes(worker: WorkerProcess) -> int:
    """What the pipelines hold of the budget."""
    return sum(pipeline["in_flight_bytes"] for pipeline in worker.get("/pipelines")[1])


def retries(worker: WorkerProcess) -> int:
    """How often the pipelines have asked the store again."""
    return sum(pipeline["retries"] for pipeline in worker.get("/pipelines")[1])


def said(worker: WorkerProcess, reason: str, guaranteed: bool) -> bool:  # noqa: FBT001
    """Whether a pipeline that delivers exactly once, or one that does not, gives this reason."""
    reasons = worker.get("/health")[1]["reasons"].items()
    return any(re.search(reason, str(why)) for name, why in reasons if name.endswith("-once") == guaranteed)


def outlasted(
    name: str,
    fault: Fault,
    least_s: float,
    reason: str | None,
    worker: WorkerProcess,
    proxy: FaultProxy,
    traffic: Traffic,
    ends: Ends,
) -> str:
    """Holds what is promised of one trouble, from its beginning until all has gone on; returns what was measured."""
    proxy.switch(fault)
    asked, retried, began = proxy.counts.requests, retries(worker), time.monotonic()
    traffic.burst()
    if reason is not None:
        until(lambda: worker.get("/health")[1]["status"] == "degraded", f"{name}: degraded")
        status, health = worker.get("/health")
        assert (status, health["ready"]) == (200, True)
        assert any(re.search(reason, str(why)) for why in health["reasons"].values()), (name, health)
        for guaranteed in (False, True):
            says = partial(said, worker, reason, guaranteed)
            until(says, f"{name}: degraded, {'exactly' if guaranteed else 'at least'} once")
    traffic.small()
    small = traffic.count(SMALL_PARTITION)
    until(lambda: ends.least([SMALL_PARTITION]) == small, f"{name}: small records flow")
    assert held_bytes(worker) <= BUDGET_BYTES + PIPELINES * (VALUE_BYTES + 1_000)
    until(lambda: time.monotonic() - began >= least_s, f"{name}: it has lasted")
    if reason is not None and not isinstance(fault, Cut):
        assert ends.most() < len(traffic.sent)
        # Each of 8 threads of a pipeline in each call that was under way, then one for each pipeline.
        calls = max(proxy.counts.requests - asked, retries(worker) - retried)
        assert calls <= (20 + (time.monotonic() - began) / DELAY_MAX_S) * PIPELINES, name
    asked, lasted_s = proxy.counts.requests - asked, time.monotonic() - began
    if isinstance(fault, Slow):
        slowed = proxy.counts.slowed
        until(lambda: proxy.counts.slowed >= slowed + 8, "slow calls follow one another")
        assert worker.get("/health")[1]["status"] == "ok", "slow is not down"
    proxy.switch(Ok())
    back = time.monotonic()
    until(lambda: ends.least() >= len(traffic.sent), f"{name}: all have gone on")
    until(lambda: worker.get("/health")[1]["status"] == "ok", f"{name}: all is well again")
    return f"{lasted_s:.1f} s, asked {asked} times, all gone on after {time.monotonic() - back:.1f} s"


@pytest.mark.slow
@pytest.mark.s3
def test_worker_outlasts_store_troubles(
    make_way: Callable[..., Way],
    make_topic: MakeTopic,
    versitygw: S3Server,
    proxy: FaultProxy,
    record_property: Callable[[str, object], None],
) -> None:
    """Down, hanging, failing, cut and full, one after the other: degraded and why, then on by itself, nothing lost.

    Meanwhile small records of another partition flow through all pipelines, the budget holds, no partition is lost, and
    the store is not stormed. What arrives is what readers of committed records see. Two pipelines deliver at least
    once, and two exactly once: no transaction is open while a record waits, and none holds up others.
    """
    way = make_way(partitions=PARTITIONS)
    way.store = {
        "large.message.payload.store.class": "s3",
        **replace(versitygw, endpoint=proxy.endpoint).config("outage/"),
    }
    settings = {
        **way.settings(),
        "in.flight.bytes": BUDGET_BYTES,
        "task.shutdown.graceful.timeout.ms": 2_500,
    }
    once = copy(way)
    once.orders, once.inflated = (make_topic(PARTITIONS, **{"retention.ms": "-1"}) for _ in range(2))
    exactly: dict[str, object] = {**TIMES, "processing.guarantee": "exactly_once"}
    pipelines = {
        **way.offload(**TIMES),
        **way.inflate(**TIMES),
        "offload-once": {**once.offload(**exactly)["offload"], "group.id": way.group("offload-once")},
        "inflate-once": {**once.inflate(**exactly)["inflate"], "group.id": way.group("inflate-once")},
    }
    traffic = Traffic(way)
    measured: dict[str, str] = {}
    with (
        Ends(way.broker, way.inflated, once.inflated) as ends,
        WorkerProcess(way.folder, settings, pipelines) as worker,
    ):
        worker.wait_ready()
        traffic.burst()
        until(lambda: ends.least() >= len(traffic.sent), "all is well at first")
        before_bytes = memory_bytes(worker, "VmRSS")
        for trouble in TROUBLES:
            measured[trouble[0]] = outlasted(*trouble, worker, proxy, traffic, ends)
        pages = worker.get("/pipelines")[1]
        states = [(page["state"], page["restarts"], len(page["partitions"])) for page in pages]
        assert states == [("RUNNING", 0, PARTITIONS)] * PIPELINES
        metrics = worker.text("/metrics")
        assert metrics.count("wideload_rebalances_total{") == PIPELINES
        assert all(f'wideload_rebalances_total{{pipeline="{name}"}} 0.0' in metrics for name in pipelines)
        grown_bytes = memory_bytes(worker, "VmHWM") - before_bytes
        measured["memory"] = f"{before_bytes / 1e6:.0f} MB at first, {grown_bytes / 1e6:.0f} MB more at most"
        assert worker.terminate() == 0
        ended = {topic: end_offsets(way.broker, topic) for topic in ends.rows}
        until(lambda: ends.position == ended, "all is read")
    record_property("measured", f"{measured}, {proxy.counts}")
    assert grown_bytes < MORE_BYTES
    assert list(ends.rows.values()) == [expected(traffic.sent)] * 2


@pytest.mark.s3
def test_worker_keeps_partitions_while_payloads_take_long(
    make_way: Callable[..., Way], versitygw: S3Server, proxy: FaultProxy
) -> None:
    """Payloads that together take twice `max.poll.interval.ms` cost no partition, with the budget spent meanwhile."""
    way = make_way(partitions=1)
    way.store = {
        "large.message.payload.store.class": "s3",
        **replace(versitygw, endpoint=proxy.endpoint).config("long/"),
    }
    interval_ms = 2_000
    times = {
        "s3.connection.timeout.ms": 50,
        "s3.read.timeout.ms": 900,
        "s3.retry.attempts": 1,
        "large.message.store.timeout.ms": 1_950,
        "consumer.max.poll.interval.ms": interval_ms,
    }
    settings = {
        **way.settings(),
        "store.threads": 1,
        "in.flight.bytes": VALUE_BYTES,
        "task.shutdown.graceful.timeout.ms": 1_000,
    }
    traffic = Traffic(way)
    with WorkerProcess(way.folder, settings, way.offload(**times)) as worker:
        worker.wait_ready()
        proxy.switch(Slow(0.6))
        began = time.monotonic()
        traffic.large(7)
        until(lambda: end_offsets(way.broker, way.orders) == {0: 7}, "all are offloaded")
        assert time.monotonic() - began > 2 * interval_ms / 1000
        page = worker.get("/pipelines")[1][0]
        assert (page["state"], page["restarts"], len(page["partitions"])) == ("RUNNING", 0, 1)
        assert 'wideload_rebalances_total{pipeline="offload"} 0.0' in worker.text("/metrics")
        assert worker.terminate() == 0
    assert end_offsets(way.broker, way.orders) == {0: 7}, "none was made twice"
