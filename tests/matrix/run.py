"""`make matrix`: the tests of the marker `matrix` on brokers, Sparks, Pythons and packages that users have.

`make matrix CELLS="kafka-2.8 spark-3.5"` runs some cells, `CELLS=all` those too that are left out else. The results
go to docs/tried.json, of which `make docs` makes a table; the output of each cell goes to build/matrix. The status is
1 if a cell failed. A cell that this machine cannot have is a line of the table with its reason.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from docs.tried_page import table
from tests.matrix import brokers, environment
from tests.matrix.cells import CELLS, Cell, chosen
from tests.matrix.result import FILE, CellError, NotHereError, Result, counted, merged, read, write
from transforms.errors import WideloadError

_BUILD = environment.ROOT / "build" / "matrix"
_SECONDS = 900  # of the tests of a cell
_NO_TESTS = 5  # pytest's status
_FAILED = 1


def run(cell: Cell, workers: str) -> Result:
    """Runs the tests of a cell, and says what came of them; only an interrupt ends it early."""
    began = time.monotonic()
    found = Result(cell.name, datetime.now(UTC).date().isoformat())
    try:
        python = environment.made(cell.environment)
        with brokers.running_broker(cell.broker) as (bootstrap, what):
            versions = {**what, **environment.versions(cell.environment, python)}
            found = replace(found, versions=versions, set_up_s=round(time.monotonic() - began, 1))
            passed, failed, skipped = _tests(cell, python, bootstrap, workers)
            skipped.update(cell.cannot.values())
    except NotHereError as exc:
        return replace(found, missing=_of_any_machine(exc), set_up_s=round(time.monotonic() - began, 1))
    except (CellError, OSError, RuntimeError, WideloadError) as exc:
        return Result(found.cell, found.date, error=_of_any_machine(exc), set_up_s=round(time.monotonic() - began, 1))
    seconds = round(time.monotonic() - began - found.set_up_s, 1)
    return replace(found, passed=passed, failed=failed, skipped=skipped, seconds=seconds)


def _of_any_machine(error: Exception) -> str:
    """The text of an error without the folders of this machine: it goes to a page of the documentation."""
    return str(error).replace(f"{environment.ROOT}/", "").replace(f"{Path.home()}/", "~/")


def _tests(cell: Cell, python: environment.Python, bootstrap: str, workers: str) -> tuple[int, list[str], Counter[str]]:
    """Runs pytest, whose output goes to a file."""
    _BUILD.mkdir(parents=True, exist_ok=True)
    report, log_path = _BUILD / f"{cell.name}.xml", _BUILD / f"{cell.name}.log"
    report.unlink(missing_ok=True)
    environ = {**os.environ, "PYTHONPATH": str(environment.ROOT), "KAFKA_BOOTSTRAP_SERVERS": bootstrap}
    command: list[str | Path] = [*python, "-m", "pytest", "-n", workers, "-m", cell.choice, f"--junitxml={report}"]
    command += [f"--deselect={test}" for test in cell.cannot]
    command += [f"--ignore={folder}" for folder in cell.without]
    command += [] if cell.with_unit_tests else _marked()
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=environment.ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            raise CellError(f"its tests did not end in {_SECONDS} s; see {log_path}") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if status == _NO_TESTS:
        raise CellError(f"it has no tests: {cell.choice}")
    if status not in {0, _FAILED} or not report.exists():
        raise CellError(f"pytest ended with status {status}; see {log_path}")
    return counted(report.read_text(encoding="utf-8"))


def _marked() -> list[Path]:
    """The files that have tests of the marker. Each worker imports all that it is given, which takes seconds."""
    files = sorted((environment.ROOT / "tests").rglob("test_*.py"))
    return [path for path in files if "mark.matrix" in path.read_text(encoding="utf-8")]


def main(arguments: Sequence[str] | None = None) -> int:
    """See the docstring of the module; returns the exit status."""
    parser = argparse.ArgumentParser(prog="make matrix", description="Runs the tests with other versions.")
    parser.add_argument(
        "--workers", default="auto", help="how many processes run tests of a cell (default: as make test)"
    )
    parser.add_argument("--cells", default="", help=f"of {' '.join(CELLS)}; or all")
    options = parser.parse_args(arguments)
    try:
        cells = chosen(options.cells)
        read()  # else the first result could not be kept
    except ValueError as exc:
        parser.error(str(exc))
    results, began = [], time.monotonic()
    for cell in cells:
        print(f"{cell.name} ... ", end="", flush=True)
        results.append(result := run(cell, options.workers))
        said = result.missing or result.error or f"{result.passed} passed, {len(result.failed)} failed"
        print(f"{said}, {result.set_up_s + result.seconds:.0f} s")
        write(merged(read(), [result], list(CELLS)))
    print(table(results))
    print(f"{time.monotonic() - began:,.0f} s; results in {FILE.relative_to(environment.ROOT)}, output in build/matrix")
    return 0 if all(result.good for result in results) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted; the cells before this one have their results")
