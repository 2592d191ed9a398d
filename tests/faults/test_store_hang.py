"""A worker whose store says nothing at all, as a network disk that is gone: no time-out of its own ends the call."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from tests.integration.topics import committed, end_offsets, send
from tests.integration.way import THRESHOLD, Way
from tests.integration.worker_process import WorkerProcess, until


def test_worker_says_that_a_store_hangs_and_leaves_it(make_way: Callable[..., Way]) -> None:
    """Calls that never end are noticed after the store's time; no other partition and no stop waits for them."""
    way = make_way(partitions=2)
    root = way.folder / "store"
    way.store = {
        "large.message.payload.store.class": "tests.integration.switched_store.SwitchedStore",
        "switched.root": str(root),
        "large.message.store.timeout.ms": 500,
    }
    settings = {**way.settings(), "task.shutdown.graceful.timeout.ms": 1_000}
    with WorkerProcess(way.folder, settings, way.offload()) as worker:
        worker.wait_ready()
        (root / "hang").touch()
        send(way.broker, way.raw, [(0, b"large", os.urandom(THRESHOLD + 1), [], 1), (1, b"small", b"flows", [], 1)])
        until(lambda: worker.get("/health")[1]["status"] == "degraded", "the silence is noticed")
        assert worker.get("/health")[1]["reasons"] == {"offload": "the store has not answered for 500 ms"}
        until(lambda: end_offsets(way.broker, way.orders) == {0: 0, 1: 1}, "the other partition flows")
        began = time.monotonic()
        assert worker.terminate() == 0
        assert time.monotonic() - began < 20
    assert committed(way.broker, way.group("offload"), way.raw).get(0, 0) == 0
