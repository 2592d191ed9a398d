"""What a soak has found, and the one table that shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table

__all__ = ["Result", "table"]


@dataclass(frozen=True, slots=True)
class Result:
    """What a soak has found.

    Attributes:
        faults: what was done, by kind.
        peak_bytes: the most memory of a worker.
        resident_bytes: memory of the worker that was not killed, in the first minutes and at the end.
        files: its open files, likewise.
        threads: its threads, likewise.
    """

    minutes: float
    seed: int
    routes: Mapping[str, Mapping[str, int]]
    faults: Mapping[str, int]
    poison: int
    dead_letters: int
    unexpected_dead_letters: int
    peak_bytes: int
    resident_bytes: tuple[int, int]
    files: tuple[int, int]
    threads: tuple[int, int]
    seconds_to_settle: float
    failures: tuple[str, ...]


def table(result: Result) -> Table:
    """The one table."""
    shown = Table(title=f"{result.minutes:g} minutes, seed {result.seed}")
    shown.add_column("")
    names = list(result.routes)
    for name in names:
        shown.add_column(name, justify="right")
    for row, key in (
        ("records sent", "sent"),
        ("records received", "received"),
        ("bytes", "bytes"),
        ("lost", "pending"),
        ("duplicated", "duplicated"),
        ("out of order", "disordered"),
        ("changed", "changed"),
        ("never sent", "unknown"),
    ):
        shown.add_row(row, *(f"{result.routes[name][key]:,}" for name in names))
    shown.add_section()
    for kind, count in result.faults.items():
        shown.add_row(kind, f"{count:,}")
    shown.add_section()
    shown.add_row("poison records, dead letters", f"{result.poison:,}, {result.dead_letters:,}")
    shown.add_row("peak memory of a worker", f"{result.peak_bytes / 2**20:,.0f} MiB")
    begin, end = (f"{each / 2**20:,.0f} MiB" for each in result.resident_bytes)
    shown.add_row("memory, begin and end", f"{begin}, {end}")
    shown.add_row("open files, begin and end", "{}, {}".format(*result.files))
    shown.add_row("threads, begin and end", "{}, {}".format(*result.threads))
    shown.add_row("until all had arrived", f"{result.seconds_to_settle:g} s")
    return shown
