"""What a batch job is doing: a bar a stage in a terminal, and how long each took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TextIO

from pyspark import SparkContext
from pyspark.sql import SparkSession

from jobs.driver.report import repaint

__all__ = ["Stages"]

_BAR_WIDTH = 24
_POLL_SECONDS = 0.5


class Stages:
    """The stages of one run, told as they go.

    Args:
        spark: the session; its pages call the work by the stage's name.
        screen: a terminal for the bar; None for none.

    Attributes:
        seconds: how long each stage took, by its name.
    """

    def __init__(self, spark: SparkSession, screen: TextIO | None) -> None:
        self.seconds: dict[str, float] = {}
        self._context = spark.sparkContext
        self._screen = screen

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """One stage, for the length of a `with` block; all of Spark's work in it is counted."""
        started = time.monotonic()
        self._context.setJobDescription(name)
        stop = Event()
        painter = Thread(target=self._paint, args=(name, started, stop), name="wideload-stages", daemon=True)
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
            filled = _BAR_WIDTH * done // tasks if tasks else 0
            counted = f"{done:,} of {tasks:,} tasks, " if tasks else ""  # what the driver does itself has none
            repaint(
                self._screen,
                f"[{'█' * filled}{'·' * (_BAR_WIDTH - filled)}] {name}: {counted}{time.monotonic() - started:.0f} s",
            )


def _tasks(context: SparkContext) -> tuple[int, int]:
    """How many tasks of what Spark does now are done, and how many there are."""
    tracker = context.statusTracker()
    stages = [info for each in tracker.getActiveStageIds() if (info := tracker.getStageInfo(each)) is not None]
    return sum(info.numCompletedTasks for info in stages), sum(info.numTasks for info in stages)
