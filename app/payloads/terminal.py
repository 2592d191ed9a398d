"""What a job or a command shows on the terminal: its steps in one line that is redrawn, and how it has failed."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TextIO

from transforms.errors import ConfigurationError, WideloadError

_POLL_SECONDS = 0.5
_BAR_WIDTH = 24
_INTERRUPTED = 130


def bar(done: int, total: int) -> str:
    """`[███···]`: how much of `total` is done; empty if the total is 0."""
    filled = _BAR_WIDTH * done // total if total else 0
    return f"[{'█' * filled}{'·' * (_BAR_WIDTH - filled)}]"


def repaint(screen: TextIO, line: str) -> None:
    """Replaces the last line on a terminal.

    A line that is wider than the terminal loses its bar (`[…] ` at its beginning), and then its end: text that wraps
    into the next line could not be replaced.
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
    """The steps of a run, shown while they run.

    Args:
        screen: a terminal; None to show nothing.
        done: how far the step has come, in words; called on a thread.

    Attributes:
        seconds: how long each step took, by its name.
    """

    def __init__(self, screen: TextIO | None, done: Callable[[], str]) -> None:
        self.seconds: dict[str, float] = {}
        self._screen = screen
        self._done = done

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """One step, for the length of a `with` block."""
        started = time.monotonic()
        stop = Event()
        painter = Thread(target=self._paint, args=(name, started, stop), name="wideload-progress", daemon=True)
        if self._screen is not None:
            painter.start()
        try:
            yield
        finally:
            stop.set()
            self.seconds[name] = round(time.monotonic() - started, 1)
            if self._screen is not None:
                painter.join()
                repaint(self._screen, f"{name}: {self.seconds[name]:,.1f} s\n")

    def _paint(self, name: str, started: float, stop: Event) -> None:
        assert self._screen is not None
        while not stop.wait(_POLL_SECONDS):
            repaint(self._screen, f"{name}: {self._done()}, {time.monotonic() - started:.0f} s")


def failed(job: str, error: WideloadError, arguments: argparse.Namespace) -> int:
    """Prints the error; returns the exit status: 2 for a wrong configuration, otherwise 1.

    Raises:
        WideloadError: the error itself, with `--verbose`.
    """
    if getattr(arguments, "verbose", False):
        raise error
    print(f"{job}: {error}", file=sys.stderr)
    return 2 if isinstance(error, ConfigurationError) else 1


def interrupted(job: str, state: str) -> int:
    """Prints the state after SIGINT; returns the exit status."""
    print(f"{job}: interrupted; {state}", file=sys.stderr)
    return _INTERRUPTED
