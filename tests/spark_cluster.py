"""Spark's standalone cluster on this machine: a master, two workers, and executors in separate processes.

Master and workers are a process each, or all of them are threads of the driver's (`local-cluster`), which starts in a
third of the time.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import psutil
import pyspark

from app.local import jars, spark_start
from tests.integration.worker_process import until
from wideload.jobs.archive import write

_REPOSITORY = Path(__file__).resolve().parents[1]
_SPARK = Path(pyspark.__file__).parent
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_STORE = "large.message.payload.store.class=filesystem"
_GATE = b"\nfrom store_gate import gate\n\ngate(FilesystemStore)\n"
# To make Java code of a plan that runs once takes longer than to run it without.
_QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_START_S = 60
_LIMIT_S = 240


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster, and the directory of its one payload store, which has a gate (`tests.store_gate`).

    Attributes:
        master: its address, as `--master` takes it.
        folder: has `payloads` and `gate`, the code that is shipped, and the logs.
        home: Spark's directory.
    """

    master: str
    folder: Path
    home: Path = _SPARK

    @property
    def payloads(self) -> Path:
        """The root of the store."""
        return self.folder / "payloads"

    @property
    def store(self) -> list[str]:
        """The options of a job for the store."""
        return ["--store", _STORE, "--store", f"filesystem.root={self.payloads}", "--store", "filesystem.fsync=false"]

    def close_gate(self, payload: str) -> None:
        """Nobody passes at the payload of this name until the first one that came to it was killed."""
        shutil.rmtree(self.folder / "gate", ignore_errors=True)
        (self.folder / "gate").mkdir()
        (self.folder / "gate" / "closed").write_text(payload)

    def run(self, program: str, *arguments: str, before: Callable[[], object] = lambda: True) -> str:
        """Submits a program, kills the executor that comes to the gate, and opens the gate for the one after it.

        Args:
            program: its file in `programs`.
            arguments: of the program.
            before: must be true before the executor is killed.

        Returns:
            The last line of its stdout, after it ended with status 0.
        """
        log = self.folder / "job.log"
        with log.open("wb") as errors:
            command = [*self._submit(program), *arguments]
            job = subprocess.Popen(
                command, cwd=self.folder, env=_environment(self.home), stdout=subprocess.PIPE, stderr=errors, text=True
            )
        try:
            (first,) = until(lambda: self._waiting(job, 1), "a task comes to the gate", _LIMIT_S)
            until(before, "the task is where it is to be killed", _LIMIT_S)
            _executor(first).kill()
            until(lambda: self._waiting(job, 2), "another task takes its place", _LIMIT_S)
            (self.folder / "gate" / "open").touch()
            said, _ = job.communicate(timeout=_LIMIT_S)
        finally:
            (self.folder / "gate" / "open").touch()
            if job.poll() is None:
                job.kill()
                job.communicate()
        assert job.returncode == 0, said + log.read_text()[-4000:]
        return said.splitlines()[-1]

    def _waiting(self, job: subprocess.Popen[str], least: int) -> list[int]:
        assert job.poll() is None, job.communicate()[0] + (self.folder / "job.log").read_text()[-4000:]
        found = [int(file.stem) for file in (self.folder / "gate").glob("*.pid")]
        return found if len(found) >= least else []

    def _submit(self, program: str) -> Sequence[str]:
        return [
            *(str(self.home / "bin" / "spark-submit"), "--master", self.master, "--executor-memory", "600m"),
            *(() if program == "backfill.py" else ("--jars", ",".join(map(str, jars.ensure("spark"))))),
            *("--py-files", str(self.folder / "jobs.zip")),
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR"),
            *("--conf", f"spark.executor.extraJavaOptions={_java_options()}"),
            *(part for key, value in _QUICK.items() for part in ("--conf", f"{key}={value}")),
            *("--conf", f"spark.pyspark.python={sys.executable}", str(self.folder / "programs" / program)),
        ]


def _environment(home: Path) -> dict[str, str]:
    told = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": "", "SPARK_NO_DAEMONIZE": "1"}
    first = str(Path(sys.executable).parent)
    started = {**spark_start.environ(short_run=True), "SPARK_DAEMON_JAVA_OPTS": _java_options()}
    return {**os.environ, **started, **told, "PATH": f"{first}:{os.environ['PATH']}"}


def _java_options() -> str:
    """What makes a short run of any Java process of Spark shorter."""
    (found,) = spark_start.environ(short_run=True).values()
    return found


def _executor(task: int) -> psutil.Process:
    (found,) = [each for each in psutil.Process(task).parents() if _EXECUTOR in each.cmdline()]
    return found


@contextlib.contextmanager
def spark_cluster(folder: Path) -> Iterator[Cluster]:
    """The cluster for the length of a `with` block, with a process for the master and for each worker."""
    _prepare(folder)
    with contextlib.ExitStack() as stack:
        master = ["master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        log = stack.enter_context(_started(folder / "master.log", master))
        found = until(lambda: re.search(r"Starting Spark master at (\S+)", log.read_text()), "a master", _START_S)
        assert found is not None
        address = found[1]
        worker = ["worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0", address]
        for number in range(2):
            options = ["--work-dir", str(folder / f"work-{number}")]
            stack.enter_context(_started(folder / f"worker-{number}.log", [*worker, *options]))
        until(lambda: log.read_text().count("Registering worker") == 2, "two workers", _START_S)
        yield Cluster(address, folder)


def local_cluster(folder: Path) -> Cluster:
    """The cluster whose master and workers live in the driver of each program."""
    _prepare(folder)
    home = folder / "spark"  # the workers write there
    home.mkdir()
    for each in _SPARK.iterdir():
        (home / each.name).symlink_to(each)
    return Cluster("local-cluster[2,1,1024]", folder, home)


def _prepare(folder: Path) -> None:
    """Writes the code that is shipped. Programs are copies, so that all other code comes from the zip."""
    write(folder / "whole.zip")
    with ZipFile(folder / "whole.zip") as whole, ZipFile(folder / "jobs.zip", "w") as gated:
        for name in whole.namelist():
            gated.writestr(name, whole.read(name) + (_GATE if name == "stores/filesystem.py" else b""))
        gated.write(_REPOSITORY / "tests" / "store_gate.py", "store_gate.py")
    (folder / "programs").mkdir()
    for name in ("backfill", "sweep"):
        shutil.copy(_REPOSITORY / "jobs" / f"{name}.py", folder / "programs")


@contextlib.contextmanager
def _started(log: Path, arguments: Sequence[str]) -> Iterator[Path]:
    command = [str(_SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{arguments[0]}", *arguments[1:]]
    with log.open("wb") as said:
        process = subprocess.Popen(command, env=_environment(_SPARK), stdout=said, stderr=said, start_new_session=True)
    try:
        yield log
    finally:
        children = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
