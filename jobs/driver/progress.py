"""What a terminal shows while a job works: one line with a bar, painted again and again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TextIO

from pyspark import SparkContext
from pyspark.sql import SparkSession

__all__ = ["Steps", "bar", "repaint"]

_BAR_WIDTH = 24
_POLL_SECONDS = 0.5


def bar(done: int, total: int) -> str:
    """`[███···]`: how much of `total` is done; empty if the total is 0."""
    filled = _BAR_WIDTH * done // total if total else 0
    return f"[{'█' * filled}{'·' * (_BAR_WIDTH - filled)}]"


def repaint(screen: TextIO, line: str) -> None:
    """Shows a line in place of the one before it, on a terminal.

    A line that is wider than the terminal loses its bar (`[…] ` at its beginning), then its end: what runs over into
    the next line cannot be replaced.
    """
    try:
        columns = os.get_terminal_size(screen.fileno()).columns
    except OSError:  # no terminal, as in a test
        columns = 0
    if columns and len(line) >= columns:
        line = line[line.find("] ") + 2 if line.startswith("[") else 0 :][: columns - 1]
    screen.write(f"\r\x1b[K{line}")
    screen.flush()


class Steps:
    """The steps of a batch job, shown while they run.

    Args:
        spark: the session; its pages show the name of the step.
        screen: a terminal for the bar; None for none.

    Attributes:
        seconds: how long each step took, by its name.
        note: how far the step has come, in words, where tasks do not tell; the step may set it while it runs.
    """

    def __init__(self, spark: SparkSession, screen: TextIO | None) -> None:
        self.seconds: dict[str, float] = {}
        self.note = ""
        self._context = spark.sparkContext
        self._screen = screen

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """One step, for the length of a `with` block; all of Spark's work in it is counted."""
        started = time.monotonic()
        self.note = ""
        self._context.setJobDescription(name)
        stop = Event()
        painter = Thread(target=self._paint, args=(name, started, stop), name="wideload-progress", daemon=True)
        if self._screen is not None:
            painter.start()
        try:
            yield
        finally:
            stop.set()
            if self._screen is not None:
                painter.join()
            self._context.setJobDescription("")
            self.seconds[name] = round(time.monotonic() - started, 1)
            if self._screen is not None:
                repaint(self._screen, f"{name}: {self.seconds[name]:,.1f} s")
                self._screen.write("\n")

    def _paint(self, name: str, started: float, stop: Event) -> None:
        assert self._screen is not None
        while not stop.wait(_POLL_SECONDS):
            done, tasks = _tasks(self._context)
            counted = f"{done:,} of {tasks:,} tasks, " if tasks else ""  # the driver's own work has none
            note = f"{self.note}, " if self.note else ""
            repaint(self._screen, f"{bar(done, tasks)} {name}: {note}{counted}{time.monotonic() - started:.0f} s")


def _tasks(context: SparkContext) -> tuple[int, int]:
    """How many tasks of the active stages of Spark are done, and how many there are."""
    tracker = context.statusTracker()
    stages = [info for each in tracker.getActiveStageIds() if (info := tracker.getStageInfo(each)) is not None]
    return sum(info.numCompletedTasks for info in stages), sum(info.numTasks for info in stages)
