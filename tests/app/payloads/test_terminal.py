from __future__ import annotations

import fcntl
import os
import struct
import termios
from io import StringIO

import pytest

from app.payloads.terminal import repaint

pytestmark = pytest.mark.unit

LINE = "[██··] reading: 1 of 2 tasks"


def test_repaint() -> None:
    """A line that is wider than the terminal loses its bar, then its end, so that the next one can replace it."""
    for columns, shown in ((30, LINE), (28, "reading: 1 of 2 tasks"), (10, "reading: ")):
        controller, terminal = os.openpty()
        with os.fdopen(terminal, "w", encoding="utf-8") as screen, os.fdopen(controller, "rb", buffering=0) as seen:
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            repaint(screen, LINE)
            assert seen.read(1000).decode() == f"\r\x1b[K{shown}"
    no_terminal = StringIO()
    repaint(no_terminal, LINE)
    assert no_terminal.getvalue() == f"\r\x1b[K{LINE}"
