"""The runtime of a pipeline: its clocks, its threads, and what it draws at random.

No other module of this package asks the machine for these, so that a test can run all of it by a fake clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Args = TypeVarTuple("Args")

STORE_THREADS = "wideload-store"
"""The names of threads that call stores begin with this."""

monotonic: Callable[[], float] = time.monotonic
"""Seconds that do not go back."""


def random_id() -> str:
    """A random UUID, in 36 characters."""
    return str(uuid.uuid4())


class Threads:
    """Runs calls that take time, for one pipeline: a store that hangs uses no thread of another one.

    Its methods are called on an event loop.

    Args:
        count: how many concurrent calls of the store there may be.
    """

    # State that changes: `_store`.

    def __init__(self, count: int) -> None:
        self._count = count
        self._store = self._made()

    def _made(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._count, thread_name_prefix=STORE_THREADS)

    def compute(self, work: Callable[[*Args], T], *args: *Args) -> asyncio.Future[T]:
        """Runs what asks no store. It waits for none, on a thread of asyncio's own."""
        return asyncio.get_running_loop().run_in_executor(None, work, *args)

    def call(self, work: Callable[[*Args], T], *args: *Args) -> asyncio.Future[T]:
        """Runs what may ask the store. While all calls hang, the next ones wait."""
        return asyncio.get_running_loop().run_in_executor(self._store, work, *args)

    def call_apart(self, work: Callable[[], object], name: str) -> asyncio.Future[None]:
        """Runs what waits for no other call, and keeps no process from its end; done however it ends."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if not ended.done():
                ended.set_result(None)

        def run() -> None:
            try:
                work()
            finally:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and nothing waits
                    loop.call_soon_threadsafe(end)

        threading.Thread(target=run, name=name, daemon=True).start()
        return ended

    def renew(self) -> None:
        """Gives up the calls of the store that wait or hang: the next ones do not wait for them."""
        self.close()
        self._store = self._made()

    def close(self) -> None:
        """Gives up the calls of the store that wait; does not wait for those in progress."""
        self._store.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a pipeline has of the machine.

    Attributes:
        threads: run the calls of the pipeline that take time.
        monotonic: seconds that do not go back.
        time: seconds since 1970.
    """

    threads: Threads
    monotonic: Callable[[], float] = monotonic
    time: Callable[[], float] = time.time
