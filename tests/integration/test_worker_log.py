"""The log of a worker as an operator reads it: what runs, each change of a state once, and how it has ended."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

from app.config.version import VERSION
from tests.integration.topics import Sent, send
from tests.integration.way import THRESHOLD, Way
from tests.integration.worker_process import WorkerProcess, until


def lines(worker: WorkerProcess) -> list[dict[str, Any]]:
    """The lines of a log in JSON."""
    return [json.loads(line) for line in worker.log.read_text().splitlines()]


def said(worker: WorkerProcess, text: str) -> list[dict[str, Any]]:
    """Those with this text in their message."""
    return [line for line in lines(worker) if text in line["message"]]


def test_log_of_a_worker_from_start_to_end(make_way: Callable[..., Way]) -> None:
    """Start, another member of the group that comes and goes, a store that is away, two SIGTERMs: each is told once."""
    way = make_way(partitions=2)
    settings = {**way.settings(), "log.format": "json", "task.shutdown.graceful.timeout.ms": 1_000}
    keys: dict[str, object] = {"errors.retry.delay.max.ms": 50, "large.message.store.timeout.ms": 200}
    pipelines = way.offload(**keys)
    large: list[Sent] = [(partition, b"k", os.urandom(THRESHOLD + 1), [], 1) for partition in (0, 1)]
    one, two = (WorkerProcess(way.folder, settings, pipelines) for _ in range(2))
    one.constants = {"app.kafka.troubles:_STORE_AGAIN_S": 0.5}
    with one:
        one.wait_ready()
        send(way.broker, way.raw, large)
        until(lambda: one.get("/pipelines")[1][0]["offloaded_records"] == 2, "the large values are offloaded")
        with two:
            two.wait_ready()
            until(lambda: said(one, "gave back"), "the first gives a partition back")
            assert two.terminate() == 0
        both = f"reads {way.raw}-0, {way.raw}-1"
        until(lambda: len(said(one, both)) == 2, "the first reads both again")
        store = way.folder / "store"
        store.rename(way.folder / "away")
        send(way.broker, way.raw, large)
        until(lambda: said(one, "the store fails since"), "it says again that the store fails")
        (way.folder / "away").rename(store)
        until(lambda: said(one, "the store answers again"), "it says that the store answers")
        store.rename(way.folder / "away")
        send(way.broker, way.raw, large[:1])
        until(lambda: one.get("/pipelines")[1][0]["records_in"] == 5, "the last record is read")
        assert one.process is not None
        one.process.send_signal(signal.SIGTERM)
        until(lambda: said(one, "wideload stops"), "it stops")
        assert one.terminate() == 0
    (sweeps,) = said(one, "it grows unless a sweep is scheduled")
    assert sweeps["level"] == "INFO"
    log = [line for line in lines(one) if line != sweeps]
    assert not [line for line in log if line["logger"].startswith(("aiokafka", "faust", "mode"))]
    assert Counter(line["message"] for line in log).most_common(1)[0][1] <= 2
    check(way, one, log)
    assert lines(two)[-2]["message"].endswith("; all that was read is committed")


def check(way: Way, one: WorkerProcess, log: list[dict[str, Any]]) -> None:
    """What the lines say, from the first to the last."""
    begins, starts, where, reads = log[:4]
    assert begins["message"].startswith(f"wideload {VERSION} starts as process ")
    assert (begins["configuration"], begins["pages"]) == (str(one.config), f"http://127.0.0.1:{one.port}/")
    named = {"pipeline": "offload", "sources": [way.raw], "sink": way.orders, "transforms": ["offload"]}
    assert {name: starts[name] for name in named} == named
    assert starts["message"].startswith(f"pipeline offload starts: {way.raw} (2 partitions) to {way.orders} (2 part")
    assert where["message"].endswith("has committed nothing: there are no records yet")
    assert reads["message"] == f"pipeline offload reads {way.raw}-0, {way.raw}-1"
    (gave_back,) = said(one, "gave back")
    assert {*gave_back["partitions"], *gave_back["given_back"]} == {f"{way.raw}-0", f"{way.raw}-1"}
    fails = [line for line in log if line["logger"].endswith("kafka.troubles")]
    assert fails[0]["message"].endswith(f"is tried again: directory {way.folder}/store does not exist; is it mounted?")
    for line in (fails[0], said(one, "the store fails since 20")[0]):
        assert (line["level"], line["topic"], line["offset"]) == ("WARNING", way.raw, 1)
    stops, again, drained, ended, last = [line for line in log if line not in fails][-5:]
    assert stops["message"].startswith("wideload stops, because of SIGTERM: ")
    assert again["message"].startswith("another SIGTERM has no effect")
    left = f"not committed, and read again: 1 from topic {way.raw}, partition 0, offset 2 on"
    assert drained["message"].endswith(f"in 1.0 s (task.shutdown.graceful.timeout.ms); {left}")
    assert ended["message"].endswith(f"5 records read, 4 written, 0 dead letters; {left}")
    assert (ended["records_in"], ended["records_out"], ended["uncommitted"]) == (5, 4, 1)
    assert last["message"].startswith("wideload has ended after ")


def test_log_of_a_second_ctrl_c(make_way: Callable[..., Way]) -> None:
    """Ctrl-C waits for the records in flight; a second one ends the worker with status 130, and says so."""
    way = make_way(partitions=1)
    with WorkerProcess(way.folder, way.settings(), way.offload()) as worker:
        worker.wait_ready()
        large: Sent = (0, b"k", os.urandom(THRESHOLD + 1), [], 1)
        send(way.broker, way.raw, [large])
        until(lambda: worker.get("/pipelines")[1][0]["offloaded_records"] == 1, "the store is in use")
        (way.folder / "store").rename(way.folder / "away")
        send(way.broker, way.raw, [large])
        until(lambda: "it is tried again" in worker.log.read_text(), "a record waits for the store")
        assert worker.process is not None
        worker.process.send_signal(signal.SIGINT)
        until(lambda: "because of SIGINT" in worker.log.read_text(), "it stops")
        worker.process.send_signal(signal.SIGINT)
        assert worker.wait(10) == 130
    assert worker.log.read_text().splitlines()[-1].endswith("ends immediately; what is not committed is read again")
