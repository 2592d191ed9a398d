"""Room: so many bytes at once; who finds none waits, and is served in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

__all__ = ["Room"]


class Room:
    """Bytes that are in use, and the wait for some to come free. Belongs to one event loop.

    Args:
        limit: the most; who is alone may go over.
        press: called where one has to wait, so that others make haste.

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
        """Waits for so much, and takes it."""
        async with self._order:
            while self.used and self.used + size > self._limit:
                if self._press is not None:
                    self._press()
                self._freed.clear()
                await self._freed.wait()
            self.used += size

    def give(self, size: int) -> None:
        """Gives so much back."""
        self.used -= size
        self._freed.set()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Takes so much, and gives it back at the end."""
        await self.take(size)
        try:
            yield
        finally:
            self.give(size)
