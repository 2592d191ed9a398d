"""A worker of an earlier commit and this one: they share groups, and read each other's references, chunks and commits.

The earlier code comes from the repository's own history. A clone without it, such as a shallow one, skips these tests;
`tests/transforms/test_older_vectors.py` reads what that code wrote everywhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import IO

import pytest

from tests.integration.rest import ask
from tests.integration.test_control_topic import TOKEN
from tests.integration.test_worker_chunks import CHUNK, mark, message, pieces, write
from tests.integration.topics import Sent, committed, read_all, send
from tests.integration.way import MakeTopic, MakeWay, Way
from tests.integration.worker_process import WorkerProcess, until

ROOT = Path(__file__).resolve().parents[2]
OLDER = "2dbf4e896db0b8d8ed6ee1ec4b1810590e4b3a8c"
"""2026-11-25. After a release, the tag of the lowest version that compatibility.md names."""

LARGE = 50_000
Pipelines = Mapping[str, Mapping[str, object]]


class OlderWorker(WorkerProcess):
    """The worker of the earlier commit, in a separate interpreter."""

    code = Path()

    def _begin(self, log: IO[bytes], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        environ = {**environ, "PYTHONPATH": str(self.code)}
        return subprocess.Popen(self.command(), cwd=self.code, stdout=log, stderr=log, env=environ)


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> type[OlderWorker]:
    """The worker of the earlier commit."""
    code = tmp_path_factory.mktemp("older")
    command = ["git", "-C", str(ROOT), "archive", OLDER, "app", "transforms", "stores", "jobs", "wideload"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"this clone does not have commit {OLDER[:8]}: git fetch --unshallow")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(code, filter="data")
    seen = "import app.cli; print(app.cli.__file__)"
    environ = {**os.environ, "PYTHONPATH": str(code)}
    where = subprocess.run(
        [sys.executable, "-c", seen], cwd=code, env=environ, capture_output=True, text=True, check=True
    )
    assert Path(where.stdout.strip()).is_relative_to(code)
    return type("Older", (OlderWorker,), {"code": code})


@pytest.fixture(params=["older-first", "newer-first"])
def versions(
    request: pytest.FixtureRequest, older: type[OlderWorker]
) -> tuple[type[WorkerProcess], type[WorkerProcess]]:
    """Who runs first, and who takes over: an upgrade, and the way back."""
    return (older, WorkerProcess) if request.param == "older-first" else (WorkerProcess, older)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Workers end with the test."""
    with ExitStack() as stack:
        yield stack


def values(way: Way) -> list[tuple[bytes | None, bytes | None]]:
    """What came out at the far end, sorted: keys are distinct."""
    return sorted((r.key, r.value) for records in read_all(way.broker, way.inflated).values() for r in records)


def partitions_of(worker: WorkerProcess) -> list[int]:
    """How many partitions each pipeline has; empty while the worker does not answer."""
    status, pipelines = worker.get("/pipelines")
    return [len(each["partitions"]) for each in pipelines] if status == 200 else []


@pytest.mark.slow
def test_both_share_groups_references_and_requests(
    versions: tuple[type[WorkerProcess], type[WorkerProcess]],
    make_way: MakeWay,
    make_topic: MakeTopic,
    stack: ExitStack,
) -> None:
    """Each has a partition of each pipeline, and signed, compressed references go both ways; a pause reaches both.

    The worker that stays continues at the offsets that the other one committed: nothing is lost or written twice.
    """
    way = make_way(2)
    control = make_topic(1, **{"cleanup.policy": "compact"})
    settings = {
        **way.settings(),
        "web.control.enable": True,
        "web.control.token": TOKEN,
        "control.topic": control,
        "large.message.signing.key": "first:" + "00ff" * 16,
    }
    pipelines: Pipelines = {**way.offload(**{"large.message.compression.type": "zstd"}), **way.inflate()}
    sent: list[Sent] = []

    def feed(name: str) -> None:
        records = [message(f"{name}-{n}".encode(), size, n % 2) for n, size in enumerate([10, LARGE, LARGE, 10])]
        send(way.broker, way.raw, records)
        sent.extend(records)
        until(lambda: way.arrived(len(sent)), f"{name} has arrived")

    first, second = (kind(way.folder, settings, pipelines) for kind in versions)
    stack.callback(second.kill)
    stack.enter_context(first)
    first.wait_ready()
    feed("alone")
    second.start()
    until(lambda: partitions_of(first) == partitions_of(second) == [1, 1], "each has a partition of each topic")
    feed("both")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    for asked, method in ((first, "pause"), (second, "resume")):
        assert ask(asked.port, "PUT", f"/connectors/offload/{method}", headers=headers).status == 202
        wanted = "PAUSED" if method == "pause" else "RUNNING"
        for worker in (first, second):
            until(lambda: worker.get("/pipelines")[1][0]["state"] == wanted, wanted)  # noqa: B023  # called here
    feed("resumed")
    assert first.terminate() == 0
    until(lambda: partitions_of(second) == [2, 2], "the other one has all partitions")
    feed("after")
    until(lambda: way.all_read("inflate"), "all is committed")
    assert second.terminate() == 0
    assert values(way) == sorted(each[1:3] for each in sent)
    assert sum(committed(way.broker, way.group("offload"), way.raw).values()) == len(sent)


@pytest.mark.slow
def test_each_continues_after_commits_of_the_other(
    versions: tuple[type[WorkerProcess], type[WorkerProcess]],
    make_way: MakeWay,
    make_topic: MakeTopic,
    stack: ExitStack,
) -> None:
    """The metadata of a commit below an incomplete message is understood: what was delivered is not delivered again."""
    way = make_way(partitions=2, large=20_000_000)
    way.orders = make_topic(2, **{"retention.ms": "-1", "max.message.bytes": CHUNK})
    pipelines: Pipelines = {
        **way.offload(**{"producer.batch.size": 16_384, "transforms": ["chunk"]}),
        **way.inflate(transforms=["assemble"]),
    }
    settings = {**way.settings(), "consumer.auto.offset.reset": "earliest"}  # the topic of chunks is not empty
    pending = pieces(message(b"pending", 90_000))
    write(way, pending[:3])
    sent = [message(b"before", 90_000)]
    send(way.broker, way.raw, sent)
    first, second = (kind(way.folder, settings, pipelines) for kind in versions)
    stack.callback(second.kill)
    stack.enter_context(first)
    until(lambda: way.arrived(1), "the message behind the incomplete one has arrived")
    until(lambda: mark(way)[1].startswith("wideload:delivered="), "it is noted")
    assert mark(way)[0] == 0
    assert first.terminate() == 0
    sent.append(message(b"after", 90_000))
    send(way.broker, way.raw, sent[1:])
    second.start()
    until(lambda: way.arrived(2), "a message of the other version has arrived")
    write(way, pending[3:])
    until(lambda: way.arrived(3) and way.all_read("inflate"), "the message of both has arrived")
    assert second.terminate() == 0
    whole = b"".join(each[2] or b"" for each in pending)
    assert values(way) == sorted([(b"pending", whole), *(each[1:3] for each in sent)])
