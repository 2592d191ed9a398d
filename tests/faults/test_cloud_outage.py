"""A worker whose cloud has troubles: it waits, says why, and goes on by itself. S3's are in `test_store_outage`."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.azure_server import azure_server_or_skip
from tests.cloud_server import CloudServer
from tests.faults.proxy import Cut, Down, Error, Fault, FaultProxy, Hang, Ok
from tests.gcs_server import gcs_server_or_skip
from tests.integration.topics import Sent, end_offsets, read_all, send
from tests.integration.way import Way, digests, expected
from tests.integration.worker_process import WorkerProcess, until

VALUE_BYTES = 150_000

TROUBLES: list[tuple[str, Fault, str]] = [
    ("down", Down(), "refused|sending request|Connect"),
    ("hang", Hang(), "Timeout|no complete response|not answered"),
    ("busy", Error(503), "SlowDown"),
    ("denied", Error(403, code="AccessDenied"), "AccessDenied"),
    ("cut upload", Cut(100_000, "upload"), "sending request|reset|closed"),
    ("cut download", Cut(100_000, "download"), "reading a body|body"),
]


@pytest.mark.cloud
@pytest.mark.parametrize("start", [azure_server_or_skip, gcs_server_or_skip])
def test_worker_outlasts_troubles_of_a_cloud(
    make_way: Callable[..., Way],
    tmp_path: Path,
    start: Callable[[Path], AbstractContextManager[CloudServer]],
) -> None:
    """Down, hanging, failing, refusing and cut: degraded and why, small records flow, and nothing is lost after."""
    way = make_way(partitions=2)
    chance = random.Random(7)
    sent: list[Sent] = []
    with start(tmp_path) as cloud, FaultProxy(cloud.endpoint) as proxy:
        times = {
            f"{cloud.start}.connection.timeout.ms": 300,
            f"{cloud.start}.read.timeout.ms": 600,
            f"{cloud.start}.retry.attempts": 1,
            "large.message.store.timeout.ms": 1_500,
            "errors.retry.delay.max.ms": 200,
        }
        at_proxy = {f"{cloud.start}.endpoint": proxy.endpoint + urlsplit(cloud.endpoint).path}
        way.store = {"large.message.payload.store.class": cloud.start, **cloud.config("outage"), **at_proxy}

        def burst() -> None:
            records: list[Sent] = [(0, b"%d" % (len(sent) + n), chance.randbytes(VALUE_BYTES), [], 1) for n in range(4)]
            records.append((1, b"%d" % (len(sent) + 4), b"small", [], 1))
            sent.extend(records)
            send(way.broker, way.raw, records)

        def arrived(partition: int) -> bool:
            return end_offsets(way.broker, way.inflated)[partition] == sum(at == partition for at, *_ in sent)

        with WorkerProcess(way.folder, way.settings(), {**way.offload(**times), **way.inflate(**times)}) as worker:

            def says(reason: str) -> bool:
                health = worker.get("/health")
                assert health[0] == 200
                return any(re.search(reason, str(why)) for why in health[1]["reasons"].values())

            worker.wait_ready()
            burst()
            until(lambda: arrived(0), "all is well at first")
            for name, fault, reason in TROUBLES:
                proxy.switch(fault)
                burst()
                until(lambda reason=reason: says(reason), f"{name}: degraded")  # type: ignore[misc]  # a default
                until(lambda: arrived(1), f"{name}: small records flow")
                proxy.switch(Ok())
                until(lambda: arrived(0), f"{name}: all have gone on")
                until(lambda: worker.get("/health")[1]["status"] == "ok", f"{name}: all is well again")
            pages = worker.get("/pipelines")[1]
            assert [(page["state"], page["restarts"]) for page in pages] == [("RUNNING", 0)] * 2
            assert worker.terminate() == 0
    assert digests(read_all(way.broker, way.inflated)) == expected(sent)
