"""The runtime of a test, whose threads end with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from app.pipeline.runtime import Runtime, Threads

__all__ = ["running_on"]


@contextmanager
def running_on(count: int) -> Iterator[Runtime]:
    """The clocks of the machine, and so many threads for calls of the store."""
    runtime = Runtime(Threads(count))
    try:
        yield runtime
    finally:
        runtime.threads.close()
