"""A run with workers, as `make test` does it: what stays together, what is printed, what comes first the next time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runner.distribution import scope_of

ROOT = Path(__file__).parents[2]
ONE = """
import os, time, pytest
def test_long(): (time.sleep(0.3), print("worker", os.environ["PYTEST_XDIST_WORKER"]))
@pytest.mark.parametrize("n", range(3))
def test_more(n): print("worker", os.environ["PYTEST_XDIST_WORKER"])
"""
TWO = """
import pytest, signal
@pytest.fixture
def hanging(): signal.pause()
@pytest.mark.timeout(0.1)
def test_hangs(hanging): pass
def test_fails(): assert not "it fails"
def test_is_skipped(): pytest.skip("no reason")
"""


def lines_of_run(folder: Path, workers: int) -> list[str]:
    """What a run of all tests in a folder prints."""
    plugins = ["xdist.plugin", "pytest_timeout", "tests.runner.distribution", "tests.runner.progress"]
    arguments = [sys.executable, "-m", "pytest", f"-n{workers}", "-rP"]
    done = subprocess.run(
        [*arguments, *(f"-p{each}" for each in plugins), f"--rootdir={folder}"],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTEST_ADDOPTS": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the other plugins take most of the time of three processes
            "PY_COLORS": "0",
            "WIDELOAD_CACHE": str(folder / "cache"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    return done.stdout.splitlines()


def test_run_with_workers(tmp_path: Path) -> None:
    """Each file has its line and one worker; a failure has its own; what took longest comes first the next time."""
    (tmp_path / "test_one.py").write_text(ONE)
    (tmp_path / "test_two.py").write_text(TWO)
    lines = lines_of_run(tmp_path, 2)
    (counts,) = [line.partition("  ")[2] for line in lines if "%] test_one.py" in line]
    assert re.fullmatch(r"4 passed, \d+\.\d s", counts)
    assert [line for line in lines if "%] test_two.py  2 failed, 1 skipped, " in line]
    assert [line for line in lines if line.startswith("[100%] test_")]
    assert {"FAILED test_two.py::test_fails", "FAILED test_two.py::test_hangs (setup)"} <= set(lines)
    assert len({line for line in lines if line.startswith("worker gw")}) == 1
    assert lines[-1].strip("= ").startswith("1 failed, 4 passed, 1 skipped, 1 error")
    seconds = tmp_path / "cache" / "test-seconds.json"
    found = json.loads(seconds.read_text())
    assert found["test_one.py"] > 0.3
    seconds.write_text(json.dumps({**found, "test_two.py": 99.0}))
    order = [line.partition("] ")[2].partition("  ")[0] for line in lines_of_run(tmp_path, 1) if "%] " in line]
    assert order == ["test_two.py", "test_one.py"]


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/app/test_run.py::test_a[x::y]", "tests/app/test_run.py"),
        ("tests/jobs/test_sweep.py::test_a", "tests/jobs/payloads/"),
        ("tests/jobs/reading/test_b.py::test_a", "tests/jobs/"),
        ("tests/jobs/payloads/test_c.py::test_a", "tests/jobs/payloads/"),
        ("tests/jobs/test_inflate.py::test_a", "tests/jobs/"),
        ("tests/jobs/test_program.py::test_a", "tests/jobs/test_program"),
    ],
)
def test_scope(nodeid: str, scope: str) -> None:
    """A file stays together, and so do tests of jobs that share a Spark session."""
    assert scope_of(nodeid) == scope
