"""The worker with every store, while its store is away, under Faust's command; what its pages and metrics say."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.azure_server import azure_server_or_skip
from tests.cloud_server import CloudServer
from tests.gcs_server import gcs_server_or_skip
from tests.integration.topics import Sent, end_offsets, read_all, send
from tests.integration.way import THRESHOLD, MakeTopic, MakeWay, digests, expected, mixed
from tests.integration.worker_process import StartedWorker, WorkerProcess, until
from tests.s3_server import s3_server_or_skip
from transforms.reference import VALUE

FORGED: Sent = (0, b"forged", b"file:///etc/passwd", [(VALUE.flag, b"true")], 1)


def value(worker: WorkerProcess, name: str, **labels: str) -> float | None:
    """The value of the only sample with these labels; None if there is none."""
    samples = [
        sample.value
        for family in text_string_to_metric_families(worker.text("/metrics"))
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(samples) <= 1
    return samples[0] if samples else None


def test_worker_keeps_the_series_of_a_failed_pipeline(make_way: MakeWay) -> None:
    """A failed pipeline keeps its lag and offsets, and counts the one record that has ended it, of six like it."""
    way = make_way(partitions=2)
    settings = {**way.settings(), "log.format": "json"}
    with WorkerProcess(way.folder, settings, {**way.offload(), **way.inflate()}) as worker:
        worker.wait_ready()
        empty = {"pipeline": "inflate", "topic": way.orders, "partition": "1"}
        until(lambda: value(worker, "wideload_lag_records", **empty) == 0, "a partition without records has a lag")
        assert value(worker, "wideload_end_offset", **empty) == 0
        assert value(worker, "wideload_pipeline_state", pipeline="inflate", state="running") == 1
        send(way.broker, way.orders, [FORGED] * 6)
        failed = {"pipeline": "inflate", "state": "failed"}
        until(lambda: value(worker, "wideload_pipeline_state", **failed) == 1, "it has failed")
        assert value(worker, "wideload_lag_records", **{**empty, "partition": "0"}) == 6
        assert value(worker, "wideload_lag_records", **empty) == 0
        assert value(worker, "wideload_failed_records_total", pipeline="inflate") == 1
        page = next(each for each in worker.get("/pipelines")[1] if each["name"] == "inflate")
        assert [each["lag"] for each in page["partitions"]] == [6, 0]
        assert worker.terminate() == 1
    lines = [json.loads(line) for line in worker.log.read_text().splitlines()]
    (failure,) = [line for line in lines if "has failed:" in line["message"]]
    assert (failure["level"], failure["pipeline"]) == ("ERROR", "inflate")
    assert lines[-1]["message"].startswith(f"[pipeline.inflate] topic {way.orders}, partition 0, offset 0")


def test_worker_says_what_it_waits_for_after_a_kill(make_way: MakeWay) -> None:
    """After `kill -9` a new worker says once, in the log and on /health, for whom it waits and until when."""
    way = make_way(partitions=2)
    with WorkerProcess(way.folder, way.settings(), way.offload()) as worker:
        worker.constants = {"app.kafka.troubles:_JOINS_S": 0.2, "app.pipeline.state_log:_LOOK_S": 0.1}
        worker.wait_ready()
        worker.kill()
        worker.start()
        awaited = f"of group {way.group('offload')}: for one that was killed until 2"

        def told() -> dict[str, Any] | None:
            status, health = worker.get("/health")
            return health if status == 503 and awaited in health["reasons"]["offload"] else None

        health = until(told, "the worker says what it waits for")
        assert health is not None
        assert (health["status"], health["ready"], health["live"]) == ("starting", False, True)
        worker.wait_ready()
        assert worker.get("/health") == (200, {"status": "ok", "live": True, "ready": True, "reasons": {}})
        assert worker.log.read_text().count(awaited) == 1


def test_worker_store_comes_back(make_way: MakeWay) -> None:
    """While the store is away the pipeline waits and says so, other partitions flow, and nothing is lost after.

    Metrics have the age of the oldest record, the paused partition, and the store's errors.
    """
    way = make_way(partitions=2)
    store, away = way.folder / "store", way.folder / "away"
    stamp_ms = int(time.time() * 1000) - 100_000
    large: list[Sent] = [(0, b"%d" % n, os.urandom(THRESHOLD + 1), [], stamp_ms) for n in range(5)]
    impatient = {"large.message.store.timeout.ms": 300, "errors.retry.delay.max.ms": 100}
    with WorkerProcess(way.folder, way.settings(), way.offload(**impatient)) as worker:
        worker.wait_ready()
        send(way.broker, way.raw, large[:1])
        until(lambda: end_offsets(way.broker, way.orders)[0] == 1, "the first is offloaded")
        store.rename(away)
        send(way.broker, way.raw, large[1:])
        until(lambda: worker.get("/health")[1]["status"] == "degraded", "the worker says that it waits")
        status, health = worker.get("/health")
        assert (status, str(store) in health["reasons"]["offload"]) == (200, True)
        connector = worker.get("/connectors/offload/status")[1]["connector"]
        assert (connector["state"], str(store) in connector["trace"]) == ("RUNNING", True)
        send(way.broker, way.raw, [(1, b"small", b"flows", [], 1)])
        until(lambda: end_offsets(way.broker, way.orders)[1] == 1, "the other partition flows")
        until(lambda: value(worker, "wideload_paused_partitions") == 1, "the partition waits for the store")
        assert [each["paused"] for each in worker.get("/pipelines")[1][0]["partitions"]] == [True, False]
        assert 100 <= (value(worker, "wideload_oldest_waiting_record_age_seconds") or 0) < 160
        errors = {"operation": "publish", "reason": "unavailable"}
        assert (value(worker, "wideload_store_errors_total", **errors) or 0) > 0
        assert value(worker, "wideload_pipeline_state", state="degraded") == 1
        assert end_offsets(way.broker, way.orders)[0] == 1
        away.rename(store)
        until(lambda: end_offsets(way.broker, way.orders)[0] == 5, "the large ones have gone on")
        until(lambda: worker.get("/health")[1]["status"] == "ok", "the worker says that all is well")
        until(lambda: value(worker, "wideload_lag_records", partition="0") == 0, "there is no lag")
        assert value(worker, "wideload_oldest_waiting_record_age_seconds") == 0
        assert value(worker, "wideload_paused_partitions") == 0
        assert worker.get("/pipelines")[1][0]["retries"] > 0
        assert worker.terminate() == 0
    assert [record.key for record in read_all(way.broker, way.orders)[0]] == [key for _, key, *_ in large]


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(azure_server_or_skip, marks=pytest.mark.cloud),
        pytest.param(gcs_server_or_skip, marks=pytest.mark.cloud),
        pytest.param(None, marks=pytest.mark.s3),
    ],
    ids=["azure", "gcs", "s3"],
)
def test_worker_on_a_server(
    make_way: MakeWay, tmp_path: Path, start: Callable[[Path], AbstractContextManager[CloudServer]] | None
) -> None:
    """Mixed records go through an S3 server, or a cloud's emulator, and come out identical, each once, in order."""
    way = make_way(partitions=3)
    records = mixed(1_000, seed=6, partitions=3)
    with ExitStack() as stack:
        if start is None:
            server = stack.enter_context(s3_server_or_skip("versitygw", tmp_path))
            way.store = {"large.message.payload.store.class": "s3", **server.config("integration/")}
            secret = server.secret_key
        else:
            cloud = stack.enter_context(start(tmp_path))
            way.store = {"large.message.payload.store.class": cloud.start, **cloud.config("integration")}
            secret = str(cloud.keys.get("azure.account.key"))
        send(way.broker, way.raw, records)
        with way.worker() as worker:
            until(lambda: way.arrived(len(records)), "all records have arrived")
            assert worker.terminate() == 0
        assert secret not in worker.log.read_text()
    assert digests(read_all(way.broker, way.inflated)) == expected(records)


def test_worker_under_faust_command(make_way: MakeWay, make_topic: MakeTopic) -> None:
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
