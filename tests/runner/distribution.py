"""Which tests run beside each other: how many workers pytest-xdist starts, what stays together, and what comes first.

The tests of a file run in one worker, one after the other. Those that need Spark run in two: its session takes longer
to start than most of its tests. What took longest in the last run comes first, so that short files fill the gaps at the
end. The seconds of that run are kept in the cache folder (`WIDELOAD_CACHE`, by default `~/.cache/wideload`).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_MOST_WORKERS = 6
# The tests of each of these share a Spark session, or a server of Spark Connect. The first that fits counts.
_SPARK = (("tests/jobs/test_program",), ("tests/jobs/payloads/", "tests/jobs/test_sweep"), ("tests/jobs/",))
# These start Spark in processes of their own. Nobody else need wait for them.
_ALONE = {"tests/jobs/test_cluster.py"}
# About how many seconds a test takes that has not run here, by its first marker of these.
_UNKNOWN = {"chaos": 10.0, "slow": 10.0, "unit": 0.01}
_OTHERS_S = 1.0

_seconds_before = pytest.StashKey[dict[str, float]]()


def scope_of(nodeid: str) -> str:
    """What a test stays together with: its file, or the others that share its Spark session."""
    path = nodeid.partition("::")[0]
    if path in _ALONE:
        return path
    return next((group[0] for group in _SPARK if path.startswith(group)), path)


class _ByScope(LoadScopeScheduling):  # type: ignore[misc]  # xdist tells no types
    """Gives a worker the next scope when it has nearly done with the last one."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Keeps scopes together, in the order of `pytest_collection_modifyitems`."""
    config.option.loadscopereorder = False
    return _ByScope(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What `-n auto` means: none for one file; two more than the cores where tests wait for servers."""
    files = {argument.partition("::")[0] for argument in config.args}
    if len(files) == 1 and files.pop().endswith(".py"):
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores if config.getoption("markexpr").startswith("unit") else cores + 2, _MOST_WORKERS)


def pytest_configure(config: pytest.Config) -> None:
    """Measures the scopes of a run of all tests, in the process that runs none."""
    if config.getoption("numprocesses", None) and not config.getoption("file_or_dir"):
        config.pluginmanager.register(_Seconds())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hands a worker the seconds of the last run: all must sort alike, and another run may write at any time."""
    node.workerinput["seconds"] = node.config.stash.setdefault(_seconds_before, _read())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts the scopes by how long they may take, where tests run beside each other."""
    if not hasattr(config, "workerinput"):
        return
    known: dict[str, float] = config.workerinput["seconds"]
    seconds: dict[str, float] = defaultdict(float)
    for item in items:
        guess = next((_UNKNOWN[name] for name in _UNKNOWN if item.get_closest_marker(name)), _OTHERS_S)
        seconds[scope_of(item.nodeid)] += guess
    items.sort(key=lambda item: -known.get(scope_of(item.nodeid), seconds[scope_of(item.nodeid)]))


class _Seconds:
    """What each scope took, kept for the next run."""

    def __init__(self) -> None:
        self._found: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds the seconds of a test and of its fixtures."""
        self._found[scope_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Replaces those of the last run."""
        path = _path()
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps(self._found))
            new.replace(path)


def _read() -> dict[str, float]:
    try:
        found = json.loads(_path().read_text())
        return {str(scope): float(seconds) for scope, seconds in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _path() -> Path:
    from app.local.jars import cache_folder  # the first process alone asks for it

    return cache_folder() / "test-seconds.json"
