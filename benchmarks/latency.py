"""How much later a record comes because a worker moves it: 1,000 small records a second, from end to end."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.bench import Bench, median, turned
from benchmarks.machine import load_average
from benchmarks.race import BenchmarkError, running
from benchmarks.result import Result
from benchmarks.topics import PARTITIONS
from tests.s3_server import S3UnavailableError, s3_server
from transforms.record import Record

RECORDS = 5_000
_PER_SECOND = 1_000
_WARM_S = 2
_BROKER_WARM_S = 20  # a broker that has just started compiles its code; it then has no CPU to spare on two cores
_BROKER_WARM_PER_SECOND = 2_000
_PROBER = Path(__file__).with_name("contenders") / "prober.py"
_LIMIT_S = 300.0
_LOOK_S = 0.05
_LARGE_BYTES = 8 * 2**20
_LARGE_PARTITION = 0
_LARGE_PER_SECOND = 50  # more than are uploaded here
_LARGE_MORE_S = 1  # the worker is there before the prober
_DISTINCT = 20  # values repeat, so that the store stays small; each is still uploaded


@dataclass(frozen=True, slots=True)
class _Latency:
    """Milliseconds."""

    p50: float
    p99: float


async def latency(bench: Bench) -> list[Result]:
    """Sends 1,000 records of 1 KB a second, and reads them where they arrive.

    Raises:
        BenchmarkError: a record did not arrive, came twice or was changed.
    """
    return [result for part, measure in MEASURES.items() if bench.wants(part) for result in await measure(bench)]


async def _added(bench: Bench) -> list[Result]:
    """Through a worker, minus the time through a topic alone."""
    seen = await _beside_direct(bench, "at_least_once")
    return [Result("latency.added_p99_ms", median(ours.p99 - direct.p99 for ours, direct in seen), "ms")]


async def _exactly_once(bench: Bench) -> list[Result]:
    """The whole way, for a reader of committed records."""
    seen = await _beside_direct(bench, "exactly_once")
    return [
        Result(
            "latency.exactly_once_p50_ms",
            median(ours.p50 for ours, _ in seen),
            "ms",
            median(direct.p50 for _, direct in seen),
            median(ours.p50 / direct.p50 for ours, direct in seen),
        )
    ]


async def _beside_direct(bench: Bench, guarantee: str) -> list[tuple[_Latency, _Latency]]:
    count = bench.records or RECORDS
    warm = min(_BROKER_WARM_S * _BROKER_WARM_PER_SECOND, 5 * count)
    bench.console.print(f"latency, {guarantee}, the broker warms up: {warm:,} records of 1 KiB, not measured")
    await _pair(bench, guarantee, warm, turn=0, per_second=_BROKER_WARM_PER_SECOND)
    seen = []
    for number in range(bench.repeat):
        bench.console.print(f"latency, {guarantee}, round {number + 1} of {bench.repeat}: {count:,} records of 1 KiB")
        seen.append(await _pair(bench, guarantee, count, turn=number))
    return seen


async def _pair(
    bench: Bench, guarantee: str, count: int, *, turn: int, per_second: int = _PER_SECOND
) -> tuple[_Latency, _Latency]:
    """Through a worker, and through a topic alone."""
    everywhere = range(PARTITIONS)
    direct, source, sink = [await bench.topics.make(name) for name in ("direct", "source", "sink")]
    pipeline: dict[str, object] = {"processing.guarantee": guarantee, **_filesystem(bench)}
    found: dict[str, _Latency] = {}
    # The later ones find a warmer broker, so they take turns.
    for name in turned(("direct topic", f"worker, {guarantee}"), turn):
        if name == "direct topic":
            found["direct"] = await _probe(bench, name, direct, direct, count, everywhere, per_second)
        else:
            async with running(_worker(bench, source, sink, pipeline), bench.log(sink)):
                found["worker"] = await _probe(bench, name, source, sink, count, everywhere, per_second)
    await bench.topics.delete(direct, source, sink)
    return found["worker"], found["direct"]


async def _small(bench: Bench) -> list[Result]:
    """In partitions of a pipeline that also has one whose values of 8 MB are uploaded all the time.

    A direct topic during such uploads shows how much is due to the machine.
    """
    count = bench.records or RECORDS
    large = round(((count + _warm(count)) / _PER_SECOND + _LARGE_MORE_S) * _LARGE_PER_SECOND)
    source = await bench.topics.make("source", max_message_bytes=_LARGE_BYTES + 2**20)
    await bench.topics.write(source, _large(large), partition=_LARGE_PARTITION)
    seen: list[tuple[_Latency, _Latency]] = []
    for number in range(bench.repeat):
        bench.console.print(
            f"latency, small records, round {number + 1} of {bench.repeat}: {count:,} records of 1 KiB during "
            f"{large:,} of 8 MiB"
        )
        with TemporaryDirectory(dir=bench.folder) as folder:
            try:
                with s3_server("versitygw", Path(folder)) as server:
                    store = {"large.message.payload.store.class": "s3", **server.config("small")}
                    pair = {
                        direct: await _beside_uploads(bench, source, store, count, large, direct=direct)
                        for direct in (number % 2 == 0, number % 2 != 0)
                    }
                    seen.append((pair[False], pair[True]))
            except S3UnavailableError as exc:
                bench.console.print(f"latency: without S3: {exc}", markup=False)
                return []
    await bench.topics.delete(source)
    ours, direct = (median(each.p99 for each in side) for side in zip(*seen, strict=True))
    return [Result("latency.small_p99_ms", ours, "ms", direct, median(a.p99 / b.p99 for a, b in seen))]


async def _beside_uploads(
    bench: Bench, source: str, store: Mapping[str, object], count: int, large: int, *, direct: bool
) -> _Latency:
    sink, aside = await bench.topics.make("sink"), await bench.topics.make("aside")
    async with (
        bench.topics.watch(sink, _LARGE_PARTITION) as uploaded,
        running(_worker(bench, source, sink, store), bench.log(sink)),
    ):
        beside = [number for number in range(PARTITIONS) if number != _LARGE_PARTITION]
        began = time.perf_counter()
        if direct:
            for _ in range(round(_LIMIT_S / _LOOK_S)):  # nothing signals that the worker has started
                if await uploaded.count():
                    break
                await asyncio.sleep(_LOOK_S)
            found = await _probe(bench, "direct topic, during uploads", aside, aside, count, beside)
        else:
            found = await _probe(bench, "worker, during uploads", source, sink, count, beside)
        done, seconds = await uploaded.count(), time.perf_counter() - began
    for topic in (sink, aside):
        await bench.topics.delete(topic)
    if not 0 < done < large + direct:
        raise BenchmarkError(f"latency: {done:,} of {large:,} values were uploaded; it has to be some, but not all")
    bench.console.print(f"    at the same time {done / seconds:,.1f} values of 8 MiB/s", highlight=False)
    return found


def _large(count: int) -> Iterator[Record]:
    body = random.Random(0).randbytes(_LARGE_BYTES - 8)  # noqa: S311  # the same bytes each time
    for number in range(count):
        yield Record(f"key-{number:07d}".encode(), (number % _DISTINCT).to_bytes(8, "big") + body, (), 0)


def _filesystem(bench: Bench) -> Mapping[str, object]:
    return {
        "large.message.payload.store.class": "filesystem",
        "filesystem.root": str(bench.folder / "latency-store"),
    }


def _worker(bench: Bench, source: str, sink: str, keys: Mapping[str, object]) -> list[str]:
    pipeline = {
        "topics": [source],
        "output.topic": sink,
        "transforms": ["offload"],
        "group.id": f"{sink}-worker",
        **keys,
    }
    return list(bench.worker(f"latency-{sink}", {"latency": pipeline}))


def _warm(count: int) -> int:
    """How many records go first and are not measured: those of two seconds, or fewer where few are measured."""
    return min(_WARM_S * _PER_SECOND, 5 * count)


async def _probe(
    bench: Bench,
    name: str,
    source: str,
    sink: str,
    count: int,
    partitions: range | list[int],
    per_second: int = _PER_SECOND,
) -> _Latency:
    numbers = [count, _warm(count), per_second, *partitions]
    command = [sys.executable, str(_PROBER), bench.topics.bootstrap, source, sink, *map(str, numbers)]
    with bench.log(f"prober-{sink}").open("wb") as errors:
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=errors)
        try:
            said, _ = await asyncio.wait_for(process.communicate(), _LIMIT_S)
        except TimeoutError:
            process.kill()
            await process.wait()
        if process.returncode:
            logs = (Path(errors.name), bench.log(sink))  # the worker's may say why
            end = "\n".join(log.read_text(errors="replace")[-2000:] for log in logs if log.exists())
            raise BenchmarkError(f"{name}: the prober ended with status {process.returncode}: {end}")
    found = sorted(json.loads(said))
    seen = _Latency(found[len(found) // 2], found[len(found) * 99 // 100])
    bench.console.print(
        f"  {name:<28} p50 {seen.p50:8.2f} ms  p99 {seen.p99:8.2f} ms  most {found[-1]:8.2f} ms  "
        f"load average {load_average():.2f}",
        highlight=False,
    )
    return seen


MEASURES: Mapping[str, Callable[[Bench], Coroutine[Any, Any, list[Result]]]] = {
    "added_p99_ms": _added,
    "exactly_once_p50_ms": _exactly_once,
    "small_p99_ms": _small,
}
"""What can be measured alone, by the names of the results."""
