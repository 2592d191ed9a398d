"""What `tests.forks` runs is what a new interpreter would run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.forks import Forked, fork, run
from tests.integration.worker_process import until

ROOT = Path(__file__).resolve().parents[1]
SAYS = """
import os, sys
sys.stdout.write(f"{sys.argv} {os.getcwd()} {os.environ.get('SAID')} {__name__} {sys.stdin.read()}")
sys.stderr.write("and this")
sys.exit(7)
"""
ENDS = """
import atexit, sys, threading
atexit.register(print, "then this")
threading.Thread(target=lambda: (threading.main_thread().join(), print("first this"))).start()
sys.stdout.write("before: ")
sys.exit({status!r})
"""
ENDLESS = "import time\nprint('here', flush=True)\nwhile True: time.sleep(60)"


def script(folder: Path, text: str) -> Path:
    """A file with a program."""
    path = folder / "program.py"
    path.write_text(text)
    return path


def running(folder: Path, text: str) -> Forked:
    """A program that has said something."""
    log = folder / "log"
    with log.open("wb") as file:
        process = fork([sys.executable, script(folder, text)], stdout=file, stderr=file)
    until(lambda: log.stat().st_size, "it runs")
    return process


@pytest.mark.parametrize(
    ("program", "out"),
    [
        (SAYS, "['PATH', 'one', '-W', 'two'] FOLDER so __main__ given"),
        *((ENDS.format(status=status), "before: first this\nthen this\n") for status in (None, 0, 456, True, "told")),
        (["-m", "faust", "--version"], None),
        (["-W", "error", "-m", "app.cli", "worker", "-c", "nowhere.toml"], ""),
    ],
    ids=["says", "None", "0", "456", "True", "text", "package", "module"],
)
def test_run_is_as_subprocess(tmp_path: Path, program: str | list[str], out: str | None) -> None:
    """Arguments, input, output, status, environment and directory are those of a new process, and so is its end.

    Threads are waited for, what is to run at the end runs, all is written, and a text is printed as an error.
    """
    what = [str(script(tmp_path, program)), "one", "-W", "two"] if isinstance(program, str) else program
    command = [sys.executable, *what]
    environ = {**os.environ, "SAID": "so", "PYTHONPATH": str(ROOT)}
    new = subprocess.run(command, env=environ, cwd=tmp_path, input="given", capture_output=True, text=True, check=False)
    forked = run(command, environ=environ, folder=tmp_path, given="given")
    assert (forked.returncode, forked.stdout, forked.stderr) == (new.returncode, new.stdout, new.stderr)
    if out is not None:
        assert new.stdout == out.replace("PATH", what[0]).replace("FOLDER", str(tmp_path))


def test_traceback_is_an_error(tmp_path: Path) -> None:
    """An exception that nobody catches is on standard error; what only a new interpreter heeds is not ignored."""
    command = [sys.executable, str(script(tmp_path, "raise ValueError(f'so it {1 + 1}')"))]
    done = run(command)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("ValueError: so it 2\n")
    with pytest.raises(AssertionError, match="LD_PRELOAD"):
        run(command, environ={"LD_PRELOAD": "clock.so"})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_signals_end_it(tmp_path: Path, number: signal.Signals) -> None:
    """A signal reaches the command, also SIGINT, and the status says which it was."""
    process = running(tmp_path, ENDLESS)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(number)
    assert process.wait(30) == -number
    process.kill()
    assert not psutil.pid_exists(process.pid)


def test_command_too_slow_is_killed(tmp_path: Path) -> None:
    """What takes longer than it may does not stay behind."""
    with pytest.raises(subprocess.TimeoutExpired):
        run([sys.executable, script(tmp_path, ENDLESS)], timeout=0.1)
    (server,) = [each for each in psutil.Process().children() if "tests.fork_server" in each.cmdline()]
    until(lambda: not server.children(), "no command runs")


def test_all_ends_with_the_tests(tmp_path: Path) -> None:
    """When the process of the tests is killed, so are the server and what was forked from it."""
    text = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from tests.forks import arguments, fork
arguments.append("--bare")  # the server would import for seconds what nobody needs here
with open("log", "wb") as log:
    process = fork([sys.executable, "endless.py"], stdout=log, stderr=log)
print(process.pid, flush=True)
time.sleep(60)
"""
    (tmp_path / "endless.py").write_text(ENDLESS)
    with subprocess.Popen([sys.executable, script(tmp_path, text)], cwd=tmp_path, stdout=subprocess.PIPE) as tests:
        assert tests.stdout is not None
        try:
            child = psutil.Process(int(tests.stdout.readline()))
            server = child.parent()
            assert server is not None
        finally:
            tests.kill()
    gone, alive = psutil.wait_procs([child, server], 30)
    assert (len(gone), alive) == (2, [])


def test_constants_are_set(tmp_path: Path) -> None:
    """A constant of a module has another value in the command, and in no other."""
    path = script(tmp_path, "from app.pipeline import topic_watcher as t; print(t._LOOK_S)")
    with (tmp_path / "log").open("w+b") as log:
        for constants in ({"app.pipeline.topic_watcher:_LOOK_S": 77.5}, {}, {"app.pipeline.topic_watcher:_GONE": 1}):
            fork([sys.executable, path], stdout=log, stderr=log, constants=constants).wait(30)
    changed, own, *refused = (tmp_path / "log").read_text().splitlines()
    assert float(changed) == 77.5
    assert float(own) != 77.5
    assert refused[-1] == "AssertionError: app.pipeline.topic_watcher:_GONE"
