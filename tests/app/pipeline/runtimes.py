"""The runtime of a test: the clocks of the machine, and threads that end with the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, TypeVarTuple

from app.pipeline.runtime import STORE_THREADS, Runtime, Threads

T = TypeVar("T")
Args = TypeVarTuple("Args")


class _Shared(Threads):
    """Asyncio's own threads for the store too."""

    def call(self, work: Callable[[*Args], T], *args: *Args) -> asyncio.Future[T]:
        """See `Threads`."""
        return self.compute(work, *args)


SHARED = Runtime(_Shared(1))
"""It has no threads of its own."""


@contextmanager
def running_on(count: int) -> Iterator[Runtime]:
    """So many threads for calls of the store, all of which must end: other tests look whether there are any."""
    runtime, before = Runtime(Threads(count)), {*threading.enumerate()}
    try:
        yield runtime
    finally:
        runtime.threads.close()
        for each in threading.enumerate():
            if each.name.startswith(STORE_THREADS) and each not in before:
                each.join(20)
