"""The processes of a Spark job by what they are: how much memory each kind had at most, and how much CPU it took."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Mapping
from threading import Event, Thread
from typing import Self

import psutil

ROLES = ("driver", "executors", "workers")
"""`driver`: Java and Python; under a local master it is the executor, too. `executors`: Java, each a process of its
own under other masters. `workers`: Spark's Python workers, all together."""

_POLL_S = 0.1


class Peaks:
    """Looks at a process and all below it, ten times a second, for the length of a `with` block.

    Attributes:
        bytes: the most resident memory of each role at one time; what forked processes share is counted for each.
        cpu_seconds: what all of them had taken when they were last seen, those that have ended too.
    """

    def __init__(self, pid: int | None = None) -> None:
        self.bytes: dict[str, int] = dict.fromkeys(ROLES, 0)
        self._taken: dict[int, float] = {}
        self._process = psutil.Process(pid)
        self._stop = Event()
        self._thread = Thread(target=self._look, name="peaks", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def cpu_seconds(self) -> float:
        return sum(self._taken.values())

    def _look(self) -> None:
        while not self._stop.wait(_POLL_S):
            now: Counter[str] = Counter()
            for process in _tree(self._process):
                with contextlib.suppress(psutil.Error):
                    now[_role(process)] += process.memory_info().rss
                    times = process.cpu_times()
                    self._taken[process.pid] = times.user + times.system
            for role in ROLES:
                self.bytes[role] = max(self.bytes[role], now[role])


def cpu_seconds(pid: int | None = None) -> Mapping[str, float]:
    """What each role of a process and all below it has taken so far; only of processes that still run."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for process in _tree(psutil.Process(pid)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            seconds[_role(process)] += times.user + times.system
    return seconds


def _tree(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [process, *process.children(recursive=True)]
    return []


def _role(process: psutil.Process) -> str:
    command = process.cmdline()
    if "pyspark.worker" in command:  # part of the command line of every daemon
        return "workers"
    if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in command:
        return "executors"
    return "store" if command and "versitygw" in command[0] else "driver"
