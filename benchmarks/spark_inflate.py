"""Inflate in Spark compared with plain Python that downloads and verifies: one payload at a time, and eight.

What any query takes that reads a topic, a second or more, is not counted: the references are in Spark's memory. Each
payload is downloaded nine times (three where each waits 20 ms), so that starting tasks and clients of the store, a
fifth of a second of CPU each, counts as little as in a real topic.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions

from app.local import jars
from benchmarks.bench import Bench, median
from benchmarks.machine import load_average
from benchmarks.race import BenchmarkError
from benchmarks.result import Result
from benchmarks.spark_processes import Peaks, cpu_seconds
from benchmarks.topics import PARTITIONS
from jobs.inflate import inflate
from stores.registry import get, open_store, put
from tests.integration.topics import send
from tests.s3_server import S3UnavailableError, s3_server
from transforms.inflate import Inflate
from transforms.offload import Offload
from transforms.record import Record

PAYLOADS = 400
_TIMES = 9
_FAR_TIMES = 3
_VALUE_BYTES = 2**20
_THREADS = 8
_LEAST_S = 0.005
_FAR = "benchmarks.contenders.far_store.FarStore"


@dataclass(frozen=True, slots=True)
class _Source:
    """A topic of references, and what its values come to."""

    topic: str
    store: Mapping[str, object]
    records: list[Record]
    checksums: int

    @property
    def sums(self) -> tuple[int, int, int]:
        """Records, bytes, and the sum of the values' CRC-32."""
        return len(self.records), len(self.records) * _VALUE_BYTES, self.checksums


async def spark_inflate(bench: Bench) -> list[Result]:
    """Inflates values of 1 MiB with two tasks at a time: from the filesystem, from S3, and from S3 20 ms away.

    Raises:
        BenchmarkError: a value is not what was stored.
    """
    count = bench.records or PAYLOADS
    results = []
    with ExitStack() as stack:
        stores: dict[str, dict[str, object]] = {
            "filesystem": {
                "large.message.payload.store.class": "filesystem",
                "filesystem.root": str(bench.folder / "payloads"),
                "filesystem.fsync": False,
            }
        }
        try:
            server = stack.enter_context(s3_server("versitygw", bench.folder / "s3"))
            stores["s3"] = {"large.message.payload.store.class": "s3", **server.config("bench")}
            stores["s3_far"] = stores["s3"] | {"large.message.payload.store.class": _FAR}
        except S3UnavailableError as exc:
            bench.console.print(f"spark_inflate: without S3: {exc}", markup=False)
        spark = stack.enter_context(_session(bench.folder))
        for name, store in stores.items():
            topic = await bench.topics.make("spark")
            times = _FAR_TIMES if name == "s3_far" else _TIMES
            source = await asyncio.to_thread(_fill, bench.topics.bootstrap, topic, store, count, times)
            results += await asyncio.to_thread(_compared, bench, spark, name, source)
            await bench.topics.delete(topic)
    return results


@contextmanager
def _session(folder: Path) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("wideload-bench")
        .config("spark.jars", ",".join(map(str, jars.ensure("spark"))))
        .config("spark.driver.memory", "2g")
        .config("spark.local.dir", str(folder / "spark"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def _fill(servers: str, topic: str, config: Mapping[str, object], count: int, times: int) -> _Source:
    work, checksums, records = Offload(0), 0, []
    with closing(open_store(config)) as store:
        for number in range(count):
            value = random.Random(number).randbytes(_VALUE_BYTES)  # noqa: S311  # the same ones each time
            checksums += zlib.crc32(value)
            payload = work.payload(value)
            path = put(store, topic, payload.checksum, payload.data)
            records.append(work.refer(Record(b"k", value), payload.reference(path)))
    records *= times
    send(servers, topic, [(n % PARTITIONS, r.key, r.value, r.headers, 1) for n, r in enumerate(records)])
    return _Source(topic, config, records, checksums * times)


def _compared(bench: Bench, spark: SparkSession, name: str, source: _Source) -> list[Result]:
    bench.console.print(f"spark_inflate: {len(source.records):,} references to 1 MiB on {name}")
    options = {"kafka.bootstrap.servers": bench.topics.bootstrap, "subscribe": source.topic, "includeHeaders": "true"}
    references = spark.read.format("kafka").options(**options).load().persist()
    _spark(references, source)  # reads the topic, starts Spark's Python workers, and fills the caches that both have
    turns: dict[str, Callable[[], float]] = {
        "loop": lambda: _loop(source),
        "pool": lambda: _pool(source),
        "Spark": lambda: _spark(references, source),
    }
    speeds: dict[str, list[float]] = {turn: [] for turn in turns}
    taken: dict[str, list[Mapping[str, float]]] = {turn: [] for turn in turns}
    peaks: list[Mapping[str, int]] = []
    for number in range(bench.repeat):
        for turn in list(turns) if number % 2 == 0 else reversed(turns):
            before = cpu_seconds()
            if turn == "Spark":
                with Peaks() as seen:
                    speeds[turn].append(turns[turn]())
                peaks.append(seen.bytes)
            else:  # looking takes time from loop and pool, which are in this process
                speeds[turn].append(turns[turn]())
            gib = source.sums[1] / 2**30
            after = cpu_seconds()
            taken[turn].append({role: max(0.0, after[role] - before.get(role, 0)) / gib for role in after})
        bench.console.print(
            f"  Spark {speeds['Spark'][-1]:8.1f} MiB/s  loop {speeds['loop'][-1]:8.1f} MiB/s  pool "
            f"{speeds['pool'][-1]:8.1f} MiB/s  load average {load_average():.2f}",
            highlight=False,
        )
    references.unpersist()
    for turn, rounds in taken.items():
        roles = {role: median(each.get(role, 0) for each in rounds) for role in rounds[0]}
        told = ", ".join(f"{role} {seconds:.2f}" for role, seconds in sorted(roles.items()) if seconds >= _LEAST_S)
        bench.console.print(f"  CPU-seconds per GiB, {turn}: {told}", highlight=False)
    ours = median(speeds["Spark"])
    ratios = {
        turn: median(one / other for one, other in zip(speeds["Spark"], speeds[turn], strict=True))
        for turn in ("loop", "pool")
    }
    return [
        Result(f"spark.inflate.{name}", ours, "MiB/s", median(speeds["loop"]), ratios["loop"]),
        Result(f"spark.inflate.{name}.pool", ours, "MiB/s", median(speeds["pool"]), ratios["pool"]),
        *(
            Result(f"spark.inflate.{name}.{role}_peak_mib", max(each[role] for each in peaks) / 2**20, "MiB")
            for role in ("driver", "workers")
        ),
    ]


def _spark(references: DataFrame, source: _Source) -> float:
    started = time.perf_counter()
    rows = inflate(references, source.store, threads=_THREADS)
    rows = rows.select("value", functions.crc32("value").alias("crc"))
    (found,) = rows.selectExpr("count(value)", "sum(length(value))", "sum(crc)").collect()
    return _speed(started, source, tuple(found))


def _loop(source: _Source) -> float:
    """One thread, one payload after another."""
    return _plain(source, map)


def _pool(source: _Source) -> float:
    """As many threads as a task of `inflate` has; the two cores are theirs as they are Spark's."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return _plain(source, pool.map)


def _plain(
    source: _Source, over: Callable[[Callable[[Record], tuple[int, int]], list[Record]], Iterable[tuple[int, int]]]
) -> float:
    work, checksums, size = Inflate(), 0, 0
    started = time.perf_counter()
    with closing(open_store(source.store)) as store:

        def restored(record: Record) -> tuple[int, int]:
            inflation = work.begin(record)
            stored = get(store, inflation.reference.path, inflation.stored_limit_bytes)
            value = work.finish(record, inflation, stored).value or b""
            return len(value), zlib.crc32(value)

        for length, checksum in over(restored, source.records):
            size += length
            checksums += checksum
    return _speed(started, source, (len(source.records), size, checksums))


def _speed(started: float, source: _Source, found: tuple[int, ...]) -> float:
    seconds = time.perf_counter() - started
    if found != source.sums:
        raise BenchmarkError(f"spark_inflate: records, bytes and CRCs are {found}, not {source.sums}")
    return source.sums[1] / 2**20 / seconds
