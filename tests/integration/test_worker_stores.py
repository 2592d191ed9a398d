"""The worker with every store and codec, while its store is away, within a small budget, under Faust's command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.azure_server import azure_server_or_skip
from tests.cloud_server import CloudServer
from tests.gcs_server import gcs_server_or_skip
from tests.integration.topics import Sent, end_offsets, read_all, send
from tests.integration.way import THRESHOLD, MakeTopic, Way, digests, expected, mixed
from tests.integration.worker_process import StartedWorker, WorkerProcess, until
from tests.s3_server import S3Server


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
