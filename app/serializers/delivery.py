"""The delivery of a value in chunks, which is reported to the application once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Delivery:
    """The deliveries of the chunks of one value. Clients report them on any of their threads.

    Args:
        done: called once: with the first error and its result, or with None and the result that has the last offset,
            when all chunks are delivered and `close` was called. With an error it is called immediately, because
            a client may not report the other chunks.

    Attributes:
        failed: whether a chunk was not delivered.
    """

    def __init__(self, done: Callable[[Any, Any], object]) -> None:
        self._done = done
        self._lock = threading.Lock()
        self._open = 1  # the chunks without a result, and one for the sender
        self._last: tuple[int, Any] | None = None
        self.failed = False

    def begin(self) -> None:
        """A chunk is sent."""
        with self._lock:
            self._open += 1

    def end(self, error: Any, result: Any, offset: int) -> None:
        """The outcome of a chunk."""
        with self._lock:
            if self.failed:
                return
            self.failed = error is not None
            if not self.failed and (self._last is None or offset >= self._last[0]):
                self._last = offset, result
        if error is not None:
            self._done(error, result)
        else:
            self.close()

    def close(self) -> None:
        """No more chunks are sent."""
        with self._lock:
            self._open -= 1
            last = None if self._open or self.failed else self._last
        if last is not None:
            self._done(None, last[1])
