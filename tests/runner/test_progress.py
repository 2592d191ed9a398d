"""A run with two workers, as `make test` does it: what stays together, what is printed, what ends a test that hangs."""

from __future__ import annotations

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
def hanging():
    signal.setitimer(signal.ITIMER_REAL, 0.1)  # as if the limit were over
    signal.pause()
def test_hangs(hanging): pass
def test_fails(): assert not "it fails"
def test_is_skipped(): pytest.skip("no reason")
"""


def test_run_with_workers(tmp_path: Path) -> None:
    """Each file has its line, a failure is told at once, a fixture that hangs is interrupted, one worker has a file."""
    (tmp_path / "test_one.py").write_text(ONE)
    (tmp_path / "test_two.py").write_text(TWO)
    plugins = ["-pxdist.plugin", *(f"-ptests.runner.{name}" for name in ("distribution", "progress", "time_limit"))]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n2", "-rP", *plugins, f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTEST_ADDOPTS": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # what is installed beside takes most of the time of three processes
            "PY_COLORS": "0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 1, done.stdout
    (told,) = [line.partition("  ")[2] for line in lines if "%] test_one.py" in line]
    assert re.fullmatch(r"4 passed, \d+\.\d s", told)
    assert [line for line in lines if "%] test_two.py  2 failed, 1 skipped, " in line]
    assert [line for line in lines if line.startswith("[100%] test_")]
    assert {"FAILED test_two.py::test_fails", "FAILED test_two.py::test_hangs (setup)"} <= set(lines)
    assert "the set-up of the test took more than 300 s" in done.stdout
    assert len({line for line in lines if line.startswith("worker gw")}) == 1
    assert lines[-1].strip("= ").startswith("1 failed, 4 passed, 1 skipped, 1 error")


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
