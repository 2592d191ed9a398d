"""How sweep and audit of a store grow with the number of payloads, and what memory they take."""

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
from benchmarks.spark_processes import ROLES, Peaks
from benchmarks.topics import PARTITIONS
from tests.integration.topics import Sent, send
from transforms.formats import WIDELOAD
from transforms.record import Record
from transforms.reference import Reference

__all__ = ["MASTER", "PAYLOADS", "audit", "sweep"]

MASTER = "WIDELOAD_BENCH_SPARK_MASTER"
"""Where the jobs run, such as `local-cluster[2,1,1024]`; this machine's cores where it is not set."""

PAYLOADS = 200_000
_TIMES = 10  # so many times fewer are swept first
_DAY_S = 86_400
_NAMES_A_FILE = 50_000
_LIMIT_S = 3_600


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was seen of one run of a job.

    Attributes:
        seconds: of its stages; the start of Spark, the same for any number of payloads, is not counted.
        cpu_seconds: of all its processes, the start of Spark too.
        peaks: the most resident memory of each role of `benchmarks.spark_processes`.
        summary: what it said at its end.
    """

    seconds: float
    cpu_seconds: float
    peaks: Mapping[str, int]
    summary: Mapping[str, Any]


async def sweep(bench: Bench) -> list[Result]:
    """Sweeps a folder of 20,000 payloads and one of 200,000, half of which records refer to.

    Raises:
        BenchmarkError: a payload is gone that a record refers to, or one is left to which none does.
    """
    return await _growth(bench, "sweep", 2)


async def audit(bench: Bench) -> list[Result]:
    """Audits 20,000 references and 200,000, each to a payload of its own.

    Raises:
        BenchmarkError: it did not find each of them to be well.
    """
    return await _growth(bench, "audit", 1)


async def _growth(bench: Bench, job: Literal["sweep", "audit"], share: int) -> list[Result]:
    count = max(bench.records or PAYLOADS, 2 * _TIMES)
    live = "each" if share == 1 else f"one in {share}"
    bench.console.print(f"{job}: {count // _TIMES:,} and {count:,} payloads on the filesystem, {live} of them live")
    less = [await _round(bench, count // _TIMES, job, share) for _ in range(bench.repeat)]
    more = [await _round(bench, count, job, share) for _ in range(bench.repeat)]
    ratios = [large.seconds / small.seconds for small, large in zip(less, more, strict=True)]
    seconds = (median(each.seconds for each in more), median(each.seconds for each in less))
    cpu = (median(each.cpu_seconds for each in more), median(each.cpu_seconds for each in less))
    return [
        Result(f"{job}.growth", seconds[0], "s", seconds[1], median(ratios)),
        Result(f"{job}.growth_cpu", cpu[0], "CPU-s", cpu[1], cpu[0] / cpu[1]),
        Result(f"{job}.payloads_per_s", median(count / each.seconds for each in more), "1/s"),
        *(_peak(f"{job}.{role}_peak_mib", role, more, less) for role in ROLES if more[0].peaks[role]),
    ]


def _peak(name: str, role: str, many: list[_Seen], few: list[_Seen]) -> Result:
    large, small = (max(each.peaks[role] for each in seen) / 2**20 for seen in (many, few))
    return Result(name, large, "MiB", small, large / small)


async def _round(bench: Bench, count: int, job: Literal["sweep", "audit"], share: int) -> _Seen:
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
    seen = await asyncio.to_thread(_run, bench, root, topic, job, *(("--delete",) if job == "sweep" else ()))
    if sorted(os.listdir(folder)) != live:  # noqa: PTH208  # 200,000 of them
        raise BenchmarkError(f"{job}: the payloads of {count:,} that are left are not those that records refer to")
    if job == "audit" and seen.summary["topics"] != {topic: {"ok": len(live)}}:
        raise BenchmarkError(f"audit: of {len(live):,} references it found {seen.summary['topics']}")
    shutil.rmtree(root)
    await bench.topics.delete(topic)
    peaks = "  ".join(f"{role} {size / 2**20:6,.0f} MiB" for role, size in seen.peaks.items() if size)
    bench.console.print(
        f"  {count:>9,} payloads {seen.seconds:8.1f} s  {count / seen.seconds:10,.0f} payloads/s  "
        f"{seen.cpu_seconds:8.1f} CPU-s  {peaks}  load average {load_average():.2f}",
        highlight=False,
    )
    steps = "  ".join(f"{name} {seconds:.1f} s" for name, seconds in seen.summary["seconds"].items())
    bench.console.print(f"            {steps}", highlight=False)
    return seen


def _records(folder: Path, names: list[str]) -> Iterator[Sent]:
    for number, name in enumerate(names):
        record = WIDELOAD.write_reference(Record(name.encode(), b"?"), Reference(f"file://{folder}/{name}", 7))
        yield number % PARTITIONS, record.key, record.value, record.headers, 1


def _run(bench: Bench, root: Path, topic: str, job: str, *options: str) -> _Seen:
    command = [
        *(sys.executable, "-m", f"jobs.{job}", "--bootstrap-servers", bench.topics.bootstrap, "--topic", topic),
        *("--store", "large.message.payload.store.class=filesystem", "--store", f"filesystem.root={root}"),
        *(*options, "--jars", ",".join(map(str, jars.ensure("spark")))),
    ]
    if master := os.environ.get(MASTER):
        command += ["--master", master]
    log = bench.log(job)
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL)
        try:
            with Peaks(process.pid) as peaks:
                said, _ = process.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired as exc:
            process.kill()
            process.wait()
            raise BenchmarkError(f"{job}: not done after {_LIMIT_S:,} s") from exc
    if process.returncode != 0:
        raise BenchmarkError(f"{job}: the job ended with status {process.returncode}: {log.read_text()[-3000:]}")
    summary = json.loads(said)
    return _Seen(sum(summary["seconds"].values()), peaks.cpu_seconds, peaks.bytes, summary)
