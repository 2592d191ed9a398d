"""What every scenario gets: the cluster, a directory, the number of rounds, and where to print observations."""

from __future__ import annotations

import fnmatch
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.machine import load_average
from benchmarks.race import Run
from benchmarks.result import Result
from benchmarks.topics import Topics
from tests.s3_server import free_port


@dataclass(frozen=True, slots=True)
class Bench:
    """What every scenario gets.

    Attributes:
        topics: of the cluster.
        folder: a directory for stores, configurations and logs; removed at the end.
        repeat: rounds; in each round every contender runs once.
        records: how many to move; None for the scenario's default.
        console: where observations are printed.
        profiles: a directory for the worker's profiles (`python -m pstats FILE`); None for no profiling, as numbers
            measured under a profiler are worth little.
        parts: patterns of the parts of the scenario to run; empty for all.
    """

    topics: Topics
    folder: Path
    repeat: int
    records: int | None
    console: Console
    profiles: Path | None = None
    parts: Sequence[str] = ()

    def wants(self, part: str) -> bool:
        """Whether to run this part of the scenario."""
        return not self.parts or any(matches(part, pattern) for pattern in self.parts)

    def worker(self, name: str, pipelines: Mapping[str, Mapping[str, object]], **keys: object) -> Sequence[str]:
        """The command of a worker with these pipelines, as a user would run it.

        Args:
            name: of this run, in file names.
            pipelines: properties by pipeline, without `pipeline.`.
            keys: of the worker, with `_` for `.`.
        """
        worker = {
            "bootstrap.servers": self.topics.bootstrap,
            "web.port": free_port(),
            **{key.replace("_", "."): value for key, value in keys.items()},
        }
        lines = [f"{key} = {json.dumps(value)}" for key, value in worker.items()]
        for pipeline, values in pipelines.items():
            lines += ["", f"[pipeline.{pipeline}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
        config = self.folder / f"{name}.toml"
        config.write_text("\n".join(lines) + "\n")
        profiled: Sequence[str] = ()
        if self.profiles is not None:
            self.profiles.mkdir(parents=True, exist_ok=True)
            profiled = ("-m", "cProfile", "-o", str(self.profiles / f"{name}.pstats"))
        return [sys.executable, *profiled, "-m", "app.cli", "worker", "-c", str(config), "--log-level", "WARNING"]

    def log(self, name: str) -> Path:
        """The file for a contender's output."""
        return self.folder / f"{name}.log"

    def say(self, name: str, run: Run, *, record_mib: float | None = None) -> None:
        """Prints the observations of one run."""
        speed = (
            f"{run.per_second:10,.0f} records/s" if record_mib is None else f"{run.per_second * record_mib:8,.1f} MiB/s"
        )
        self.console.print(
            f"  {name:<28} {speed}  {run.cpu_us:12,.1f} µs CPU/record  {run.seconds:7.2f} s  "
            f"peak {run.peak_rss_bytes / 2**20:6,.0f} MiB  load average {load_average():.2f}",
            highlight=False,
        )


def median(numbers: Iterable[float]) -> float:
    """The median."""
    return statistics.median(numbers)


def matches(part: str, pattern: str) -> bool:
    """Whether the pattern (`none.1m.1p`, `zstd`, `*.1m.*`) matches a part, or the beginning of its name."""
    return fnmatch.fnmatchcase(part, pattern) or fnmatch.fnmatchcase(part, f"{pattern}.*")


def turned(names: Sequence[str], number: int) -> Sequence[str]:
    """The names in the order of the rounds: each is first once before any is first a second time."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


def compared(
    name: str, unit: str, figure: Callable[[Run], float], ours: Sequence[Run], theirs: Sequence[Run]
) -> Result:
    """Medians of a figure of our runs and of theirs; the ratio is the median of the ratios of the rounds."""
    return Result(
        name,
        median(map(figure, ours)),
        unit,
        median(map(figure, theirs)),
        median(figure(a) / figure(b) for a, b in zip(ours, theirs, strict=True)),
    )
