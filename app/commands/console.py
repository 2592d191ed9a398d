"""The output of commands: table rows and progress bars; plain text if the output is not a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal, TextIO

Advance = Callable[[int], None]
Unit = Literal["bytes", "messages"] | None

_MIN_LAST_COLUMN = 20


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `Rows`.

    Attributes:
        title: the heading.
        width: in characters; the last column of a table takes the rest of the line.
        align: `<` or `>`.
    """

    title: str
    width: int
    align: Literal["<", ">"] = "<"


class Rows:
    """A table that is written row by row; the heading is written before the first row."""

    def __init__(self, columns: Sequence[Column], out: TextIO) -> None:
        self._columns = columns
        self._out = out
        self._started = False
        left = shutil.get_terminal_size().columns - sum(column.width + 2 for column in columns[:-1])
        self._last_width = max(_MIN_LAST_COLUMN, left) if out.isatty() else sys.maxsize

    def add(self, *cells: str) -> None:
        """Writes one row."""
        if not self._started:
            self._started = True
            self._write([column.title for column in self._columns])
        self._write(cells)

    def _write(self, cells: Sequence[str]) -> None:
        padded = [
            f"{_cut(cell, column.width):{column.align}{column.width}}"
            for cell, column in zip(cells[:-1], self._columns, strict=False)
        ]
        self._out.write("  ".join([*padded, _cut(cells[-1], self._last_width)]).rstrip() + "\n")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


@contextmanager
def progress(title: str, total: int | None, *, unit: Unit, shown: bool = True) -> Iterator[Advance]:
    """A progress bar on standard error if that is a terminal; otherwise no output. Call it with the work that is done.

    Args:
        title: the text before the bar.
        total: the amount of work, in `unit`; None if it is not known.
        unit: the unit of the work; None for a bar without numbers.
        shown: False for no output in any case.
    """
    if not shown or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    amounts = {"bytes": (DownloadColumn(),), "messages": (MofNCompleteColumn(),), None: ()}
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *amounts[unit],
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        yield partial(bar.advance, bar.add_task(title, total=total))


def print_table(titles: Sequence[str], rows: Iterable[Iterable[str]], right: Collection[str] = ()) -> None:
    """Prints a table; without a terminal it is 160 columns wide.

    Args:
        titles: of the columns.
        rows: the cells of each row, in printable characters.
        right: the titles of the columns that are aligned to the right.
    """
    import click
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for title in titles:
        table.add_column(title, overflow="fold", justify="right" if title in right else "left")
    for row in rows:
        table.add_row(*map(Text, row))  # rich parses a string as markup, with emoji codes
    out = Console() if sys.stdout.isatty() else Console(width=160)
    with out.capture() as text:  # on a closed pipe rich would end the process with its own status
        out.print(table)
    click.echo(text.get(), nl=False)
