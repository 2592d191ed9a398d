"""A worker as users run it: a configuration file, a process, its pages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Self, TypeVar

from tests.forks import Forked, fork
from tests.s3_server import free_port

_PAUSES_S = 0.02, 0.2
_PAGE_S = 30.0  # a worker that is there answers, however busy the machine is

_T = TypeVar("_T")


def until(condition: Callable[[], _T], what: str, seconds: float = 60.0) -> _T:
    """Waits for a condition to give something true, and returns it; fails with `what` after a deadline.

    It looks less often the longer it waits, which makes no wait a tenth longer.
    """
    began = time.monotonic()
    least, most = _PAUSES_S
    while (waited := time.monotonic() - began) < seconds:
        result = condition()
        if result:
            return result
        time.sleep(min(most, max(least, waited / 10)))
    raise AssertionError(f"waited {seconds} s in vain until {what}")


def toml(worker: Mapping[str, object], pipelines: Mapping[str, Mapping[str, object]]) -> str:
    """A configuration file, with dotted keys as users write them."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in worker.items()]
    for name, keys in pipelines.items():
        lines += ["", f"[pipeline.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    return "\n".join(lines) + "\n"


class WorkerProcess:
    """`wideload worker -c FILE` in a process of its own; killed when the block ends, whatever happened.

    The process is forked from one that has imported everything (`tests.forks`): a start takes no second of a core.

    Attributes:
        constants: of the worker's modules, with other values; see `tests.forks.fork`.
    """

    def __init__(
        self, folder: Path, worker: Mapping[str, object], pipelines: Mapping[str, Mapping[str, object]]
    ) -> None:
        self.port = free_port()
        self.config = folder / f"wideload-{self.port}.toml"
        self.config.write_text(toml({**worker, "web.port": self.port}, pipelines))
        self.log = folder / f"worker-{self.port}.log"
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self.constants: dict[str, object] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.kill()
        if kind is not None:
            print(self.log.read_text())  # noqa: T201  # pytest shows it beside the failure

    def command(self) -> list[str]:
        """What is run."""
        return [sys.executable, "-m", "app.cli", "worker", "-c", str(self.config)]

    def start(self, environ: Mapping[str, str] | None = None) -> None:
        """Starts the process; does not wait."""
        with self.log.open("ab") as log:
            self.process = self._begin(log, {**os.environ, **(environ or {})})

    def wait_ready(self) -> None:
        """Waits until every pipeline runs and has been given its partitions."""
        until(self._has_partitions, f"the worker is ready; its log:\n{self.log.read_text()}")

    def kill(self) -> None:
        """`kill -9`."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def terminate(self, seconds: float = 60.0) -> int:
        """SIGTERM, and the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.wait(seconds)

    def wait(self, seconds: float = 60.0) -> int:
        """The exit status, once the process has ended."""
        assert self.process is not None
        status = self.process.wait(seconds)
        self.process = None
        return status

    def get(self, page: str) -> tuple[int, Any]:
        """Status and JSON of a page; 0 and None where nothing answers yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{page}", timeout=_PAGE_S) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:  # else Python 3.14 warns
                return error.code, json.load(error)
        except OSError:
            if self.process is not None and self.process.poll() is not None:
                raise AssertionError(f"the worker has ended:\n{self.log.read_text()}") from None
            return 0, None

    def text(self, page: str) -> str:
        """A page as it is."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{page}", timeout=_PAGE_S) as response:
            body: bytes = response.read()
            return body.decode()

    def _begin(self, log: IO[bytes], environ: Mapping[str, str]) -> subprocess.Popen[bytes] | Forked:
        return fork(self.command(), stdout=log, stderr=log, environ=environ, constants=self.constants)

    def _has_partitions(self) -> bool:
        status, pipelines = self.get("/pipelines")
        return status == 200 and all(
            pipeline["state"] == "RUNNING" and pipeline["partitions"] for pipeline in pipelines
        )


class StartedWorker(WorkerProcess):
    """The same with an interpreter of its own, as users start it: where the promise is about the process."""

    def _begin(self, log: IO[bytes], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        assert not self.constants
        return subprocess.Popen(self.command(), stdout=log, stderr=log, env=environ)
