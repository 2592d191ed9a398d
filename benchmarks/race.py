"""A race: one process moves records from one topic to another, and is timed from the outside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from benchmarks.topics import CommitWatch, Topics, Watch

_POLL_S = 0.02
_STOP_S = 60.0
_TICK_S = 0.01  # the kernel's unit of CPU time, below which nothing is measured
_LOG_CHARACTERS = 3_000


class BenchmarkError(Exception):
    """What was timed is not correct, or did not end, so the numbers would be worthless."""


@dataclass(frozen=True, slots=True)
class Run:
    """The observations of one process between its first and its last record in the output topic.

    Attributes:
        records: that came after the first sight; those that were there at first sight are not counted.
        seconds: from the first sight to the last record.
        cpu_seconds: CPU time of the process in this period, user and system, all threads.
        peak_rss_bytes: the most resident memory of its whole life up to the last record.
    """

    records: int
    seconds: float
    cpu_seconds: float
    peak_rss_bytes: int

    @property
    def per_second(self) -> float:
        """Records per second."""
        return self.records / self.seconds

    @property
    def cpu_us(self) -> float:
        """Microseconds of CPU per record."""
        return self.cpu_seconds / self.records * 1e6


async def race(
    topics: Topics,
    sink: str,
    count: int,
    command: Sequence[str],
    *,
    log: Path,
    environ: Mapping[str, str] | None = None,
    seconds: float = 600.0,
    watch: AbstractAsyncContextManager[Watch | CommitWatch] | None = None,
) -> Run:
    """Runs `command` until it has written `count` records to `sink`, then stops it with SIGTERM.

    Args:
        topics: of the cluster.
        sink: the output topic, empty.
        count: the expected number of records.
        command: of the process, which is to run until SIGTERM.
        log: where its output goes.
        environ: additional variables of its environment.
        seconds: the time after which the race is given up.
        watch: where the records are counted; None for the end of `sink`.

    Raises:
        BenchmarkError: the process ended before its time, gave too few or too many records, or would not stop.
    """
    async with watch or topics.watch(sink) as watched:
        async with running(command, log, environ) as process:
            try:
                async with asyncio.timeout(seconds):
                    run = await _timed(watched, count, process)
            except TimeoutError:
                raise BenchmarkError(
                    f"{await watched.count():,} of {count:,} records in {sink} after {seconds:g} s{_end(log)}"
                ) from None
            except psutil.NoSuchProcess:
                raise BenchmarkError(f"the process ended with status {process.poll()}{_end(log)}") from None
        total = await watched.count()
        if total != count:
            raise BenchmarkError(f"{total:,} records in {sink} instead of {count:,}{_end(log)}")
        return run


@asynccontextmanager
async def running(
    command: Sequence[str], log: Path, environ: Mapping[str, str] | None = None
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A process for the block, then stopped with SIGTERM; see `race`.

    Raises:
        BenchmarkError: it would not stop.
    """
    with log.open("wb") as output:
        process = _start(command, output, environ or {})
    try:
        yield process
    finally:
        await _stop(process)


def _start(command: Sequence[str], output: IO[bytes], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env={**os.environ, **environ}
    )


async def _timed(watch: Watch | CommitWatch, count: int, process: subprocess.Popen[bytes]) -> Run:
    seen = psutil.Process(process.pid)
    peak = 0
    # Before the first record: the moment of the last look, for runs that are over at first sight.
    began, began_cpu, had = time.perf_counter(), 0.0, 0
    while True:
        await asyncio.sleep(_POLL_S)
        total = await watch.count()
        now, cpu = time.perf_counter(), seen.cpu_times()
        used = cpu.user + cpu.system
        peak = max(peak, seen.memory_info().rss, _high_water(process.pid))
        if total >= count:
            return Run(count - had, now - began, max(used - began_cpu, _TICK_S), peak)
        if had == 0:
            began, began_cpu, had = now, used, total
        if process.poll() is not None:
            raise psutil.NoSuchProcess(process.pid)


def _high_water(pid: int) -> int:
    """The kernel's own note of the most resident memory; 0 where it keeps none."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


async def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        await asyncio.to_thread(process.wait, _STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise BenchmarkError(f"the process did not stop within {_STOP_S:g} s of SIGTERM") from None


def _end(log: Path) -> str:
    text = log.read_text(errors="replace")[-_LOG_CHARACTERS:].strip()
    return f"; the end of its log:\n{text}" if text else ""
