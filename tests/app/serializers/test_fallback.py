"""Which values do without a store that is down, and how often it is asked."""

from __future__ import annotations

import logging

import pytest

from app.serializers.fallback import Fallback
from transforms.errors import PayloadStoreError

DOWN = PayloadStoreError("cut", retriable=True)
WRONG = PayloadStoreError("no bucket", retriable=False)


def test_one_value_every_five_seconds_asks(caplog: pytest.LogCaptureFixture) -> None:
    """Short values do without; while one asks, the others do not wait for it; one line tells of each change."""
    now_s = 0.0
    fallback = Fallback(10, clock=lambda: now_s)
    with caplog.at_level(logging.INFO):
        assert not fallback.holds(b"x")
        fallback.begin()
        assert fallback.takes(b"x", DOWN)
        assert (fallback.holds(b"x" * 10), fallback.holds(b"x" * 11), fallback.holds("x")) == (True, False, False)
        now_s = 5.0
        assert not fallback.holds(b"x")
        fallback.begin()
        assert fallback.holds(b"y")
        assert fallback.takes(b"x", DOWN)
        fallback.end()
        fallback.end()
        assert not fallback.holds(b"x")
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


@pytest.mark.parametrize(("data", "error"), [(b"x" * 11, DOWN), (b"x", WRONG), (b"x", ValueError("x"))])
def test_what_the_caller_gets(data: bytes, error: Exception) -> None:
    """A value that is too long for chunks, and an error that a later try does not mend, are the caller's."""
    fallback = Fallback(10)
    assert not fallback.takes(data, error)
    assert not fallback.holds(b"x")


def test_the_store_answers_while_another_thread_asks() -> None:
    """What one thread is told does not fail when another one takes in the answer of the store meanwhile."""

    def clock() -> float:
        fallback.end()
        return 0.0

    fallback = Fallback(10, clock)
    assert fallback.takes(b"x", DOWN)
    assert fallback.holds(b"x")
    assert not fallback.holds(b"x")
