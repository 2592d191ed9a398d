"""What a batch job prints: a table, and amounts for people."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TextIO

from transforms.retention import duration_text

__all__ = ["Column", "age", "amount", "repaint", "text_table"]

_THOUSAND = 1000


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    right: bool = False


def text_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """A table of text, each column as wide as it must be. Not by rich, which a cluster's nodes need not have."""
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


def repaint(screen: TextIO, line: str) -> None:
    """Shows a line in place of the one before it, on a terminal.

    Where it is wider than the terminal, its bar (`[…] ` at its beginning) is left out, and the rest is cut: what goes
    on in the next line cannot be replaced.
    """
    try:
        columns = os.get_terminal_size(screen.fileno()).columns
    except OSError:  # no terminal, as in a test
        columns = 0
    if columns and len(line) >= columns:
        line = line[line.find("] ") + 2 if line.startswith("[") else 0 :][: columns - 1]
    screen.write(f"\r\x1b[K{line}")
    screen.flush()


def age(duration: timedelta) -> str:
    """A duration for people, in its two largest units."""
    return duration_text(round(duration.total_seconds() * 1000))
