"""A worker that starts in no time: forked from a process that has imported everything, where it can be killed often."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from tests.integration.worker_process import WorkerProcess

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

__all__ = ["ForkedWorker"]

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["app.run", "app.config.settings", "tests.integration.forked_worker"])


def _run(config: str, log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from app.config.parsing import load
    from app.run import run_worker

    sys.exit(run_worker(load(config), "INFO"))


class _Forked:
    """What `WorkerProcess` uses of `Popen`."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process
        assert process.pid is not None
        self.pid = process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        status = self._process.exitcode
        if status is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return status


class ForkedWorker(WorkerProcess):
    """What `wideload worker -c FILE` runs, without the second that a new interpreter takes."""

    def start(self, environ: Mapping[str, str] | None = None) -> None:
        """Starts the process; does not wait."""
        assert not environ, "it has the environment of the process that it is forked from"
        self.log.touch()  # it is read, whether or not the process has come so far
        process = _FORKS.Process(target=_run, args=(str(self.config), str(self.log)))
        process.start()
        self.process = cast("subprocess.Popen[bytes]", _Forked(process))
