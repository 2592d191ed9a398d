"""A worker whose store says nothing at all, as a network disk that is gone: no time-out of its own ends the call."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.test_store_outage import memory_bytes
from tests.integration.switched_store import STUCK
from tests.integration.topics import Sent, committed, end_offsets, read_all, send
from tests.integration.way import THRESHOLD, Way, digests, expected
from tests.integration.worker_process import WorkerProcess, until

_HELD_S = 1.0  # in place of the 20 minutes that the worker holds the reference to a stored payload


def test_worker_says_that_a_store_hangs_and_leaves_it(make_way: Callable[..., Way]) -> None:
    """Calls that never end are noticed after the store's time; no other partition, pipeline or stop waits for them."""
    way = make_way(partitions=2)
    root, healthy = way.folder / "store", way.folder / "healthy"
    filesystem = {"large.message.payload.store.class": "filesystem", "filesystem.root": str(healthy)}
    other = way.offload(**filesystem)["offload"]
    other |= {"group.id": f"{way.raw}-other", "output.topic": way.inflated}
    way.store = _switched(way)
    settings = {**way.settings(), "task.shutdown.graceful.timeout.ms": 1_000, "store.threads": 2}
    with WorkerProcess(way.folder, settings, {**way.offload(), "other": other}) as worker:
        worker.wait_ready()
        (root / "hang").touch()
        large: list[Sent] = [(0, b"large", os.urandom(THRESHOLD + 1), [], 1) for _ in range(4)]
        send(way.broker, way.raw, [*large, (1, b"small", b"flows", [], 1)])
        until(lambda: worker.get("/health")[1]["status"] == "degraded", "the silence is noticed")
        ((pipeline, reason),) = worker.get("/health")[1]["reasons"].items()
        assert (pipeline, "the store has not answered for 500 ms" in reason) == ("offload", True)
        until(lambda: end_offsets(way.broker, way.orders) == {0: 0, 1: 1}, "the other partition flows")
        until(lambda: end_offsets(way.broker, way.inflated) == {0: 4, 1: 1}, "the other pipeline's store is asked")
        assert worker.terminate() == 0  # the calls hang on: it has left them
    assert committed(way.broker, way.group("offload"), way.raw).get(0, 0) == 0
    assert committed(way.broker, f"{way.raw}-other", way.raw)[0] == 4


def test_worker_holds_little_behind_one_payload_that_hangs(make_way: Callable[..., Way]) -> None:
    """While the store answers for others, its partition alone waits, in the budget, and `/health` says which record.

    First the upload of a value hangs, then the download of another.
    """
    way = make_way(partitions=2)
    root = way.folder / "store"
    way.store = _switched(way)
    behind, size = 60, 500_000
    sent: list[Sent] = []

    def more(partition: int, value: bytes, count: int = 1) -> None:
        records: list[Sent] = [(partition, b"%d" % n, value, [], 1) for n in range(len(sent), len(sent) + count)]
        sent.extend(records)
        send(way.broker, way.raw, records)

    def offsets(partition: int) -> int:
        return sum(record[0] == partition for record in sent)

    settings = {**way.settings(), "in.flight.bytes": 4_000_000}
    with WorkerProcess(way.folder, settings, {**way.offload(), **way.inflate()}) as worker:
        worker.wait_ready()
        more(0, bytes(size), 4)
        until(lambda: way.arrived(len(sent)), "all is well at first")
        before_bytes = memory_bytes(worker, "VmRSS")
        for call, pipeline in (("publish", "offload"), ("download", "inflate")):
            (root / call).touch()
            stuck = offsets(0)
            more(0, STUCK + bytes(size))
            more(0, bytes(size), behind)
            why = f"partition 0, offset {stuck}"
            until(lambda: why in str(worker.get("/health")[1]["reasons"].get(pipeline)), f"{call} is noticed")  # noqa: B023
            status, health = worker.get("/health")
            assert (status, health["status"]) == (200, "degraded")
            more(1, bytes(size), 8)
            until(lambda: end_offsets(way.broker, way.inflated)[1] == offsets(1), f"others do not wait for a {call}")
            assert end_offsets(way.broker, way.inflated)[0] == stuck
            assert memory_bytes(worker, "VmHWM") - before_bytes < behind * size / 2, "what is behind it is not all held"
            (root / call).unlink()
            until(lambda: way.arrived(len(sent)), "all have gone on")
            until(lambda: worker.get("/health")[1]["status"] == "ok", "all is well again")
        assert worker.terminate() == 0
    assert digests(read_all(way.broker, way.inflated)) == expected(sent)


def test_a_payload_that_has_waited_is_stored_anew(make_way: Callable[..., Way]) -> None:
    """Behind a record that waits for the store, no reference leaves whose payload a sweep may have taken meanwhile.

    What was written of other partitions is not written again.
    """
    way = make_way(partitions=2)
    root = way.folder / "store"
    way.store = _switched(way)
    large = [bytes([number]) * (THRESHOLD + 1) for number in range(1, 4)]
    worker = WorkerProcess(way.folder, {**way.settings(), "offset.flush.interval.ms": 60_000}, way.offload())
    worker.constants = {"app.pipeline.dispatch:LONGEST_HOLD_S": _HELD_S}
    with worker:
        worker.wait_ready()
        (root / "publish").touch()
        others: list[Sent] = [(1, b"k", b"small", [], 0)] * 20
        send(way.broker, way.raw, [*((0, b"k", value, [], 0) for value in (STUCK + large[0], *large)), *others])
        until(lambda: end_offsets(way.broker, way.orders)[1] == len(others), "the other partition flows")
        until(lambda: len(_payloads(root)) == len(large), "the payloads behind it are stored")
        begun = time.monotonic()
        until(lambda: time.monotonic() - begun > _HELD_S, "they have waited")
        for path in _payloads(root):
            path.unlink()  # as a sweep does
        send(way.broker, way.raw, others * 20)  # so that some are written, and not committed, when the flow ends
        (root / "publish").unlink()
        until(lambda: end_offsets(way.broker, way.orders)[0] == 4, "all have gone on")
        until(lambda: end_offsets(way.broker, way.orders)[1] >= 21 * len(others), "the others, too")
        assert worker.terminate() == 0
    assert end_offsets(way.broker, way.orders) == {0: 4, 1: 21 * len(others)}
    for record in read_all(way.broker, way.orders)[0]:
        name = (record.value or b"").decode().removeprefix("switched://")
        assert (root / name).is_file(), f"the payload of offset {record.offset} is there"
    assert "and a sweep may have removed it" in worker.log.read_text()


def _payloads(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.name != "publish"]


def _switched(way: Way) -> dict[str, object]:
    return {
        "large.message.payload.store.class": "tests.integration.switched_store.SwitchedStore",
        "switched.root": str(way.folder / "store"),
        "large.message.store.timeout.ms": 500,
    }
