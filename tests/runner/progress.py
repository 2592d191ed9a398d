"""What a run with workers prints while it runs: a line for each file that is done, and what runs now.

In a terminal, the last line says what runs. Elsewhere, such a line comes where nothing else was printed for a while.
With one process, and with -q or -v, pytest prints what it always prints.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

_QUIET_S = 60.0
_SHOW_S = 0.2
_NAME = "wideload-progress"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Takes the place of pytest's letters where tests run beside each other."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and config.getoption("numprocesses", None) and config.get_verbosity() == 0:
        config.pluginmanager.register(Progress(reporter), _NAME)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends it."""
    progress = config.pluginmanager.get_plugin(_NAME)
    if progress is not None:
        progress.close()


class Progress:
    """Follows the tests of all workers.

    Args:
        reporter: what writes to the terminal.
    """

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter
        self._left: Counter[str] = Counter()
        self._all = 0
        self._running: dict[str, float] = {}
        self._outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self._seconds: dict[str, float] = defaultdict(float)
        self._done = 0
        self._written = self._shown = time.monotonic()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def close(self) -> None:
        """Says no more; may be called twice."""
        with self._lock:
            if not self._ended.is_set():
                self._erase()
            self._ended.set()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Takes the tests that there are, once: all workers found the same."""
        del node
        with self._lock:
            if not self._all:
                self._left.update(_file(nodeid) for nodeid in ids)
                self._all = len(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Notes what runs."""
        with self._lock:
            self._running[nodeid] = time.monotonic()
            self._show_running()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str]:
        """Counts the outcome, and gives pytest no letter to print."""
        if report.when != "call" and report.passed:
            return "", "", ""
        category: str = "error" if report.when != "call" and report.failed else report.outcome
        if hasattr(report, "wasxfail"):
            category = "xfailed" if report.skipped else "xpassed"
        return category, "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes an outcome; a failure is told at once."""
        file = _file(report.nodeid)
        with self._lock:
            self._seconds[file] += report.duration
            if report.when == "call" or not report.passed:
                self._outcomes[file][report.outcome] += 1
            if report.failed:
                self._line(f"FAILED {report.nodeid}" + ("" if report.when == "call" else f" ({report.when})"), red=True)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Tells of the file if this was its last test."""
        with self._lock:
            self._running.pop(nodeid, None)
            self._done += 1
            file = _file(nodeid)
            self._left[file] -= 1
            if self._left[file] == 0:
                counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self._outcomes[file].items()))
                percent = 100 * self._done // max(1, self._all)
                self._line(f"[{percent:3d}%] {file}  {counts}, {self._seconds[file]:.1f} s")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Leaves the terminal to the summary."""
        self.close()

    def _look(self) -> None:
        while not self._ended.wait(1.0):
            with self._lock:
                if self._reporter.isatty:
                    self._show_running()
                elif self._running and time.monotonic() - self._written > _QUIET_S:
                    self._line("running: " + ", ".join(self._now(self._running)))

    def _now(self, nodeids: Iterable[str]) -> list[str]:
        now = time.monotonic()
        return [f"{nodeid} ({now - self._running[nodeid]:.0f} s)" for nodeid in nodeids]

    def _show_running(self) -> None:
        now = time.monotonic()
        if not self._reporter.isatty or not self._running or now - self._shown < _SHOW_S:
            return
        self._shown = now
        percent = 100 * self._done // max(1, self._all)
        short = (each.removeprefix("tests/") for each in self._now(self._running))
        text = f"[{percent:3d}%] running: {', '.join(short)}"
        self._reporter.rewrite(text[: shutil.get_terminal_size().columns - 2], erase=True)
        self._reporter.flush()

    def _erase(self) -> None:
        if self._reporter.isatty:
            self._reporter.rewrite("", erase=True)
            self._reporter.write("\r")

    def _line(self, text: str, **markup: bool) -> None:
        self._erase()
        self._reporter.write_line(text, **markup)
        self._reporter.flush()
        self._written = time.monotonic()
        self._show_running()


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
