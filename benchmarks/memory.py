"""Peak memory of the worker while far more than its byte budget passes through it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator

from benchmarks.bench import Bench
from benchmarks.race import BenchmarkError, race
from benchmarks.result import Result

RECORDS = 500
BUDGET_MIB = 64
ALLOWANCE_MIB = 150  # the interpreter, its libraries, the clients' buffers: all that the budget does not count
_VALUE_MIB = 8
_VALUE_BYTES = _VALUE_MIB * 2**20
_DISTINCT = 50  # values repeat, so that the store stays small; each is still stored and read
_TOPIC_LIMIT_BYTES = _VALUE_BYTES + 2**20


def _records(count: int) -> Iterator[tuple[bytes, bytes]]:
    body = random.Random(0).randbytes(_VALUE_BYTES - 8)  # noqa: S311  # the same bytes each time
    for number in range(count):
        yield f"key-{number:07d}".encode(), (number % _DISTINCT).to_bytes(8, "big") + body


async def memory(bench: Bench) -> list[Result]:
    """Offloads values of 8 MiB and inflates them again, in one worker with a budget of 64 MiB.

    Raises:
        BenchmarkError: the inflated values are not what went in, or the disk has no room for them.
    """
    count = bench.records or RECORDS
    needed_mib = count * _VALUE_MIB * 2 + _DISTINCT * _VALUE_MIB + 1024
    free_mib = shutil.disk_usage(bench.folder).free // 2**20
    if free_mib < needed_mib:
        raise BenchmarkError(f"memory: {needed_mib:,} MiB of disk are needed, {free_mib:,} are free; see --records")
    raw = await bench.topics.make("raw", max_message_bytes=_TOPIC_LIMIT_BYTES)
    orders = await bench.topics.make("orders")
    inflated = await bench.topics.make("inflated", max_message_bytes=_TOPIC_LIMIT_BYTES)
    bench.console.print(f"memory: {count} records of {_VALUE_MIB} MiB, budget {BUDGET_MIB} MiB")
    digests = await bench.topics.load(raw, _records(count))
    store = {
        "large.message.payload.store.class": "filesystem",
        "filesystem.root": str(bench.folder / "memory-store"),
        "filesystem.fsync": False,  # it is not the speed that is measured
    }
    pipelines = {
        "offload": {"topics": [raw], "output.topic": orders, "transforms": ["offload"], **store},
        "inflate": {"topics": [orders], "output.topic": inflated, "transforms": ["inflate"], **store},
    }
    for name, keys in pipelines.items():
        keys["group.id"] = f"{raw}-{name}"
    command = bench.worker("memory", pipelines, in_flight_bytes=BUDGET_MIB * 2**20)
    run = await race(bench.topics, inflated, count, command, log=bench.log("memory"))
    if await bench.topics.digests(inflated) != digests:
        raise BenchmarkError("memory: the inflated values are not what went in, in their order")
    await bench.topics.delete(raw, orders, inflated)
    bench.say("worker, offload and inflate", run, record_mib=_VALUE_MIB)
    limit = float(BUDGET_MIB + ALLOWANCE_MIB)
    peak = run.peak_rss_bytes / 2**20
    return [Result("memory.peak_mib", peak, "MiB", limit, peak / limit)]
