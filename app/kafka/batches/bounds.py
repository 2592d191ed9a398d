"""Limits of the bytes and batches that are in flight, of one producer or of several together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager

# aiokafka puts a batch of each partition into one request. A broker closes the connection if a request exceeds its
# socket.request.max.bytes, 100 MiB, and aiokafka would send that request again and again.
_REQUEST_BYTES = 64 * 1_048_576
_BUILDING = 2  # batches at a time: each is in memory twice until it is built
_TURN_S = 5.0


class ByteLimit:
    """Bytes in use, up to a limit; tasks wait for free bytes in order. Belongs to one event loop.

    Args:
        limit: the maximum; a single task may exceed it.
        press: called when a task has to wait, so that others free their bytes soon.

    Attributes:
        used: the bytes in use.
    """

    def __init__(self, limit: int, press: Callable[[], None] | None = None) -> None:
        self.used = 0
        self._limit = limit
        self._press = press
        self._order = asyncio.Lock()
        self._freed = asyncio.Event()

    async def take(self, size: int) -> None:
        """Acquires `size` bytes, once they are free."""
        async with self._order:
            while self.used and self.used + size > self._limit:
                if self._press is not None:
                    self._press()
                self._freed.clear()
                await self._freed.wait()
            self.used += size

    def give(self, size: int) -> None:
        """Releases `size` bytes."""
        self.used -= size
        self._freed.set()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Acquires `size` bytes for the duration of a block."""
        await self.take(size)
        try:
            yield
        finally:
            self.give(size)


class Bounds:
    """Limits of what is in flight. Belongs to one event loop.

    Attributes:
        request: the bytes in flight.
        building: the batches that threads compress.
    """

    def __init__(self) -> None:
        self.request = ByteLimit(_REQUEST_BYTES)
        self.building = asyncio.Semaphore(_BUILDING)
        self._large = asyncio.Semaphore(1)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The turn of a large batch: only one is sent at a time.

        aiokafka copies a batch several times, and puts one of each partition into a request. Sending large batches one
        after the other needs a fraction of that memory and no more time (`make bench`, memory).
        """
        await self._large.acquire()
        with ExitStack() as held:
            held.callback(self._large.release)
            # A partition without a leader must not hold up the large batches of all others.
            timer = asyncio.get_running_loop().call_later(_TURN_S, held.close)
            held.callback(timer.cancel)
            yield
