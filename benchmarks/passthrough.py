"""Records that need no work: the worker beside the loops that a user would write with each of Kafka's clients.

A cell is one kind of source: a codec, a size of its batches, a number of partitions. In each round every contender
moves the records of the cell once.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.config.keys import PRODUCER_KEYS
from app.local import jars
from benchmarks.bench import Bench, median, turned
from benchmarks.java import compiled
from benchmarks.race import BenchmarkError, Run, race
from benchmarks.result import Result
from benchmarks.source import Batches

__all__ = ["CELLS", "RECORDS", "Cell", "passthrough"]

RECORDS = 300_000
_SIZES: Mapping[str, int] = {"16k": 16_384, "1m": 1_000_000}
_PARTITIONS = (1, 4)
_CODECS = ("none", "zstd", "lz4")
_CONTENDERS = Path(__file__).with_name("contenders")
_BATCH_BYTES = "1000000"  # of the loops, whose batches go after 5 ms at the latest; 16 KiB and 128 KiB are slower
_FAUST_CELL = "none.16k.4p"  # it takes a minute a round, so one cell has it
_LARGER = 1.25  # the sink, compared with the source, if the codec is kept; without one it is about three times


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of source.

    Attributes:
        codec: "none", "zstd" or "lz4".
        size: "16k" or "1m", of a batch before it is compressed.
        partitions: of the topics.
    """

    codec: str
    size: str
    partitions: int

    @property
    def name(self) -> str:
        """As in the names of the results."""
        return f"{self.codec}.{self.size}.{self.partitions}p"

    @property
    def batches(self) -> Batches:
        """What the source has."""
        return Batches(_SIZES[self.size], self.codec)


CELLS: Mapping[str, Cell] = {
    cell.name: cell for cell in (Cell(*each) for each in itertools.product(_CODECS, _SIZES, _PARTITIONS))
}

Commands = Mapping[str, Callable[[str, str, int], Sequence[str]]]
"""The command of each contender, for a source, a sink, and a number of records."""


async def passthrough(bench: Bench) -> list[Result]:
    """Moves records of 1 KB through each contender, once a round, over the same source topic, cell by cell.

    Raises:
        BenchmarkError: the sink of a contender does not have what the source has, in its order and compressed alike.
    """
    java = compiled(_CONTENDERS / "Passthrough.java", jars.ensure("kafka"), bench.folder / "classes")
    results: list[Result] = []
    for name, cell in CELLS.items():
        if bench.wants(name):
            results += await _compared(bench, cell, java, bench.records or RECORDS)
    return results


async def _compared(bench: Bench, cell: Cell, java: Sequence[str], count: int) -> list[Result]:
    source = await bench.topics.make("source", partitions=cell.partitions)
    digests, each = await bench.topics.fill(source, count, cell.batches)
    bench.console.print(f"passthrough.{cell.name}: {count:,} records of 1 KiB in batches of {each:,.1f} records")
    commands = _commands(bench, cell, java)
    runs: dict[str, list[Run]] = {name: [] for name in commands}
    for number in range(bench.repeat):
        bench.console.print(f"passthrough.{cell.name}, round {number + 1} of {bench.repeat}")
        # Whoever comes first finds a quieter disk, so they take turns.
        for name in turned(list(commands), number):
            sink = await bench.topics.make("sink", partitions=cell.partitions)
            command = commands[name](source, sink, count)
            run = await race(bench.topics, sink, count, command, log=bench.log(f"passthrough-{sink}"))
            if await bench.topics.digests(sink) != digests:
                raise BenchmarkError(f"{name}: the sink does not have what the source has, in its order")
            if name != "Faust agent" and await _is_larger(bench, sink, source):
                raise BenchmarkError(f"{name}: the sink is not compressed as the source is, with {cell.codec}")
            await bench.topics.delete(sink)
            bench.say(name, run)
            runs[name].append(run)
    await bench.topics.delete(source)
    return _results(f"passthrough.{cell.name}", runs)


async def _is_larger(bench: Bench, sink: str, source: str) -> bool:
    return await bench.topics.size_bytes(sink) > _LARGER * await bench.topics.size_bytes(source)


def _commands(bench: Bench, cell: Cell, java: Sequence[str]) -> Commands:
    bootstrap = bench.topics.bootstrap

    def worker(source: str, sink: str, _: int) -> Sequence[str]:
        pipeline = {
            "topics": [source],
            "output.topic": sink,
            "transforms": ["offload"],
            "group.id": f"{sink}-worker",
            "large.message.payload.store.class": "filesystem",
            "filesystem.root": str(bench.folder / "passthrough-store"),
            **_kept(cell.codec),
        }
        return bench.worker(f"passthrough-{sink}", {"passthrough": pipeline})

    def script(name: str, *settings: str) -> Callable[[str, str, int], Sequence[str]]:
        return lambda source, sink, count: [
            *(sys.executable, str(_CONTENDERS / name), bootstrap, source, sink),
            *((str(count), *settings) if settings else ()),
        ]

    commands: dict[str, Callable[[str, str, int], Sequence[str]]] = {
        "worker": worker,
        "librdkafka": script("librdkafka_loop.py", _BATCH_BYTES, cell.codec),
        "aiokafka": script("bare_loop.py", _BATCH_BYTES, cell.codec),
        "Java": lambda source, sink, count: [
            *(*java, bootstrap, source, sink, str(count)),
            *(_BATCH_BYTES, cell.codec),
        ],
    }
    if cell.name == _FAUST_CELL:
        commands["Faust agent"] = script("forward_agent.py")
    return commands


def _kept(codec: str) -> Mapping[str, object]:
    """What keeps the codec of the source: nothing where that is the default, else the codec itself."""
    (key,) = (key for key in PRODUCER_KEYS if key.name == "producer.compression.type")
    return {} if key.default == "source" else {key.name: codec}


def _results(name: str, runs: Mapping[str, list[Run]]) -> list[Result]:
    ours = runs["worker"]
    compared = [_speeds(f"{name}.vs_{loop.lower()}", ours, runs[loop]) for loop in ("Java", "librdkafka", "aiokafka")]
    compared.append(_cpu(f"{name}.cpu_vs_librdkafka", ours, runs["librdkafka"]))
    if "Faust agent" in runs:
        compared.append(_speeds("passthrough.vs_faust_agent", ours, runs["Faust agent"]))
    return compared


def _speeds(name: str, ours: list[Run], theirs: list[Run]) -> Result:
    return Result(
        name,
        median(run.per_second for run in ours),
        "records/s",
        median(run.per_second for run in theirs),
        median(a.per_second / b.per_second for a, b in zip(ours, theirs, strict=True)),
    )


def _cpu(name: str, ours: list[Run], theirs: list[Run]) -> Result:
    return Result(
        name,
        median(run.cpu_us for run in ours),
        "µs/record",
        median(run.cpu_us for run in theirs),
        median(a.cpu_us / b.cpu_us for a, b in zip(ours, theirs, strict=True)),
    )
