"""Faults of a cluster that take long to make, by `make chaos` alone; the simulation has their like in each run."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from app.kafka.consumer_controls import ConsumerControls
from app.local.broker import EmbeddedBroker
from tests.integration.cluster import Cluster
from tests.integration.test_worker_cluster import ONCE, Traffic, arrived_in_order
from tests.integration.topics import Counted, Sent, end_offsets, read_all, send
from tests.integration.way import Way, digests, expected, first_occurrences, mixed, ways_on
from tests.integration.worker_process import WorkerProcess, until
from transforms.identifiers import transactional_id

pytestmark = pytest.mark.chaos

PROPERTIES = {
    # A replica that is gone soon counts so, and with each checkpoint a broker finds out that a disk of its own is.
    "replica.lag.time.max.ms": "3000",
    "replica.high.watermark.checkpoint.interval.ms": "500",
}


@pytest.fixture(scope="module")
def cluster(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers, for the tests of this file."""
    if pytestconfig.getoption("chaos") == "short":
        pytest.skip("only with `make chaos`")
    with Cluster(tmp_path_factory.mktemp("cluster"), {}, properties=PROPERTIES) as made:
        yield made


@pytest.fixture
def way(cluster: Cluster, tmp_path: Path) -> Way:
    """Topics of one test, three partitions each."""
    return ways_on(cluster, tmp_path)()


@contextlib.contextmanager
def flowing(traffic: Traffic) -> Iterator[None]:
    """Sends without end while the block runs, and leaves most of the machine to those who are to take it."""
    ended = threading.Event()

    def send_on() -> None:
        while not ended.wait(0.2):
            traffic.send()

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send_on)
        try:
            yield
        finally:
            ended.set()
        sending.result()


def test_worker_rolling_restart(cluster: Cluster, tmp_path: Path) -> None:
    """Each broker is restarted in turn, one after a kill, while records flow: none is lost, and nothing restarts."""
    make_way = ways_on(cluster, tmp_path)
    ways = {"offload": make_way(), "plain": make_way()}
    once = ways["offload"]
    keys = {"errors.retry.delay.max.ms": 500}
    pipelines = {**once.offload(**keys, **ONCE), "plain": ways["plain"].offload(**keys)["offload"]}
    traffic = Traffic(ways)
    with (
        contextlib.ExitStack() as restarted,
        WorkerProcess(once.folder, once.settings(), pipelines) as worker,
    ):
        worker.wait_ready()
        with flowing(traffic):
            for node, end in zip(
                cluster.nodes, (EmbeddedBroker.stop, EmbeddedBroker.kill, EmbeddedBroker.stop), strict=True
            ):
                before = traffic.sent
                restarted.callback(node.start)
                end(node)
                until(lambda before=before: traffic.sent > before + 10, "records are sent, and taken by two of three")  # type: ignore[misc]
                node.start()
                until(
                    lambda: all(cluster.in_sync(topic) for way in ways.values() for topic in (way.raw, way.orders)),
                    "it has caught up, as an operator waits for",
                )
        until(partial(traffic.flows, ways), "all have arrived")
        until(traffic.committed, "all is committed")
        assert [page["restarts"] for page in worker.get("/pipelines")[1]] == [0, 0]
        assert worker.terminate() == 0
        log = worker.log.read_text()
    for name, way in ways.items():
        arrived_in_order(way, traffic.sent, once=name == "offload")
    assert "has failed" not in log
    assert "Traceback" not in log


def is_open(way: Way) -> bool:
    """Whether the first partition of the topic of references has records of a transaction that has not ended."""
    return end_offsets(way.broker, way.orders)[0] > end_offsets(way.broker, way.orders, isolation=1)[0]


def test_worker_coordinator_killed_in_a_transaction(cluster: Cluster, way: Way) -> None:
    """The coordinator of a transaction is killed while that is open: another ends it, and each record is there once."""
    records = mixed(2_000, seed=11, partitions=3)
    counted = Counted(way.broker, way.inflated)
    long = {**ONCE, "transaction.boundary.type": "interval", "transaction.boundary.interval.ms": 5_000}
    with contextlib.ExitStack() as restarted, way.worker(**long) as worker:
        worker.wait_ready()
        name = transactional_id("offload", way.raw, 0)
        coordinator = cluster.coordinator(name)
        assert worker.process is not None
        sent = 0
        while sent < 1_000:
            send(way.broker, way.raw, records[sent : sent + 100])
            sent += 100
            until(lambda: end_offsets(way.broker, way.orders)[0] > 0, "records are written")
            os.kill(worker.process.pid, signal.SIGSTOP)
            if is_open(way):
                break  # and stays so, until the worker goes on
            os.kill(worker.process.pid, signal.SIGCONT)
        else:
            pytest.fail("no transaction was open when the worker was stopped")
        node = cluster.nodes[coordinator - 1]
        node.kill()
        restarted.callback(node.start)
        os.kill(worker.process.pid, signal.SIGCONT)
        send(way.broker, way.raw, records[sent:])
        until(lambda: counted.total() >= len(records), "all are committed, on two of three", 180)
        assert cluster.coordinator(name) != coordinator
        node.start()
        assert worker.terminate() == 0
        assert "Traceback" not in worker.log.read_text()
    assert digests(read_all(way.broker, way.orders, "read_committed")).keys() == expected(records).keys()
    assert digests(read_all(way.broker, way.inflated, "read_committed")) == expected(records)


def test_worker_disk_of_a_leader_fails(cluster: Cluster, way: Way) -> None:
    """Where a disk fails, and its broker lives on, the worker finds the new leader of what it reads by itself."""
    records: list[Sent] = [(0, b"%d" % number, b"v", [], 1_700_000_000_000) for number in range(200)]
    with WorkerProcess(way.folder, way.settings(), way.offload(**{"producer.request.timeout.ms": 2_000})) as worker:
        worker.wait_ready()
        send(way.broker, way.raw, records[:100])
        until(lambda: end_offsets(way.broker, way.orders)[0] == 100, "records flow")
        leader = cluster.leaders(way.raw)[0]
        with cluster.failing_disk(leader, way.raw, 0):
            until(lambda: all(cluster.leaders(way.raw)[0] != leader for _ in range(5)), "another leads, as each knows")
            # The first request after that is not always answered.
            send(way.broker, way.raw, records[100:], request_ms=2_000)
            until(lambda: end_offsets(way.broker, way.orders)[0] >= 200, "all have arrived")
            until(lambda: worker.get("/health")[1]["status"] == "ok", "it is well again")
        assert worker.terminate() == 0
    assert first_occurrences(digests(read_all(way.broker, way.orders))) == expected(records)


def test_committed_offsets_after_all_brokers_were_killed(cluster: Cluster, way: Way) -> None:
    """The coordinator's first answers may be older than what was committed, or none: no consumer of ours believes them.

    A plain aiokafka consumer saw that after 9 of 9 kills, here it is so after every second one.
    """
    place = TopicPartition(way.raw, 0)
    group = way.group("offload")

    async def run() -> tuple[int, list[int]]:
        last = await committing(cluster, group, place)
        with ThreadPoolExecutor(len(cluster.nodes)) as pool:
            starts = [asyncio.wrap_future(pool.submit(node.start)) for node in cluster.nodes]
            found = await asyncio.gather(
                *(committed_first(way.broker, group, place, stable) for stable in (True, False))
            )
            await asyncio.gather(*starts)
        return last, found

    last, found = asyncio.run(run())
    # A commit that was on its way may be there too.
    assert [each - last for each in found] in ([0, 0], [1, 1])


async def committing(cluster: Cluster, group: str, place: TopicPartition) -> int:
    """Commits the offsets 0, 1, 2, … until all brokers have been killed; returns the last one that was acknowledged."""
    last = 0

    async def commit(consumer: AIOKafkaConsumer) -> None:
        nonlocal last
        for number in itertools.count(1):
            await consumer.commit({place: number})
            last = number

    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, group_id=group, enable_auto_commit=False)
    consumer.assign([place])
    await consumer.start()
    committing = asyncio.create_task(commit(consumer))
    try:
        async with asyncio.timeout(60):
            while last < 500:  # noqa: ASYNC110  # nothing tells
                await asyncio.sleep(0.01)
        for node in cluster.nodes:
            await asyncio.to_thread(node.kill)
    finally:
        committing.cancel()
        await asyncio.wait([committing])
        await ConsumerControls(consumer).stop()
    return last


async def committed_first(broker: str, group: str, place: TopicPartition, stable: bool) -> int:  # noqa: FBT001
    """The first answer of a cluster that starts; -1 if it is that there is no offset."""
    while True:
        consumer = AIOKafkaConsumer(bootstrap_servers=broker, group_id=group, enable_auto_commit=False)
        controls = ConsumerControls(consumer)
        try:
            consumer.assign([place])
            await consumer.start()
            found = await controls.commits([place], stable=stable)
        except KafkaError:
            await asyncio.sleep(0.05)  # it is asked soon, not without end
        else:
            return found[place].offset if place in found else -1
        finally:
            await controls.stop()
