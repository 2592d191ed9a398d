"""What commands print: rows, sizes, progress; plain wherever no terminal is at the other end."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol, TextIO

__all__ = ["Column", "Progress", "Rows", "Unit", "brief", "bytes_text", "printable", "progress"]

Unit = Literal["bytes", "messages"] | None

_MIN_LAST_COLUMN = 20
_KILO = 1000
_ROUNDS_UP = 999.95  # to 1000.0, with one digit behind the point


def bytes_text(count: int) -> str:
    """A number of bytes for people: `512 B`, `20.0 kB`, `1.5 MB`; decimal units, as the tools around Kafka have."""
    if count < _KILO:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= _KILO
        if size < _ROUNDS_UP:
            return f"{size:.1f} {unit}"
    return f"{size / _KILO:.1f} TB"


def printable(data: bytes | None, limit: int = 200) -> str:
    """Bytes of a record as text that can harm no terminal: what is not printable ASCII or Unicode is escaped.

    A null is `-`. What is longer than `limit` characters is cut, with an ellipsis.
    """
    if data is None:
        return "-"
    # Four bytes make a character at most, so the rest of a key of a megabyte need not be looked at.
    text = data[: 4 * limit + 4].decode(errors="backslashreplace")
    escaped = _escaped(text[: limit + 1])
    return escaped if len(escaped) <= limit else f"{escaped[: limit - 1]}…"


def brief(text: str, limit: int = 40) -> str:
    """`text` as it may stand in a line: what is not printable is escaped, and what is long is cut in its middle."""
    if len(text) <= limit:
        return _escaped(text)
    end = limit // 3
    return f"{_escaped(text[: limit - end - 1])}…{_escaped(text[-end:])}"


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `Rows`.

    Attributes:
        title: the heading.
        width: characters; the last column of a table takes what is left of the line.
        align: `<` or `>`.
    """

    title: str
    width: int
    align: Literal["<", ">"] = "<"


class Rows:
    """A table that is written row by row, as the rows come; the heading goes before the first."""

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


class Progress(Protocol):
    """Takes note of what is done."""

    def advance(self, amount: int) -> None:
        """So much more is done."""
        ...


class _Silent:
    def advance(self, amount: int) -> None:
        """Nothing to show."""


@contextmanager
def progress(title: str, total: int | None, *, unit: Unit, shown: bool = True) -> Iterator[Progress]:
    """A bar on standard error where that is a terminal; silence elsewhere.

    Args:
        title: what is being done.
        total: in `unit`; None where it is not known.
        unit: of `total`, and of `Progress.advance`; None where nothing is counted, and the bar only moves.
        shown: False for silence in any case.
    """
    if not shown or not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    amounts = {"bytes": (DownloadColumn(),), "messages": (MofNCompleteColumn(),), None: ()}
    with Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        *amounts[unit],
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(title, total=total)

        class Shown:
            def advance(self, amount: int) -> None:
                """See `Progress.advance`."""
                bar.advance(task, amount)

        yield Shown()
