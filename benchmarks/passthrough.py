"""Records that need no work: the worker compared with the loops that a user would write with Kafka's clients.

A cell is one kind of source: a codec, a size of its batches, a number of partitions. In each round every contender
moves the records of the cell once.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from app.local import jars
from benchmarks.bench import Bench, compared, turned
from benchmarks.java import compiled
from benchmarks.race import BenchmarkError, Run, race
from benchmarks.result import Result
from benchmarks.source import Batches

RECORDS = 300_000
_SIZES: Mapping[str, int] = {"16k": 16_384, "1m": 1_000_000}
_PARTITIONS = (1, 4)
_CODECS = ("none", "zstd", "lz4")
_CONTENDERS = Path(__file__).with_name("contenders")
_BATCH_BYTES = "1000000"  # of the loops, whose batches go after 5 ms at the latest; 16 KiB and 128 KiB are slower
_FAUST = "Faust agent"
_FAUST_RECORDS = 60_000  # it is so slow
_LARGER = 1.25  # size of the output relative to the source, if the codec is kept; otherwise it is about three


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

PARTS = (*CELLS, "vs_faust_agent")
"""What can be measured alone, by the names of the results."""

Command = Callable[[str, str, int], Sequence[str]]
"""The command of a contender, for a source, an output topic, and a number of records."""


async def passthrough(bench: Bench) -> list[Result]:
    """Moves records of 1 KB through each contender, once a round, over the same source topic, cell by cell.

    Raises:
        BenchmarkError: a contender's output topic does not have the source's records, in order and compressed alike.
    """
    count = bench.records or RECORDS
    java = compiled(_CONTENDERS / "Passthrough.java", jars.ensure("kafka"), bench.folder / "classes")
    results: list[Result] = []
    for name, cell in CELLS.items():
        if bench.wants(name):
            runs = await _raced(bench, f"passthrough.{name}", cell, _commands(bench, cell, java), count)
            results += _results(f"passthrough.{name}", runs)
    if bench.wants("vs_faust_agent"):
        name, cell = "passthrough.vs_faust_agent", CELLS["none.16k.4p"]
        commands = {"worker": _commands(bench, cell, java)["worker"], _FAUST: _script(bench, "forward_agent.py")}
        runs = await _raced(bench, name, cell, commands, min(count, _FAUST_RECORDS))
        results.append(compared(name, "records/s", attrgetter("per_second"), runs["worker"], runs[_FAUST]))
    return results


async def _raced(
    bench: Bench, name: str, cell: Cell, commands: Mapping[str, Command], count: int
) -> Mapping[str, list[Run]]:
    source = await bench.topics.make("source", partitions=cell.partitions)
    digests, each = await bench.topics.fill(source, count, cell.batches)
    bench.console.print(f"{name}: {count:,} records of 1 KiB in batches of {each:,.1f} records")
    most_bytes = _LARGER * await bench.topics.size_bytes(source)
    runs: dict[str, list[Run]] = {contender: [] for contender in commands}
    for number in range(bench.repeat):
        bench.console.print(f"{name}, round {number + 1} of {bench.repeat}")
        # The first one finds a quieter disk, so they take turns.
        for contender in turned(list(commands), number):
            sink = await bench.topics.make("sink", partitions=cell.partitions)
            command = commands[contender](source, sink, count)
            run = await race(bench.topics, sink, count, command, log=bench.log(f"passthrough-{sink}"))
            if await bench.topics.digests(sink) != digests:
                raise BenchmarkError(f"{contender}: the output topic does not have the records of the source, in order")
            if contender != _FAUST and await bench.topics.size_bytes(sink) > most_bytes:
                raise BenchmarkError(f"{contender}: the output is not compressed like the source, with {cell.codec}")
            await bench.topics.delete(sink)
            bench.say(contender, run)
            runs[contender].append(run)
    await bench.topics.delete(source)
    return runs


def _commands(bench: Bench, cell: Cell, java: Sequence[str]) -> Mapping[str, Command]:
    def worker(source: str, sink: str, _: int) -> Sequence[str]:
        pipeline = {
            "topics": [source],
            "output.topic": sink,
            "transforms": ["offload"],
            "group.id": f"{sink}-worker",
            "large.message.payload.store.class": "filesystem",
            "filesystem.root": str(bench.folder / "passthrough-store"),
        }
        return bench.worker(f"passthrough-{sink}", {"passthrough": pipeline})

    def in_java(source: str, sink: str, count: int) -> Sequence[str]:
        return [*java, bench.topics.bootstrap, source, sink, str(count), _BATCH_BYTES, cell.codec]

    return {
        "worker": worker,
        "librdkafka": _script(bench, "librdkafka_loop.py", _BATCH_BYTES, cell.codec),
        "aiokafka": _script(bench, "bare_loop.py", _BATCH_BYTES, cell.codec),
        "Java": in_java,
    }


def _script(bench: Bench, name: str, *settings: str) -> Command:
    def command(source: str, sink: str, count: int) -> Sequence[str]:
        counted = (str(count), *settings) if settings else ()
        return [sys.executable, str(_CONTENDERS / name), bench.topics.bootstrap, source, sink, *counted]

    return command


def _results(name: str, runs: Mapping[str, list[Run]]) -> list[Result]:
    ours, speed = runs["worker"], attrgetter("per_second")
    return [
        *(
            compared(f"{name}.vs_{loop.lower()}", "records/s", speed, ours, runs[loop])
            for loop in ("Java", "librdkafka", "aiokafka")
        ),
        compared(f"{name}.cpu_vs_librdkafka", "µs/record", attrgetter("cpu_us"), ours, runs["librdkafka"]),
    ]
