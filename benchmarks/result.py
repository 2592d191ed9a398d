"""The results of scenarios, their targets, and the table of both."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

NUMBERS = Path(__file__).with_name("numbers.json")
"""The results that docs/numbers.md shows, each with its day."""


@dataclass(frozen=True, slots=True)
class Result:
    """One number.

    Attributes:
        name: scenario and what was compared, dotted.
        value: what the worker did; the median of the rounds.
        unit: of `value` and `against`.
        against: the same number of what it is compared with; None where it stands alone.
        ratio: the median of the rounds' `value / against`, which need not be the quotient of the two medians; of
            `clients`, whose figures are times of one round, `against / value`.
    """

    name: str
    value: float
    unit: str
    against: float | None = None
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a result.

    Attributes:
        of: the field of the result.
        at: "least" or "most": on which side of the bound it has to be.
        bound: the bound.
    """

    of: Literal["ratio", "value"]
    at: Literal["least", "most"]
    bound: float

    def reached(self, result: Result) -> bool | None:
        """Whether `result` reaches this; None where the number is missing."""
        number = result.ratio if self.of == "ratio" else result.value
        if number is None:
            return None
        return number >= self.bound if self.at == "least" else number <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at == 'least' else '≤'} {self.bound:g}{'×' if self.of == 'ratio' else ''}"


def _passthrough(codec: str, size: str, partitions: str) -> dict[str, Target]:
    name = f"passthrough.{codec}.{size}.{partitions}"
    speed = Target("ratio", "least", 1.3 if partitions == "1p" else 1.0)
    # librdkafka has to compress again.
    cpu = Target("ratio", "most", 0.6 if codec == "none" else 0.3)
    return {
        f"{name}.vs_java": speed,
        f"{name}.vs_librdkafka": speed,
        f"{name}.vs_aiokafka": Target("ratio", "least", 0.8),
        f"{name}.cpu_vs_librdkafka": cpu,
    }


TARGETS: Mapping[str, Target] = {
    **{
        name: target
        for each in itertools.product(("none", "zstd", "lz4"), ("16k", "1m"), ("1p", "4p"))
        for name, target in _passthrough(*each).items()
    },
    "passthrough.vs_faust_agent": Target("ratio", "least", 8.0),
    "exactly_once.1p.vs_at_least_once": Target("ratio", "least", 0.9),
    "latency.added_p99_ms": Target("value", "most", 5.0),
    "latency.exactly_once_p50_ms": Target("value", "most", 25.0),
    "latency.small_p99_ms": Target("value", "most", 50.0),
    "offload.s3.vs_best_peer": Target("ratio", "least", 1.6),
    "offload.s3.cpu_ms": Target("value", "most", 9.0),
    "inflate.s3.vs_best_peer": Target("ratio", "least", 1.6),
    "inflate.s3.cpu_ms": Target("value", "most", 9.0),
    "offload.s3.vs_peer": Target("ratio", "least", 1.3),
    **{
        f"clients.{client}.{form}.{call}.vs_bare": Target("ratio", "least", bound)
        for client, plain, large in (
            ("aiokafka", {"send": 0.85, "getmany": 0.9, "getone": 0.8}, ("send", "getmany")),
            ("confluent", {"produce": 0.85, "poll": 0.5, "consume": 0.6}, ("produce", "poll")),
            ("kafka_python", {"send": 0.85, "poll": 0.8, "iteration": 0.8}, ("send", "poll")),
        )
        for form, calls in (
            ("100b", plain),
            ("1kb", plain),
            ("references", dict.fromkeys(large, 0.8)),
            ("chunks", dict.fromkeys(large, 0.8)),
        )
        for call, bound in calls.items()
    },
    "chunks.chunk.vs_copy": Target("ratio", "least", 0.7),
    "chunks.assemble.vs_copy": Target("ratio", "least", 0.7),
    "chunks.memory.peak_mib": Target("ratio", "most", 1.0),
    "memory.peak_mib": Target("ratio", "most", 1.0),
    # KIP-126: "Much less than 10 %".
    "batches.split_percent": Target("value", "most", 5.0),
    "spark.inflate.s3": Target("ratio", "least", 1.2),
    "spark.inflate.s3.pool": Target("ratio", "least", 0.95),
    "spark.inflate.s3_far": Target("ratio", "least", 8.0),
}


def published() -> Mapping[str, Mapping[str, Any]]:
    """The results in `NUMBERS` by name, each with the day on which it was measured."""
    return {each["name"]: each for each in json.loads(NUMBERS.read_text(encoding="utf-8"))["results"]}


def table(results: Iterable[Result]) -> Table:
    """The results, each with its target and whether it was reached."""
    shown = Table(title="Wideload benchmark")
    for column in ("name", "value", "unit", "against", "ratio", "target", "reached"):
        shown.add_column(column, justify="left" if column in {"name", "unit"} else "right", no_wrap=True)
    for result in results:
        target = TARGETS.get(result.name)
        reached = target.reached(result) if target else None
        shown.add_row(
            result.name,
            _shown(result.value),
            result.unit,
            "" if result.against is None else _shown(result.against),
            "" if result.ratio is None else f"{result.ratio:.2f}",
            str(target) if target else "",
            "" if reached is None else "[green]yes[/]" if reached else "[red]NO[/]",
        )
    return shown


def _shown(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}"  # noqa: PLR2004


def merge(path: Path, results: Sequence[Result], *, keep: bool) -> None:
    """Writes the results as JSON.

    Args:
        path: the file.
        results: what was measured just now.
        keep: whether results of other names that the file has already stay in it.
    """
    rows = [asdict(result) for result in results]
    if keep and path.exists():
        new = {result.name for result in results}
        rows = [row for row in json.loads(path.read_text()) if row["name"] not in new] + rows
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=2) + "\n")
