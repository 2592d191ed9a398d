"""Topics that would not take what may have to be written, as a user is told of them."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.forks import run
from tests.integration.way import MakeTopic
from tests.integration.worker_process import WorkerProcess


def test_small_topics_are_warned_of(broker: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """`wideload check` and the worker's log say once what would not fit, with the pipeline's name; both go on."""
    chunks, orders, dead = (
        make_topic(**{"retention.ms": 2_000_000}),
        make_topic(),
        make_topic(**{"retention.ms": 1_000}),
    )
    pipelines: dict[str, dict[str, object]] = {
        "back": {
            "topics": [chunks],
            "output.topic": orders,
            "transforms": ["assemble"],
            "errors.tolerance": "all",
            "errors.deadletterqueue.topic.name": dead,
        }
    }
    told = (
        f"chunk.max.message.bytes is 67,108,864, and max.message.bytes of output topic {orders} is 1,048,588: ",
        f"retention.ms of the dead-letter topic {dead} is 1,000, and of topic {chunks} 2,000,000: ",
    )
    with WorkerProcess(tmp_path, {"bootstrap.servers": broker}, pipelines) as worker:
        done = run([sys.executable, "-m", "app.cli", "check", "-c", str(worker.config)])
        worker.wait_ready()
        log = worker.log.read_text()
        assert worker.terminate() == 0
    assert (done.returncode, done.stdout.endswith("OK\n")) == (0, True)
    for sentence in told:
        assert done.stdout.count(f"warning: [pipeline.back] {sentence}") == 1
        assert log.count(f"WARNING wideload.pipeline.service: pipeline back: {sentence}") == 1
