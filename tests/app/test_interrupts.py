"""An interrupt that Python swallows ends the command all the same."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import signal, sys, threading, weakref
from app.interrupts import keep_interrupts

class Thing:
    pass

def swallowed(_):
    print("called", flush=True)
    signal.raise_signal(signal.SIGINT)  # raises KeyboardInterrupt here, and Python reports and forgets it

keep_interrupts()
thing = Thing()
reference = weakref.ref(thing, swallowed)
try:
    del thing
    threading.Event().wait(60)
    sys.exit(1)
except KeyboardInterrupt:
    sys.exit(130)
"""

OTHER = """
import weakref
from app.interrupts import keep_interrupts

class Thing:
    pass

keep_interrupts()
thing = Thing()
reference = weakref.ref(thing, lambda _: 1 / 0)
del thing
"""


def test_an_interrupt_in_a_callback_comes_again() -> None:
    """Ctrl-C while the callback of a weak reference runs: the command ends with 130, and nothing is printed of it."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "called\n", "")


def test_other_errors_of_callbacks_are_reported_as_before() -> None:
    """Only interrupts come again."""
    done = subprocess.run([sys.executable, "-c", OTHER], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    assert "ZeroDivisionError" in done.stderr
