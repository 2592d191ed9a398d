"""What collects the tests soon: folders that hold none of those that are wanted, and Python's garbage collector."""

from __future__ import annotations

import gc
import re
from collections.abc import Generator
from pathlib import Path

import pytest

_INTEGRATION = Path(__file__).parents[1] / "integration"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps modules and tests, which last as long as the run, from the garbage collector.

    It would look at all of them again and again: while they become more, and then while the tests run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Passes over the folder whose tests all need a broker, where only unit tests are wanted."""
    unit_only = re.fullmatch(r"unit( and not \w+)*", config.getoption("markexpr"))
    return True if unit_only and collection_path == _INTEGRATION else None
