"""The bounds of what batches on their way take at once, of one producer or of several together."""

from __future__ import annotations

import asyncio

from app.kafka.batches.room import Room

__all__ = ["Bounds"]

# aiokafka puts a batch of each partition into one request, and a broker hangs up on one over its
# socket.request.max.bytes, 100 MiB: it would be sent again and again.
_REQUEST_BYTES = 64 * 1_048_576
_BUILDING = 2  # batches at once: each is in memory twice meanwhile


class Bounds:
    """Belongs to one event loop.

    Attributes:
        request: bytes that are on their way.
        large: the turn of large batches, of which one is on its way at a time.
        building: compressing, on threads.
    """

    def __init__(self) -> None:
        self.request = Room(_REQUEST_BYTES)
        self.large = asyncio.Semaphore(1)
        self.building = asyncio.Semaphore(_BUILDING)
