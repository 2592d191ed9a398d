"""The metrics and pages of a worker whose pipelines wait or have failed: what an alert goes by does not vanish."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.integration.topics import Sent, send
from tests.integration.way import THRESHOLD, Way
from tests.integration.worker_process import WorkerProcess, until
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


def test_worker_keeps_the_series_of_a_failed_pipeline(make_way: Callable[..., Way]) -> None:
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


def test_worker_says_what_it_waits_for_after_a_kill(make_way: Callable[..., Way]) -> None:
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


def test_worker_tells_what_waits(make_way: Callable[..., Way]) -> None:
    """While the store is away: the age of the oldest record, the paused partition, and the store's errors."""
    way = make_way(partitions=2)
    store = way.folder / "store"
    impatient = {"large.message.store.timeout.ms": 300, "errors.retry.delay.max.ms": 100}
    with WorkerProcess(way.folder, way.settings(), way.offload(**impatient)) as worker:
        worker.wait_ready()
        stamp_ms = int(time.time() * 1000) - 100_000
        large: Sent = (0, b"a", os.urandom(THRESHOLD + 1), [], stamp_ms)
        send(way.broker, way.raw, [large])
        until(lambda: value(worker, "wideload_offloaded_records_total") == 1, "the first is offloaded")
        store.rename(way.folder / "away")
        send(way.broker, way.raw, [large])
        until(lambda: value(worker, "wideload_paused_partitions") == 1, "the partition waits for the store")
        assert [each["paused"] for each in worker.get("/pipelines")[1][0]["partitions"]] == [True, False]
        assert 100 <= (value(worker, "wideload_oldest_waiting_record_age_seconds") or 0) < 160
        errors = {"operation": "publish", "reason": "unavailable"}
        assert (value(worker, "wideload_store_errors_total", **errors) or 0) > 0
        assert value(worker, "wideload_pipeline_state", state="degraded") == 1
        (way.folder / "away").rename(store)
        until(lambda: value(worker, "wideload_lag_records", partition="0") == 0, "the record has gone on")
        assert value(worker, "wideload_oldest_waiting_record_age_seconds") == 0
        assert value(worker, "wideload_paused_partitions") == 0
