"""What exactly once costs: the same records through the same pipeline, with and without transactions."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.bench import Bench, compared, turned
from benchmarks.race import BenchmarkError, Run, race
from benchmarks.result import Result
from benchmarks.source import Batches

RECORDS = 1_000_000  # with fewer, a round takes a second, and a pause of the machine decides
COUNTS: Mapping[str, int] = {"1p": 1, "16p": 16}
"""Partitions by the names in the results."""

_BATCHES = Batches(262_144, "none")
_GUARANTEES = ("exactly_once", "at_least_once")
_COMMIT_MS = 100  # both commit as often, and are timed by what they have committed


async def exactly_once(bench: Bench) -> list[Result]:
    """Moves records of 1 KB with each guarantee in turn, from topics with few partitions and with many.

    Raises:
        BenchmarkError: an output topic does not have the records of the source, once each, in order.
    """
    results: list[Result] = []
    for part, partitions in COUNTS.items():
        if bench.wants(part):
            results += await _compared(bench, f"exactly_once.{part}", partitions, bench.records or RECORDS)
    return results


async def _compared(bench: Bench, name: str, partitions: int, count: int) -> list[Result]:
    source = await bench.topics.make("source", partitions=partitions)
    digests, _ = await bench.topics.fill(source, count, _BATCHES)
    runs: dict[str, list[Run]] = {guarantee: [] for guarantee in _GUARANTEES}
    for number in range(bench.repeat):
        bench.console.print(
            f"{name}, round {number + 1} of {bench.repeat}: {count:,} records of 1 KiB, {partitions} partitions"
        )
        # The first one finds a quieter disk, so they take turns.
        for guarantee in turned(_GUARANTEES, number):
            sink = await bench.topics.make("sink", partitions=partitions)
            run = await _run(bench, guarantee, source, sink, count)
            if await bench.topics.digests(sink) != digests:
                raise BenchmarkError(f"{guarantee}: the output topic does not have the records of the source, in order")
            await bench.topics.delete(sink)
            bench.say(guarantee, run)
            runs[guarantee].append(run)
    await bench.topics.delete(source)
    ours, theirs = (runs[guarantee] for guarantee in _GUARANTEES)
    return [
        compared(f"{name}.vs_at_least_once", "records/s", lambda run: run.per_second, ours, theirs),
        compared(f"{name}.peak_mib", "MiB", lambda run: run.peak_rss_bytes / 2**20, ours, theirs),
    ]


async def _run(bench: Bench, guarantee: str, source: str, sink: str, count: int) -> Run:
    group = f"{sink}-{guarantee}"
    pipeline = {
        "topics": [source],
        "output.topic": sink,
        "transforms": ["offload"],
        "group.id": group,
        "processing.guarantee": guarantee,
        "offset.flush.interval.ms": _COMMIT_MS,
        "transaction.boundary.interval.ms": _COMMIT_MS,
        "large.message.payload.store.class": "filesystem",
        "filesystem.root": str(bench.folder / "store"),
    }
    return await race(
        bench.topics,
        sink,
        count,
        bench.worker(group, {sink: pipeline}),
        log=bench.log(group),
        watch=bench.topics.watch_commits(group, source),
    )
