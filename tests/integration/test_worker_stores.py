"""The worker with every store and codec, while its store is away, within a small budget, under Faust's command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.azure_server import azure_server_or_skip
from tests.cloud_server import CloudServer
from tests.gcs_server import gcs_server_or_skip
from tests.integration.topics import Sent, end_offsets, read_all, send
from tests.integration.way import THRESHOLD, MakeTopic, Way, digests, expected, mixed
from tests.integration.worker_process import StartedWorker, WorkerProcess, until
from tests.s3_server import S3Server
from transforms.compression import CODECS
from transforms.reference import Reference


def test_worker_store_comes_back(make_way: Callable[..., Way]) -> None:
    """While the store is away the pipeline waits and says so, other partitions flow, and nothing is lost after."""
    way = make_way(partitions=2)
    store, away = way.folder / "store", way.folder / "away"
    large: list[Sent] = [(0, b"%d" % n, os.urandom(THRESHOLD + 1), [], 1) for n in range(5)]
    with WorkerProcess(way.folder, way.settings(), way.offload(**{"large.message.store.timeout.ms": 300})) as worker:
        worker.wait_ready()
        send(way.broker, way.raw, large[:1])
        until(lambda: end_offsets(way.broker, way.orders)[0] == 1, "the first is offloaded")
        store.rename(away)
        send(way.broker, way.raw, large[1:])
        until(lambda: worker.get("/health")[1]["status"] == "degraded", "the worker says that it waits")
        health = worker.get("/health")
        assert health[0] == 200
        assert str(store) in health[1]["reasons"]["offload"]
        connector = worker.get("/connectors/offload/status")[1]["connector"]
        assert (connector["state"], str(store) in connector["trace"]) == ("RUNNING", True)
        send(way.broker, way.raw, [(1, b"small", b"flows", [], 1)])
        until(lambda: end_offsets(way.broker, way.orders)[1] == 1, "the other partition flows")
        assert end_offsets(way.broker, way.orders)[0] == 1
        away.rename(store)
        until(lambda: end_offsets(way.broker, way.orders)[0] == 5, "the large ones have gone on")
        until(lambda: worker.get("/health")[1]["status"] == "ok", "the worker says that all is well")
        assert worker.get("/pipelines")[1][0]["retries"] > 0
        assert worker.terminate() == 0
    found = read_all(way.broker, way.orders)
    assert [record.key for record in found[0]] == [key for _, key, *_ in large]


def test_worker_keeps_partitions_while_store_is_away(make_way: Callable[..., Way]) -> None:
    """A store that is away for longer than `max.poll.interval.ms` costs the worker no partition."""
    way = make_way(partitions=2)
    store, away = way.folder / "store", way.folder / "away"
    impatient = {
        "large.message.store.timeout.ms": 300,
        "errors.retry.delay.max.ms": 100,
        "consumer.max.poll.interval.ms": 2_000,
    }
    settings = {**way.settings(), "task.shutdown.graceful.timeout.ms": 1_000}
    with WorkerProcess(way.folder, settings, way.offload(**impatient)) as worker:
        worker.wait_ready()
        send(way.broker, way.raw, [(0, b"a", os.urandom(THRESHOLD + 1), [], 1)])
        until(lambda: end_offsets(way.broker, way.orders)[0] == 1, "the first is offloaded")
        store.rename(away)
        send(way.broker, way.raw, [(n % 2, b"b%d" % n, os.urandom(THRESHOLD + 1), [], 1) for n in range(4)])
        # One of four records is tried ten times a second: well over twice the interval.
        until(lambda: worker.get("/pipelines")[1][0]["retries"] > 50, "the outage has lasted")
        away.rename(store)
        until(lambda: sum(end_offsets(way.broker, way.orders).values()) == 5, "all have gone on")
        page = worker.get("/pipelines")[1][0]
        assert (page["state"], page["restarts"], len(page["partitions"])) == ("RUNNING", 0, 2)
        metrics = worker.text("/metrics")
        assert 'wideload_rebalances_total{pipeline="offload"} 0.0' in metrics
        assert worker.terminate() == 0


def test_worker_reads_little_ahead_of_a_store_that_is_away(make_way: Callable[..., Way]) -> None:
    """Of many partitions that wait for the store little is held beside the budget; others flow, and nothing is lost."""
    budget, partitions = 1_000_000, 17
    way = make_way(partitions=partitions)
    store, away = way.folder / "store", way.folder / "away"
    # More than the budget of one partition, and eight times as much of all.
    large: list[Sent] = [
        (number, b"%d" % n, os.urandom(100_000), [], 1) for n in range(12) for number in range(partitions - 1)
    ]
    times = {
        "large.message.store.timeout.ms": 300,
        "errors.retry.delay.max.ms": 100,
        "consumer.fetch.max.bytes": budget,
    }
    settings = {**way.settings(), "in.flight.bytes": budget}
    with WorkerProcess(way.folder, settings, way.offload(**times)) as worker:

        def ahead() -> int:
            return int(worker.get("/pipelines")[1][0]["read_ahead_bytes"])

        worker.wait_ready()
        send(way.broker, way.raw, large[:1])
        until(lambda: end_offsets(way.broker, way.orders)[0] == 1, "the first is offloaded")
        store.rename(away)
        send(way.broker, way.raw, large[1:])
        until(lambda: ahead() > budget // 2, "it reads ahead")
        until(lambda: ahead() <= budget // 4, "it lets go what it has read")
        send(way.broker, way.raw, [(partitions - 1, b"small", b"flows", [], 1)])
        until(lambda: end_offsets(way.broker, way.orders)[partitions - 1] == 1, "the other partition flows")
        assert ahead() <= budget // 4
        away.rename(store)
        until(lambda: sum(end_offsets(way.broker, way.orders).values()) == len(large) + 1, "all have gone on")
        until(lambda: ahead() == 0, "nothing waits")
        assert worker.terminate() == 0
    found = read_all(way.broker, way.orders)
    for number in range(partitions - 1):
        assert [record.key for record in found[number]] == [key for at, key, *_ in large if at == number]


def test_worker_on_s3(make_way: Callable[..., Way], versitygw: S3Server) -> None:
    """Mixed records go through a real S3 server and come out identical, each once, in order."""
    way = make_way(partitions=3)
    records = mixed(1_000, seed=6, partitions=3)
    way.store = {"large.message.payload.store.class": "s3", **versitygw.config("integration/")}
    send(way.broker, way.raw, records)
    with way.worker() as worker:
        until(lambda: way.arrived(len(records)), "all records have arrived")
        assert worker.terminate() == 0
    assert versitygw.secret_key not in worker.log.read_text()
    assert digests(read_all(way.broker, way.inflated)) == expected(records)


@pytest.mark.cloud
@pytest.mark.parametrize("start", [azure_server_or_skip, gcs_server_or_skip])
def test_worker_in_a_cloud(
    make_way: Callable[..., Way],
    tmp_path: Path,
    start: Callable[[Path], AbstractContextManager[CloudServer]],
) -> None:
    """Mixed records go through a cloud's emulator and come out identical, each once, in order; no key is logged."""
    way = make_way(partitions=3)
    records = mixed(1_000, seed=6, partitions=3)
    with start(tmp_path) as cloud:
        way.store = {"large.message.payload.store.class": cloud.start, **cloud.config("integration")}
        send(way.broker, way.raw, records)
        with way.worker() as worker:
            until(lambda: way.arrived(len(records)), "all records have arrived")
            assert worker.terminate() == 0
        assert str(cloud.keys.get("azure.account.key")) not in worker.log.read_text()
    assert digests(read_all(way.broker, way.inflated)) == expected(records)


def test_worker_codecs(make_way: Callable[..., Way]) -> None:
    """Payloads are compressed in the store where that helps, by each codec, and come out identical."""
    values = [b"compressible " * THRESHOLD, os.urandom(THRESHOLD + 1)]
    ways = {codec: make_way(partitions=1) for codec in CODECS}
    pipelines: dict[str, dict[str, object]] = {}
    for codec, way in ways.items():
        send(way.broker, way.raw, [(0, b"%d" % n, value, [], 1) for n, value in enumerate(values)])
        keys = {"large.message.compression.type": codec}
        both = {**way.offload(**keys), **way.inflate(**keys)}
        pipelines |= {f"{name}-{codec}": table for name, table in both.items()}
    with WorkerProcess(way.folder, way.settings(), pipelines):
        for way in ways.values():
            until(partial(way.arrived, 2), "both have arrived")
    for codec, way in ways.items():
        assert [record.value for record in read_all(way.broker, way.inflated)[0]] == values
        references = [Reference.parse(record)[0] for record in read_all(way.broker, way.orders)[0]]
        assert references[0].codec == codec
        assert Path(references[0].path.removeprefix("file://")).stat().st_size < len(values[0]) / 5
        assert (references[1].codec in {None, codec}, references[1].size) == (True, len(values[1]))


def test_worker_within_small_budget(make_way: Callable[..., Way]) -> None:
    """Values that together are many times the byte budget all pass, one over the budget by itself among them."""
    way = make_way(partitions=3)
    records: list[Sent] = [(n % 3, b"%d" % n, os.urandom(300_000), [], 1) for n in range(60)]
    records.append((0, b"over", os.urandom(1_500_000), [], 1))
    send(way.broker, way.raw, records)
    settings = {**way.settings(), "in.flight.bytes": 1_000_000}
    with WorkerProcess(way.folder, settings, {**way.offload(), **way.inflate()}) as worker:
        until(lambda: way.arrived(len(records)), "all records have arrived")
        assert worker.terminate() == 0
    assert digests(read_all(way.broker, way.inflated)) == expected(records)


def test_worker_under_faust_command(make_way: Callable[..., Way], make_topic: MakeTopic) -> None:
    """`faust -A MODULE worker` runs the pipelines, and a user's own agent beside them."""
    way = make_way(partitions=1)
    answers = make_topic(1)
    topic = make_topic(1)
    (way.folder / "mine.py").write_text(
        "from app.worker import app\n"
        f"source = app.topic({topic!r}, value_serializer='raw')\n"
        f"sink = app.topic({answers!r}, value_serializer='raw')\n"
        "@app.agent(source)\n"
        "async def shout(stream):\n"
        "    async for value in stream:\n"
        "        await sink.send(value=value.upper())\n"
    )

    class FaustProcess(StartedWorker):
        def command(self) -> list[str]:
            return [sys.executable, "-m", "faust", "-A", "mine", "worker", "--web-port", str(self.port)]

    worker = FaustProcess(way.folder, way.settings(), way.offload())
    path = os.pathsep.join([str(way.folder), str(Path.cwd())])
    try:
        worker.start({"WIDELOAD_CONFIG": str(worker.config), "PYTHONPATH": path})
        worker.wait_ready()
        send(way.broker, way.raw, [(0, b"k", os.urandom(THRESHOLD + 1), [], 1)])
        send(way.broker, topic, [(0, b"k", b"hello", [], 1)])
        until(lambda: end_offsets(way.broker, way.orders) == {0: 1}, "the record is offloaded")
        until(lambda: end_offsets(way.broker, answers) == {0: 1}, "the agent has answered")
        assert worker.terminate() == 0
    finally:
        worker.kill()
    assert read_all(way.broker, answers)[0][0].value == b"HELLO"
