"""A worker whose S3 server has every kind of trouble: it waits, says why, holds little, and goes on by itself."""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.faults.proxy import Cut, Down, Error, Fault, FaultProxy, Hang, Ok, Slow
from tests.integration.topics import Counted, Sent, end_offsets, read_all, send
from tests.integration.way import Way, digests, expected
from tests.integration.worker_process import WorkerProcess, until
from tests.s3_server import S3Server

BUDGET_BYTES = 4_000_000
VALUE_BYTES = 300_000
BURST = 16  # values to each of two partitions: more than twice the budget
DELAY_MAX_S = 0.5
ATTEMPT_S = 5.0  # the most that one call takes: large.message.store.timeout.ms
INTERVAL_S = 6.0
SMALL_PARTITION = 2

TIMES = {
    "s3.connection.timeout.ms": 500,
    "s3.read.timeout.ms": 2_500,
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
    ("all 503", Error(503), 2, "SlowDown"),
    ("full", Error(507, code="XMinioStorageFull"), 0, "XMinioStorageFull"),
    ("denied", Error(403, code="AccessDenied"), 0, "AccessDenied"),
    ("cut upload", Cut(100_000, "upload"), 0, "Connection"),
    ("cut download", Cut(100_000, "download"), 0, "cut after|Connection"),
    ("slow", Slow(2.0), 0, None),
]


@dataclass
class Traffic:
    """What is sent on the way, numbered by partition in the keys."""

    way: Way
    counted: Counted
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

    def arrived(self) -> bool:
        """Whether all have come out at the far end."""
        return self.counted.total() >= len(self.sent)

    def small_arrived(self) -> bool:
        """Whether all small ones have."""
        small = sum(partition == SMALL_PARTITION for partition, *_ in self.sent)
        return self.counted.count()[SMALL_PARTITION] == small

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
    """What both pipelines hold of the budget."""
    return sum(pipeline["in_flight_bytes"] for pipeline in worker.get("/pipelines")[1])


def retries(worker: WorkerProcess) -> int:
    """How often both pipelines have asked the store again."""
    return sum(pipeline["retries"] for pipeline in worker.get("/pipelines")[1])


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.parametrize(
    ("guarantee", "chosen"),
    # With transactions less is new: that none is open while a record waits, and that none holds up others.
    [("at_least_once", None), ("exactly_once", {"down", "half 503", "cut upload", "cut download"})],
    ids=["at_least_once", "exactly_once"],
)
def test_worker_outlasts_store_troubles(
    make_way: Callable[..., Way],
    versitygw: S3Server,
    proxy: FaultProxy,
    record_property: Callable[[str, object], None],
    guarantee: str,
    chosen: set[str] | None,
) -> None:
    """Down, hanging, failing, cut and full, one after the other: degraded and why, then on by itself, nothing lost.

    Meanwhile small records of another partition flow through both pipelines, the budget holds, no partition is lost,
    and the store is not stormed. What arrives is what readers of committed records see.
    """
    way = make_way(partitions=3)
    way.store = {
        "large.message.payload.store.class": "s3",
        **replace(versitygw, endpoint=proxy.endpoint).config("outage/"),
    }
    settings = {
        **way.settings(),
        "in.flight.bytes": BUDGET_BYTES,
        "task.shutdown.graceful.timeout.ms": 5_000,
    }
    troubles = [trouble for trouble in TROUBLES if chosen is None or trouble[0] in chosen]
    keys = {**TIMES, "processing.guarantee": guarantee}
    traffic = Traffic(way, Counted(way.broker, way.inflated))
    measured: dict[str, str] = {}
    with WorkerProcess(way.folder, settings, {**way.offload(**keys), **way.inflate(**keys)}) as worker:
        worker.wait_ready()
        traffic.burst()
        until(traffic.arrived, "all is well at first")
        before_bytes = memory_bytes(worker, "VmRSS")
        for name, fault, least_s, reason in troubles:
            proxy.switch(fault)
            asked, retried, began = proxy.counts.requests, retries(worker), time.monotonic()
            traffic.burst()
            if reason is not None:
                until(lambda: worker.get("/health")[1]["status"] == "degraded", f"{name}: degraded")
                status, health = worker.get("/health")
                assert (status, health["ready"]) == (200, True)
                assert any(re.search(reason, str(why)) for why in health["reasons"].values()), (name, health)
            traffic.small()
            until(traffic.small_arrived, f"{name}: small records flow")
            assert held_bytes(worker) <= BUDGET_BYTES + 2 * (VALUE_BYTES + 1_000)
            until(lambda: time.monotonic() - began >= least_s, f"{name}: it has lasted")  # noqa: B023  # not kept
            if reason is not None and not isinstance(fault, Cut):
                assert not traffic.arrived()
                # Each of 8 threads of a pipeline in each call that was under way, then one for each pipeline.
                calls = max(proxy.counts.requests - asked, retries(worker) - retried)
                assert calls <= 40 + 2 * (time.monotonic() - began) / DELAY_MAX_S, name
            asked, lasted_s = proxy.counts.requests - asked, time.monotonic() - began
            if isinstance(fault, Slow):
                slowed = proxy.counts.slowed
                until(lambda: proxy.counts.slowed >= slowed + 8, "slow calls follow one another")  # noqa: B023
                assert worker.get("/health")[1]["status"] == "ok", "slow is not down"
            proxy.switch(Ok())
            back = time.monotonic()
            until(traffic.arrived, f"{name}: all have gone on")
            until(lambda: worker.get("/health")[1]["status"] == "ok", f"{name}: all is well again")
            measured[name] = f"{lasted_s:.1f} s, asked {asked} times, all gone on after {time.monotonic() - back:.1f} s"
        pages = worker.get("/pipelines")[1]
        assert [(page["state"], page["restarts"], len(page["partitions"])) for page in pages] == [("RUNNING", 0, 3)] * 2
        metrics = worker.text("/metrics")
        assert metrics.count("wideload_rebalances_total{") == 2
        assert all(f'wideload_rebalances_total{{pipeline="{name}"}} 0.0' in metrics for name in ("offload", "inflate"))
        grown_bytes = memory_bytes(worker, "VmHWM") - before_bytes
        measured["memory"] = f"{before_bytes / 1e6:.0f} MB at first, {grown_bytes / 1e6:.0f} MB more at most"
        assert worker.terminate() == 0
    record_property("measured", f"{measured}, {proxy.counts}")
    assert grown_bytes < 10 * BUDGET_BYTES
    assert digests(read_all(way.broker, way.inflated, "read_committed")) == expected(traffic.sent)


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
    interval_ms = 3_000
    times = {
        "s3.connection.timeout.ms": 100,
        "s3.read.timeout.ms": 1_800,
        "s3.retry.attempts": 1,
        "large.message.store.timeout.ms": 2_900,
        "consumer.max.poll.interval.ms": interval_ms,
    }
    settings = {
        **way.settings(),
        "store.threads": 1,
        "in.flight.bytes": VALUE_BYTES,
        "task.shutdown.graceful.timeout.ms": 1_000,
    }
    traffic = Traffic(way, Counted(way.broker, way.inflated))
    with WorkerProcess(way.folder, settings, way.offload(**times)) as worker:
        worker.wait_ready()
        proxy.switch(Slow(1.2))
        began = time.monotonic()
        traffic.large(6)
        until(lambda: end_offsets(way.broker, way.orders) == {0: 6}, "all are offloaded")
        assert time.monotonic() - began > 2 * interval_ms / 1000
        page = worker.get("/pipelines")[1][0]
        assert (page["state"], page["restarts"], len(page["partitions"])) == ("RUNNING", 0, 1)
        assert 'wideload_rebalances_total{pipeline="offload"} 0.0' in worker.text("/metrics")
        assert worker.terminate() == 0
    assert end_offsets(way.broker, way.orders) == {0: 6}, "none was made twice"
