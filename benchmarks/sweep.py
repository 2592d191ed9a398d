"""Sweep and audit with and without Spark: how they scale with the number of payloads, and their resources."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from app.local import jars
from benchmarks.bench import Bench, median
from benchmarks.machine import load_average
from benchmarks.race import BenchmarkError
from benchmarks.result import Result
from benchmarks.spark_processes import Peaks
from benchmarks.topics import PARTITIONS
from tests.integration.topics import Sent, send
from transforms.formats import WIDELOAD
from transforms.record import Record
from transforms.reference import Reference

MASTER = "WIDELOAD_BENCH_SPARK_MASTER"
"""Where the jobs run, such as `local-cluster[2,1,1024]`; this machine's cores where it is not set."""

PAYLOADS = 200_000
_SIZES = {"few": 100, "some": 10, "many": 1}  # the largest number, divided by
_DAY_S = 86_400
_NAMES_A_FILE = 50_000
_LIMIT_S = 3_600


@dataclass(frozen=True, slots=True)
class _Seen:
    """The observations of one run.

    Attributes:
        seconds: of the command, from its start to its end.
        cpu_seconds: of all its processes.
        peak_mib: the most resident memory of all of them.
        summary: its last output.
    """

    seconds: float
    cpu_seconds: float
    peak_mib: float
    summary: Mapping[str, Any]


async def sweep(bench: Bench) -> list[Result]:
    """Sweeps directories of 2,000, 20,000 and 200,000 payloads, half of which records refer to.

    Raises:
        BenchmarkError: a payload is gone that a record refers to, or one is left to which none does.
    """
    return await _compared(bench, "sweep", 2)


async def audit(bench: Bench) -> list[Result]:
    """Audits 2,000, 20,000 and 200,000 references, each to a separate payload.

    Raises:
        BenchmarkError: it did not find each of them intact.
    """
    return await _compared(bench, "audit", 1)


async def _compared(bench: Bench, job: Literal["sweep", "audit"], share: int) -> list[Result]:
    most = max(bench.records or PAYLOADS, 2 * max(_SIZES.values()))
    results = []
    for size, times in _SIZES.items():
        live = "each" if share == 1 else f"one in {share}"
        bench.console.print(f"{job}: {most // times:,} payloads on the filesystem, {live} of them live")
        rounds = [
            [await _round(bench, most // times, job, share, spark=spark) for spark in (False, True)]
            for _ in range(bench.repeat)
        ]
        for end, unit, figure in (("", "s", "seconds"), ("_cpu", "CPU-s", "cpu_seconds"), ("_mib", "MiB", "peak_mib")):
            pairs = [(getattr(alone, figure), getattr(spark, figure)) for alone, spark in rounds]
            alone_median, spark_median = (median(each) for each in zip(*pairs, strict=True))
            ratio = median(one / other for one, other in pairs)
            results.append(Result(f"{job}.{size}{end}", alone_median, unit, spark_median, ratio))
    return results


async def _round(bench: Bench, count: int, job: Literal["sweep", "audit"], share: int, *, spark: bool) -> _Seen:
    topic = await bench.topics.make(job)
    root = bench.folder / f"{job}-store"
    folder = root / topic
    folder.mkdir(parents=True)
    then = time.time() - _DAY_S
    for number in range(count):
        # A file has up to 65,000 names on ext4; the job sees as many payloads, and making them takes seconds.
        if number % _NAMES_A_FILE == 0:
            first = folder / f"{number:064x}"
            first.write_bytes(b"payload")
            os.utime(first, (then, then))
        else:
            os.link(first, folder / f"{number:064x}")
    live = [f"{number:064x}" for number in range(0, count, share)]
    await asyncio.to_thread(send, bench.topics.bootstrap, topic, _records(folder, live))
    options = ("--delete",) if job == "sweep" else ()
    seen = await asyncio.to_thread(_run, bench, root, topic, job, *options, spark=spark)
    if sorted(os.listdir(folder)) != live:  # noqa: PTH208  # 200,000 of them
        raise BenchmarkError(f"{job}: the payloads of {count:,} that are left are not those that records refer to")
    if job == "audit" and seen.summary["topics"] != {topic: {"ok": len(live)}}:
        raise BenchmarkError(f"audit: of {len(live):,} references it found {seen.summary['topics']}")
    shutil.rmtree(root)
    await bench.topics.delete(topic)
    bench.console.print(
        f"  {'with Spark' if spark else 'without':<10} {seen.seconds:8.1f} s  {seen.cpu_seconds:8.1f} CPU-s  "
        f"{seen.peak_mib:6,.0f} MiB  load average {load_average():.2f}",
        highlight=False,
    )
    steps = "  ".join(f"{name} {seconds:.1f} s" for name, seconds in seen.summary["seconds"].items())
    bench.console.print(f"            {steps}", highlight=False)
    return seen


def _records(folder: Path, names: list[str]) -> Iterator[Sent]:
    for number, name in enumerate(names):
        record = WIDELOAD.write_reference(Record(name.encode(), b"?"), Reference(f"file://{folder}/{name}", 7))
        yield number % PARTITIONS, record.key, record.value, record.headers, 1


def _run(bench: Bench, root: Path, topic: str, job: str, *options: str, spark: bool) -> _Seen:
    command = [sys.executable, "-m", *(("jobs." + job,) if spark else ("app.cli", job))]
    command += ["--bootstrap-servers", bench.topics.bootstrap, "--topic", topic, *options]
    command += ["--store", "large.message.payload.store.class=filesystem", "--store", f"filesystem.root={root}"]
    if spark:
        command += ["--jars", ",".join(map(str, jars.ensure("spark")))]
        command += ["--master", os.environ[MASTER]] if os.environ.get(MASTER) else []
    log = bench.log(job)
    started = time.monotonic()
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL)
        try:
            with Peaks(process.pid) as peaks:
                said, _ = process.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired as exc:
            process.kill()
            process.wait()
            raise BenchmarkError(f"{job}: not done after {_LIMIT_S:,} s") from exc
    seconds = time.monotonic() - started
    if process.returncode != 0:
        raise BenchmarkError(f"{job}: it ended with status {process.returncode}: {log.read_text()[-3000:]}")
    return _Seen(seconds, peaks.cpu_seconds, sum(peaks.bytes.values()) / 2**20, json.loads(said))
