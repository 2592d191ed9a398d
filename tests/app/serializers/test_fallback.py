"""Which values do without a store that is down, and how often it is asked."""

from __future__ import annotations

import logging

import pytest

from app.serializers.fallback import Fallback
from transforms.errors import PayloadStoreError

DOWN = PayloadStoreError("cut", retriable=True)
WRONG = PayloadStoreError("no bucket", retriable=False)


def fails() -> str:
    """A call of a store that is down."""
    raise DOWN


def test_one_value_every_five_seconds_asks(caplog: pytest.LogCaptureFixture) -> None:
    """Short values do without; while one asks, the others do not wait for it; a line reports each change."""
    now_s = 0.0
    fallback = Fallback(10, clock=lambda: now_s)

    def answers() -> str:
        assert fallback.holds(b"y")
        return "path"

    with caplog.at_level(logging.INFO):
        assert fallback.tried(b"x", lambda: "path") == "path"
        assert not fallback.holds(b"x")
        assert fallback.tried(b"x", fails) is None
        assert [fallback.holds(data) for data in (b"x" * 10, b"x" * 11, "x")] == [True, False, False]
        now_s = 5.0
        assert not fallback.holds(b"x")
        assert fallback.tried(b"x", fails) is None
        now_s = 10.0
        assert fallback.tried(b"x" * 11, answers) == "path"
        assert fallback.tried(b"x", lambda: "path") == "path"
        assert not fallback.holds(b"x")
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


@pytest.mark.parametrize(("data", "error"), [(b"x" * 11, DOWN), (b"x", WRONG), (b"x", ValueError("x"))])
def test_what_the_caller_gets(data: bytes, error: Exception) -> None:
    """A value that is too long for chunks, and an error that a later try does not help, are the caller's."""

    def call() -> None:
        raise error

    fallback = Fallback(10)
    with pytest.raises(type(error)) as caught:
        fallback.tried(data, call)
    assert caught.value is error
    assert not fallback.holds(b"x")


def test_the_store_answers_while_another_thread_asks() -> None:
    """What one thread asks does not fail when another one hears from the store in the same moment."""
    hears = False

    def clock() -> float:
        nonlocal hears
        if hears:
            hears = False
            fallback.tried(b"x", str)
        return 0.0

    fallback = Fallback(10, clock)
    assert fallback.tried(b"x", fails) is None
    hears = True
    assert fallback.holds(b"x")
    assert not fallback.holds(b"x")
