"""Whatever a broker has taken, the worker and the commands come to its end: `make fuzz` with many more."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.integration.command_line import wideload
from tests.integration.odd_batches import odd_batch, produce
from tests.integration.offsets import committed
from tests.integration.topics import end_offsets
from tests.integration.way import Way
from tests.integration.worker_process import WorkerProcess, until

_BATCHES = {"short": 300, "long": 40_000}


@pytest.mark.needs_kafka((3, 7), "topics bound how far a timestamp may be ahead, or behind, from 3.6 on (KIP-937)")
def test_worker_comes_to_the_end_of_odd_batches(
    make_way: Callable[..., Way], make_topic: Callable[..., str], chaos: str, seed: int, rng: random.Random
) -> None:
    """Each record passes or is a dead letter, without a restart; what reads the topic by a command ends well, too."""
    way = make_way(partitions=1)
    any_time = {f"message.timestamp.{side}.max.ms": str(2**63 - 1) for side in ("before", "after")}
    way.raw, way.orders = (make_topic(1, **any_time, **{"retention.ms": "-1"}) for _ in range(2))
    tolerant = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": way.dead}
    taken = produce(way.broker, way.raw, (odd_batch(rng) for _ in range(_BATCHES[chaos])))
    end = end_offsets(way.broker, way.raw)
    assert taken > _BATCHES[chaos] // 10, seed
    with WorkerProcess(way.folder, way.settings(), way.offload(**tolerant)) as worker:
        worker.wait_ready()
        until(lambda: committed(way.broker, way.group("offload"), way.raw) == end, "all are committed", 250)
        page = worker.get("/pipelines")[1][0]
        assert (page["state"], page["restarts"], page["records_in"]) == ("RUNNING", 0, end[0])
        assert worker.terminate() == 0
    assert end_offsets(way.broker, way.orders)[0] > taken // 4
    reading = ("--from-beginning", "--until-end", "--json", "-b", way.broker)
    for command in (
        ("consume", way.raw, *reading),
        ("consume", way.dead, *reading),
        ("dlq", "list", "-c", worker.config),
    ):
        done = wideload(*map(str, command))
        assert done.returncode in {0, 1}, done.stderr[-2_000:]  # 1 if records cannot be read: they are counted
        assert "Traceback" not in done.stderr
        assert done.stdout.count("\n") > page["dead_letters"] // 2
