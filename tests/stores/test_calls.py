"""Calls that end in time."""

from __future__ import annotations

import threading

import pytest

from app.serializers import LargeMessageSerializer
from stores.calls import Calls, HangingError
from stores.registry import STORE_CLASS
from transforms.errors import SerializationError


def test_results_and_errors_pass() -> None:
    """What is in time is as if it were called here."""
    calls = Calls()
    assert calls.within(10_000, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        calls.within(10_000, lambda: 1 // 0)


def test_calls_that_hang() -> None:
    """Each ends in its time; when very many hang no other is begun, and when they end calls are made again."""
    calls, goes_on, ended = Calls(), threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        goes_on.wait()
        ended.release()

    for _ in range(16):
        with pytest.raises(HangingError, match="has not answered for 1 ms"):
            calls.within(1, hang)
    with pytest.raises(HangingError, match="skipped: 16 earlier calls are still running"):
        calls.within(1, hang)
    goes_on.set()
    for _ in range(16):
        assert ended.acquire(timeout=30)
    for thread in threading.enumerate():
        if thread.name == "wideload-store-call":
            thread.join(30)
    assert calls.within(10_000, lambda: 7) == 7


class HangingStore:
    """Never answers."""

    def publish(self, topic: str, data: bytes) -> str:
        """Waits for ever."""
        threading.Event().wait()
        return f"{topic}{len(data)}"

    def download(self, full_path: str) -> bytes:
        """Is not called."""
        raise KeyError(full_path)


def test_a_class_that_hangs_in_a_client() -> None:
    """A serializer raises an error that may pass, in the time that the configuration allows."""
    config = {
        STORE_CLASS: HangingStore,
        "large.message.threshold.bytes": 10,
        "large.message.store.timeout.ms": 50,
    }
    with pytest.raises(SerializationError, match=r"HangingStore\.publish has not answered for 50 ms") as caught:
        LargeMessageSerializer(config).serialize("orders", [], b"x" * 100)
    assert caught.value.retriable
