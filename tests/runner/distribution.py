"""Which tests run beside each other: how many workers pytest-xdist starts, what stays together, and what comes first.

The tests of a file run in one worker, one after the other. Those that need Spark run in two: its session takes longer
to start than most of its tests. The longest come first, so that short ones fill the gaps at the end.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

__all__ = ["scope_of"]

# About how many seconds a test takes, by its dearest marker.
_SECONDS = {"chaos": 15.0, "slow": 10.0, "spark": 4.0, "integration": 2.0, "browser": 1.5, "s3": 0.5, "unit": 0.02}
_PROCESS_S = 0.5  # of a test in a file that starts processes
_MOST_WORKERS = 6
# The tests of each of these share a Spark session, or a server of Spark Connect. The first that fits counts.
_SPARK = (("tests/jobs/test_program",), ("tests/jobs/payloads/", "tests/jobs/test_sweep"), ("tests/jobs/",))
# These start Spark in processes of their own. Nobody else need wait for them.
_ALONE = {"tests/jobs/test_cluster.py"}


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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts the scopes by how long they may take, where tests run beside each other."""
    if not config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    seconds: dict[str, float] = defaultdict(float)
    for item in items:
        names = {marker.name for marker in item.iter_markers()}
        known = next((_SECONDS[name] for name in _SECONDS if name in names), 0.0)
        seconds[scope_of(item.nodeid)] += max(known, _PROCESS_S) if _starts_processes(item) else known
    items.sort(key=lambda item: -seconds[scope_of(item.nodeid)])


def _starts_processes(item: pytest.Item) -> bool:
    module = vars(getattr(item, "module", None) or object)
    return "subprocess" in module
