"""The engine of this process: threads, and rows in a temporary file of SQLite, which sorts them in little memory."""

from __future__ import annotations

import heapq
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby, islice, repeat
from queue import SimpleQueue
from threading import Event, RLock, Thread
from types import TracebackType
from typing import Any, Self, TextIO, TypeVar

from app.payloads.engine import Row
from app.payloads.report import check_report, write_report
from app.payloads.terminal import Steps

Item = TypeVar("Item")
Result = TypeVar("Result")

_INSERTED = 500  # rows at a time
_TOGETHER = 16  # rows that a task takes at a time; it may ask the store for each


def on_terminal(*_: object) -> LocalEngine:
    """An engine that shows its steps where stderr is a terminal."""
    return LocalEngine(screen=sys.stderr if sys.stderr.isatty() else None)


@dataclass(frozen=True, slots=True)
class Table:
    """A frame: a table of the database, and the types of its columns by name."""

    name: str
    types: Mapping[str, str]


class LocalEngine:
    """See `app.payloads.engine.Engine`.

    Args:
        threads: how many tasks run at a time; most of the time they wait for brokers and stores.
        screen: a terminal that shows the steps; None for none.
    """

    # The database, and what tasks take their rows from, are used under `_lock` alone.

    def __init__(self, threads: int = 8, screen: TextIO | None = None) -> None:
        self._threads = threads
        self._lock = RLock()
        self._names = count()
        self._done = ""
        self._steps = Steps(screen, lambda: self._done)
        self.seconds, self.step = self._steps.seconds, self._steps.step
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = OFF")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:  # else a task may use it still
            self._database.close()

    def spread(self, items: Sequence[Item], work: Callable[[Iterable[Item]], Iterator[Row]], columns: str) -> Table:
        """See `Engine`."""
        return self._made(((number, iter([item])) for number, item in enumerate(items)), 1, work, columns)

    def by_path(
        self, frames: Sequence[Table], work: Callable[[Iterator[tuple[int, Row]]], Iterator[Row]], columns: str
    ) -> Table:
        """See `Engine`."""
        read = [zip(repeat(number), self._rows(frame)) for number, frame in enumerate(frames)]
        merged = heapq.merge(*read, key=lambda each: (each[1][0] is not None, each[1][0] or ""))
        return self._made(groupby(merged, lambda each: each[1][0]), _TOGETHER, work, columns)

    def gathered(self, frame: Table, work: Callable[[Iterator[Row]], Result]) -> list[Result]:
        """See `Engine`."""
        return [work(self._rows(frame))]

    def check_new(self, path: str) -> None:
        """See `Engine` and `check_report`."""
        check_report(path)

    def save(self, frame: Table, path: str) -> None:
        """See `Engine` and `write_report`."""
        write_report(self._rows(frame), frame.types, path)

    def _rows(self, frame: Table) -> Iterator[Row]:
        order = ", ".join(f'"{name}"' for name in [*frame.types][:2])
        return self._database.execute(f"SELECT * FROM {frame.name} ORDER BY {order}")  # noqa: S608  # names of ours

    def _made(
        self,
        groups: Iterator[tuple[object, Iterator[Any]]],
        together: int,
        work: Callable[[Iterator[Any]], Iterator[Row]],
        columns: str,
    ) -> Table:
        """The rows that threads make of the groups, each of which goes to one call of `work` as a whole."""
        table = Table(f"frame_{next(self._names)}", dict(each.split() for each in columns.split(",")))
        names = ", ".join(f'"{name}"' for name in table.types)
        insert = f"INSERT INTO {table.name} VALUES ({', '.join('?' * len(table.types))})"  # noqa: S608  # names of ours
        self._database.execute(f"CREATE TABLE {table.name} ({names})")
        ended: SimpleQueue[BaseException | None] = SimpleQueue()
        stop = Event()
        made = 0

        def run() -> None:
            nonlocal made
            try:
                rows = work(self._taken(groups, together, stop))
                while not stop.is_set() and (some := list(islice(rows, _INSERTED))):
                    with self._lock:
                        self._database.executemany(insert, some)
                        made += len(some)
                        self._done = f"{made:,} rows"
            except BaseException as exc:  # noqa: BLE001  # it is raised below
                ended.put(exc)
            else:
                ended.put(None)

        # If a task fails or the user interrupts, nobody waits for the others, which may read a long partition.
        threads = [Thread(target=run, name=f"wideload-{table.name}", daemon=True) for _ in range(self._threads)]
        for thread in threads:
            thread.start()
        try:
            for _ in threads:
                error = ended.get()
                if error is not None:
                    raise error
        finally:
            stop.set()
        return table

    def _taken(self, groups: Iterator[tuple[object, Iterator[Item]]], together: int, stop: Event) -> Iterator[Item]:
        """The items of some groups: whole groups, and as few as hold so many items."""
        while not stop.is_set():
            with self._lock:
                items: list[Item] = []
                for _, group in groups:
                    items += islice(group, together)
                    rest = next(group, None)
                    if rest is not None:  # a large group is not held in memory; others wait until it is read
                        yield from items
                        yield rest
                        yield from group
                        items = []
                    if len(items) >= together:
                        break
            if not items:
                return
            yield from items
