"""What a job prints at its end: a table, and amounts for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from transforms.retention import duration_text

__all__ = ["Column", "age", "amount", "text_table"]

_THOUSAND = 1000


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    right: bool = False


def text_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """A table of text, each column as wide as its widest cell. Without rich, which a cluster's nodes need not have."""
    lines = [[column.name for column in columns], *rows]
    widths = [max(len(line[number]) for line in lines) for number in range(len(columns))]
    return "".join(
        "  ".join(
            cell.rjust(width) if column.right else cell.ljust(width)
            for column, cell, width in zip(columns, line, widths, strict=True)
        ).rstrip()
        + "\n"
        for line in lines
    )


def amount(size: int) -> str:
    """Bytes in the largest unit that leaves a digit before the point: `12 B`, `3.4 MB`."""
    number, unit = float(size), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < _THOUSAND or unit == "TB":
            break
        number /= _THOUSAND
    return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"


def age(duration: timedelta) -> str:
    """A duration for people, in its two largest units."""
    return duration_text(round(duration.total_seconds() * 1000))
