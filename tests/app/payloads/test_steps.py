from __future__ import annotations

import fcntl
import os
import struct
import termios
from io import StringIO

import pytest

from app.payloads.steps import repaint

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("columns", "shown"),
    [(30, "[██··] reading: 1 of 2 tasks"), (28, "reading: 1 of 2 tasks"), (10, "reading: ")],
)
def test_repaint_fits_terminal(columns: int, shown: str) -> None:
    """A line that is wider than the terminal loses its bar, then its end, so that the next one can replace it."""
    controller, terminal = os.openpty()
    with os.fdopen(terminal, "w", encoding="utf-8") as screen, os.fdopen(controller, "rb", buffering=0) as seen:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        repaint(screen, "[██··] reading: 1 of 2 tasks")
        assert seen.read(1000).decode() == f"\r\x1b[K{shown}"


def test_repaint_without_terminal() -> None:
    """What is no terminal has no width, and gets the whole line."""
    screen = StringIO()
    repaint(screen, "[██··] reading")
    assert screen.getvalue() == "\r\x1b[K[██··] reading"
