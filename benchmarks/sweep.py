"""How a sweep of the store grows with the number of payloads, and what memory it takes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from app import jars
from benchmarks.bench import Bench, median
from benchmarks.machine import load_average
from benchmarks.race import BenchmarkError
from benchmarks.result import Result
from benchmarks.topics import PARTITIONS
from tests.integration.topics import Sent, send
from transforms.formats import WIDELOAD
from transforms.record import Record
from transforms.reference import Reference

__all__ = ["PAYLOADS", "sweep"]

PAYLOADS = 200_000
_TIMES = 10  # so many times fewer are swept first
_DAY_S = 86_400
_POLL_S = 0.1
_LIMIT_S = 1_800


@dataclass(frozen=True, slots=True)
class _Swept:
    """What was seen of one sweep.

    Attributes:
        seconds: of its stages; the start of Spark, the same for any number of payloads, is not counted.
        driver_bytes: the most resident memory of the driver, Java and Python. Under a local master it is the executor.
        workers_bytes: the most of its Python workers together.
    """

    seconds: float
    driver_bytes: int
    workers_bytes: int


async def sweep(bench: Bench) -> list[Result]:
    """Sweeps a folder of 20,000 payloads and one of 200,000, half of which records refer to.

    Raises:
        BenchmarkError: a payload is gone that a record refers to, or one is left to which none does.
    """
    count = max(bench.records or PAYLOADS, 2 * _TIMES)
    bench.console.print(f"sweep: {count // _TIMES:,} and {count:,} payloads on the filesystem, half of them live")
    few = [await _round(bench, count // _TIMES) for _ in range(bench.repeat)]
    many = [await _round(bench, count) for _ in range(bench.repeat)]
    ratios = [large.seconds / small.seconds for small, large in zip(few, many, strict=True)]
    return [
        Result(
            "sweep.growth",
            median(each.seconds for each in many),
            "s",
            median(each.seconds for each in few),
            median(ratios),
        ),
        Result("sweep.payloads_per_s", median(count / each.seconds for each in many), "1/s"),
        _peak("driver", [each.driver_bytes for each in many], [each.driver_bytes for each in few]),
        _peak("workers", [each.workers_bytes for each in many], [each.workers_bytes for each in few]),
    ]


def _peak(name: str, many: list[int], few: list[int]) -> Result:
    large, small = max(many) / 2**20, max(few) / 2**20
    return Result(f"sweep.{name}_peak_mib", large, "MiB", small, large / small)


async def _round(bench: Bench, count: int) -> _Swept:
    topic = await bench.topics.make("sweep")
    root = bench.folder / "sweep-store"
    folder = root / topic
    folder.mkdir(parents=True)
    then = time.time() - _DAY_S
    for number in range(count):
        file = folder / f"{number:07d}"
        file.write_bytes(b"payload")
        os.utime(file, (then, then))
    live = [f"{number:07d}" for number in range(0, count, 2)]
    await asyncio.to_thread(send, bench.topics.bootstrap, topic, _records(folder, live))
    swept = await asyncio.to_thread(_run, bench, root, topic)
    if sorted(os.listdir(folder)) != live:  # noqa: PTH208  # 200,000 of them
        raise BenchmarkError(f"sweep: the payloads of {count:,} that are left are not those that records refer to")
    shutil.rmtree(root)
    await bench.topics.delete(topic)
    bench.console.print(
        f"  {count:>9,} payloads {swept.seconds:8.1f} s  {count / swept.seconds:10,.0f} payloads/s  driver "
        f"{swept.driver_bytes / 2**20:6,.0f} MiB  workers {swept.workers_bytes / 2**20:6,.0f} MiB  load average "
        f"{load_average():.2f}",
        highlight=False,
    )
    return swept


def _records(folder: Path, names: list[str]) -> Iterator[Sent]:
    for number, name in enumerate(names):
        record = WIDELOAD.write_reference(Record(name.encode(), b"?"), Reference(f"file://{folder}/{name}", 7))
        yield number % PARTITIONS, record.key, record.value, record.headers, 1


def _run(bench: Bench, root: Path, topic: str) -> _Swept:
    command = [
        *(sys.executable, "-m", "jobs.sweep", "--bootstrap-servers", bench.topics.bootstrap, "--topic", topic),
        *("--store", "large.message.payload.store.class=filesystem", "--store", f"filesystem.root={root}"),
        *("--delete", "--jars", ",".join(map(str, jars.ensure("spark")))),
    ]
    log = bench.log("sweep")
    with log.open("wb") as errors, psutil.Popen(command, stdout=-1, stderr=errors, stdin=-3) as process:
        driver = workers = 0
        deadline = time.monotonic() + _LIMIT_S
        while process.poll() is None:
            found = [_memory(each) for each in _tree(process)]
            driver = max(driver, sum(size for size, is_worker in found if not is_worker))
            workers = max(workers, sum(size for size, is_worker in found if is_worker))
            if time.monotonic() > deadline:
                process.kill()
            time.sleep(_POLL_S)
        said = process.stdout.read()
    if process.returncode != 0:
        raise BenchmarkError(f"sweep: the job ended with status {process.returncode}: {log.read_text()[-3000:]}")
    return _Swept(sum(json.loads(said)["seconds"].values()), driver, workers)


def _tree(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [process, *process.children(recursive=True)]
    return []


def _memory(process: psutil.Process) -> tuple[int, bool]:
    """Resident bytes, and whether it is one of Spark's Python workers."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return process.memory_info().rss, "pyspark.daemon" in process.cmdline()
    return 0, False
