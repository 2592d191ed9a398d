"""Work that is interrupted when its time is over."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from jobs.ingesting.time_limit import TimeIsUpError, within


def endless() -> None:
    while True:
        with suppress(Exception):
            sum(range(1000))


def backtracking() -> None:
    re.search("^(a+)+$", "a" * 60 + "!")


@pytest.mark.parametrize("work", [endless, backtracking])
def test_time_that_is_over(work: object) -> None:
    """Python that handles every error is interrupted, and so is a regular expression; what follows is not."""
    with pytest.raises(TimeIsUpError):
        within(0.05, work)  # type: ignore[arg-type]  # a parameter
    ends = time.process_time() + 0.12
    while time.process_time() < ends:
        pass
    assert within(5, lambda: 7) == 7


def test_nothing_is_left() -> None:
    """No timer goes on behind the work, however that ended: it would kill an interpreter that is about to end."""
    with suppress(TimeIsUpError):
        within(0.05, endless)
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    within(5, lambda: 7)
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_errors_of_the_work() -> None:
    """An error of the work is the caller's, and ends the limit."""
    with pytest.raises(ZeroDivisionError):
        within(0.05, lambda: 1 // 0)
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    ends = time.process_time() + 0.1
    while time.process_time() < ends:
        pass


def test_other_threads() -> None:
    """Outside of the main thread, where nothing can be interrupted, there is no limit."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(within(-1, lambda: 7)))
    thread.start()
    thread.join()
    assert found == [7]


FORKING = """
import os
from jobs.ingesting.time_limit import TimeIsUpError, within
assert within(5, lambda: 7) == 7
child = os.fork()
if child == 0:
    try:
        within(0.05, lambda: [None for _ in iter(int, 1)])
    except TimeIsUpError:
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


def test_processes_that_are_forked() -> None:
    """A process that was forked, as Spark forks its Python workers, has the limit too."""
    subprocess.run([sys.executable, "-c", FORKING], check=True, timeout=60)
