"""A limit of time for each test and each of its fixtures, so that a run goes on and says which test hung."""

from __future__ import annotations

import signal
from collections.abc import Generator
from types import FrameType

import pytest

_SECONDS = 300
_SLOW_SECONDS = 900


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Interrupts the fixtures of a test."""
    return (yield from _limited(item, "the set-up of the test"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Interrupts a test."""
    return (yield from _limited(item, "the test"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Interrupts what ends the fixtures of a test."""
    return (yield from _limited(item, "the end of the test's fixtures"))


def _limited(item: pytest.Item, what: str) -> Generator[None, object, object]:
    slow = item.get_closest_marker("slow") or item.get_closest_marker("chaos")
    seconds = _SLOW_SECONDS if slow else _SECONDS

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        pytest.fail(f"{what} took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(seconds)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
