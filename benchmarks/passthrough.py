"""Records that need no work: the worker beside a Faust agent and beside a bare aiokafka loop."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

from app.config.keys import PRODUCER_KEYS
from benchmarks.bench import Bench, median
from benchmarks.race import BenchmarkError, Run, race
from benchmarks.result import Result

__all__ = ["RECORDS", "passthrough", "records"]

RECORDS = 200_000
_VALUE_BYTES = 1024
_AIOKAFKA_BATCH_BYTES = 16_384  # aiokafka's default `max_batch_size`
_CONTENDERS = Path(__file__).with_name("contenders")


def records(count: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of 1 KB, the same ones each time."""
    filler = random.Random(0).randbytes(2 * _VALUE_BYTES)  # noqa: S311  # the same bytes each time
    for number in range(count):
        value = number.to_bytes(8, "big") + filler[number % _VALUE_BYTES :]
        yield f"key-{number:07d}".encode(), value[:_VALUE_BYTES]


def _our_batch_bytes() -> int:
    (default,) = (key.default for key in PRODUCER_KEYS if key.name == "producer.batch.size")
    assert isinstance(default, int)
    return default


async def passthrough(bench: Bench) -> list[Result]:
    """Moves records of 1 KB through each contender, once a round, over the same source topic.

    Raises:
        BenchmarkError: the sink of a contender does not have what the source has, in its order.
    """
    count = bench.records or RECORDS
    source = await bench.topics.make("source")
    digests = await bench.topics.load(source, records(count))
    runs: dict[str, list[Run]] = {"worker": [], "bare loop": [], "bare loop, 16 KiB batches": [], "Faust agent": []}
    for number in range(bench.repeat):
        bench.console.print(f"passthrough, round {number + 1} of {bench.repeat}: {count:,} records of 1 KiB")
        for name, seen in runs.items():
            sink = await bench.topics.make("sink")
            command = _command(bench, name, source, sink, count)
            run = await race(bench.topics, sink, count, command, log=bench.log(f"passthrough-{sink}"))
            if await bench.topics.digests(sink) != digests:
                raise BenchmarkError(f"{name}: the sink does not have what the source has, in its order")
            await bench.topics.delete(sink)
            bench.say(name, run)
            seen.append(run)
    await bench.topics.delete(source)
    return [
        _compared("passthrough.vs_faust_agent", runs["worker"], runs["Faust agent"]),
        _compared("passthrough.vs_aiokafka", runs["worker"], runs["bare loop"]),
        _compared("passthrough.vs_aiokafka_default_batch", runs["worker"], runs["bare loop, 16 KiB batches"]),
        Result(
            "passthrough.cpu_us_per_record",
            median(run.cpu_us for run in runs["worker"]),
            "µs",
            median(run.cpu_us for run in runs["bare loop"]),
            median(a.cpu_us / b.cpu_us for a, b in zip(runs["worker"], runs["bare loop"], strict=True)),
        ),
    ]


def _command(bench: Bench, name: str, source: str, sink: str, count: int) -> list[str]:
    bootstrap = bench.topics.bootstrap
    if name == "worker":
        pipeline = {
            "topics": [source],
            "output.topic": sink,
            "transforms": ["offload"],
            "group.id": f"{sink}-worker",
            "large.message.payload.store.class": "filesystem",
            "filesystem.root": str(bench.folder / "passthrough-store"),
        }
        return list(bench.worker(f"passthrough-{sink}", {"passthrough": pipeline}))
    if name == "Faust agent":
        return [sys.executable, str(_CONTENDERS / "forward_agent.py"), bootstrap, source, sink]
    batch_bytes = _AIOKAFKA_BATCH_BYTES if name.endswith("batches") else _our_batch_bytes()
    return [sys.executable, str(_CONTENDERS / "bare_loop.py"), bootstrap, source, sink, str(count), str(batch_bytes)]


def _compared(name: str, ours: list[Run], theirs: list[Run]) -> Result:
    return Result(
        name,
        median(run.per_second for run in ours),
        "records/s",
        median(run.per_second for run in theirs),
        median(a.per_second / b.per_second for a, b in zip(ours, theirs, strict=True)),
    )
