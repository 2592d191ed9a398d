"""What a soak has found, and the one table that shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table

__all__ = ["Result", "table"]


@dataclass(frozen=True, slots=True)
class Result:
    """What a soak has found; `faults` is what was done, by kind."""

    minutes: float
    seed: int
    routes: Mapping[str, Mapping[str, int]]
    faults: Mapping[str, int]
    poison: int
    dead_letters: int
    unexpected_dead_letters: int
    peak_bytes: int
    files_begin: int
    files_end: int
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
    shown.add_row("open files, begin and end", f"{result.files_begin}, {result.files_end}")
    shown.add_row("until all had arrived", f"{result.seconds_to_settle:g} s")
    return shown
