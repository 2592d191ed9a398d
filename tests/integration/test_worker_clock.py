"""The worker while the clock of its machine, or that of a broker, is set: nothing it does goes by that clock."""

from __future__ import annotations

import ast
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from app.local.broker import EmbeddedBroker
from tests.integration.limits import alter
from tests.integration.test_worker_broker import way_on
from tests.integration.topics import Sent, read_all, send
from tests.integration.way import PARTITIONS, Way, digests, expected, mixed
from tests.integration.worker_process import StartedWorker, WorkerProcess, until

ROOT = Path(__file__).parents[2]
DAY_S = 86_400

# The wall clock as the test wants it: that of the machine, and the seconds that stand in a file.
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, now);
    if (id == CLOCK_REALTIME) {
        long seconds = 0;
        int file = open(getenv("STEPPED_CLOCK"), O_RDONLY);
        if (file >= 0) {
            if (read(file, &seconds, sizeof seconds) != sizeof seconds) seconds = 0;
            close(file);
        }
        now->tv_sec += seconds;
    }
    return result;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""


class Clock:
    """The clock of a process that is started with `environ`."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("a clock that can be set takes a C compiler")
        (folder / "clock.c").write_text(CLOCK)
        library, self._file = folder / "clock.so", folder / "clock"
        command: list[str | Path] = [compiler, "-shared", "-fPIC", "-O1", "-o", library, folder / "clock.c", "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
        self.environ = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(self._file)}
        self.step(DAY_S)
        now = [sys.executable, "-c", "import time; print(time.time())"]
        seen = subprocess.run(now, env={**os.environ, **self.environ}, check=True, capture_output=True, text=True)
        assert float(seen.stdout) > time.time() + DAY_S / 2
        self.step(0)

    def step(self, seconds: int) -> None:
        """Sets it so far ahead of the machine's, or behind."""
        self._file.write_bytes(struct.pack("@l", seconds))


def test_worker_clock_is_set(make_way: Callable[..., Way], tmp_path: Path) -> None:
    """A clock that jumps a day ahead, and two back, moves no partition, repeats no record and shows no lag."""
    clock = Clock(tmp_path)
    way = make_way()
    records = mixed(900, seed=4)
    worker = StartedWorker(way.folder, way.settings(), {**way.offload(), **way.inflate()})
    worker.start(clock.environ)
    try:
        worker.wait_ready()
        for part, seconds in enumerate((0, DAY_S, -DAY_S)):
            clock.step(seconds)
            send(way.broker, way.raw, records[300 * part : 300 * (part + 1)])
            until(partial(way.arrived, 300 * (part + 1)), "records flow")
            assert [page["restarts"] for page in worker.get("/pipelines")[1]] == [0, 0]
        assert 'wideload_rebalances_total{pipeline="offload"} 0.0' in worker.text("/metrics")
        until(lambda: lags(worker) == [0] * 2 * PARTITIONS, "there is no lag")
        assert worker.terminate() == 0
    finally:
        worker.kill()
    assert digests(read_all(way.broker, way.inflated)) == expected(records)


def test_broker_clock_is_set(tmp_path: Path) -> None:
    """What a broker refuses because its own clock is behind waits, and is not taken for a record that is wrong."""
    clock = Clock(tmp_path)
    with EmbeddedBroker(environ=clock.environ) as broker:
        way = way_on(broker, tmp_path)
        alter(way.broker, way.raw, {"message.timestamp.after.max.ms": str(10 * DAY_S * 1000)})
        sent: list[Sent] = []

        def send_some() -> None:
            some: list[Sent] = [(0, b"%d" % (len(sent) + n), b"v", [], int(time.time() * 1000)) for n in range(20)]
            send(way.broker, way.raw, some)
            sent.extend(some)

        with WorkerProcess(way.folder, way.settings(), way.offload(**{"errors.retry.delay.max.ms": 500})) as worker:
            worker.wait_ready()
            send_some()
            until(lambda: way.all_read("offload"), "the broker writes nothing while its clock is set")
            clock.step(-DAY_S)
            send_some()
            until(lambda: "set the clocks of the brokers" in str(worker.get("/health")[1]["reasons"]), "it is told")
            clock.step(2 * DAY_S)
            until(lambda: way.all_read("offload"), "what was refused has come")
            send_some()
            until(lambda: way.all_read("offload"), "records flow")
            assert worker.terminate() == 0
        assert digests(read_all(way.broker, way.orders)) == expected(sent)


def lags(worker: WorkerProcess) -> list[int]:
    """The lag of each partition of each pipeline."""
    return [partition["lag"] for page in worker.get("/pipelines")[1] for partition in page["partitions"]]


# Who may ask for the time of day, and what for.
WALL_CLOCK = {
    "app/kafka/tokens.py": "until when a token is good, as its issuer says; a wrong clock asks again too often",
    "app/deadletters/replay.py": "which timestamps brokers take",
    "app/pipeline/runtime.py": "what others of the data plane ask by `runtime.time`, who stand here too",
    "app/pipeline/flow.py": "until when a worker waits for others, for people; which timestamps brokers take",
    "app/web/loggers.py": "when a level was changed, for people",
    "app/web/metrics.py": "the age of a record, by its timestamp, for people",
    "app/kafka/batches/client.py": "the timestamp of a record whose writer gives none",
    "app/kafka/troubles.py": "people are told since when",
    "app/chunks/producer.py": "the timestamp of a record whose writer gives none",
    "app/serializers/confluent_writes.py": "the timestamp of a record whose writer gives none",
    "app/serializers/faust_writes.py": "the timestamp of a record whose writer gives none",
    "app/serializers/kafka_python_writes.py": "the timestamp of a record whose writer gives none",
    "app/local/bootstrap.py": "the age of a stamp of the set-up",
    "app/payloads/sweep.py": "when the grace of a sweep began: stores have the times of payloads by their own clocks",
    "app/payloads/sweep_command.py": "the same, of a sweep that could not read the topics",
    "app/commands/dlq.py": "what a user means by a time ago",
    "app/commands/restorer.py": "which timestamps of records are of the future",
    "app/pipeline/service.py": "people are told since when; which timestamps brokers take",
    "app/kafka/sender.py": "the timestamp of a record whose writer gives none",
    "app/pipeline/error_policy.py": "the timestamp of a letter whose own is refused; which timestamps brokers take",
    "stores/memory.py": "the age of a payload",
}


# What tells the time of day, by where it is from; the second ones if they are given no time.
ASKS = {
    *(f"time.{name}" for name in ("time", "time_ns", "clock_gettime", "clock_gettime_ns")),
    *(f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")),
    "datetime.date.today",
}
ASKS_WITHOUT_ARGUMENTS = {f"time.{name}" for name in ("localtime", "gmtime", "ctime", "asctime")}


def asks_wall_clock(source: str) -> bool:
    """Whether a module asks for the time of day, in whatever spelling, or hands on what does."""
    nodes = list(ast.walk(ast.parse(source)))
    imported: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            above = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            imported |= {each.asname or each.name: f"{above}{each.name}" for each in node.names}

    def origin(node: ast.AST) -> str:
        head, *rest = ast.unparse(node).split(".")
        return ".".join([imported.get(head, ""), *rest])

    used = [node for node in nodes if isinstance(node, ast.Attribute | ast.Name)]
    empty = {origin(node.func) for node in nodes if isinstance(node, ast.Call) and not node.args}
    return bool(
        any(ast.unparse(node).endswith("runtime.time") for node in used)
        or {origin(node) for node in used} & ASKS
        or empty & ASKS_WITHOUT_ARGUMENTS
    )


@pytest.mark.parametrize(
    ("source", "asks"),
    [
        ("import time as t\nt.time_ns()", True),
        ("from time import time as now\nnow()", True),
        ("import time\ndef f(clock=time.time): pass", True),
        ("import datetime as d\nd.date.today()", True),
        ("def f():\n    from datetime import datetime as dt\n    dt.now()", True),
        ("import time\ntime.localtime()", True),
        ("def f(self):\n    g(self._runtime.time)", True),
        ("import time\ntime.monotonic() + time.localtime(3)\nloop.time()\nruntime.monotonic()", False),
        ("from datetime import datetime\ndatetime.fromtimestamp(3)", False),
    ],
)
def test_wall_clock_is_found(source: str, asks: bool) -> None:  # noqa: FBT001
    """The time of day is found in each spelling, and other times are not taken for it."""
    assert asks_wall_clock(source) is asks


def test_wall_clock_is_asked_for_little() -> None:
    """Nothing that waits, expires or counts goes by a clock that may be set."""
    modules = [path for folder in ("app", "stores", "transforms") for path in sorted((ROOT / folder).rglob("*.py"))]
    asking = {path.relative_to(ROOT).as_posix() for path in modules if asks_wall_clock(path.read_text())}
    assert asking == WALL_CLOCK.keys()
