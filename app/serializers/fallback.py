"""What a producer with the strategy `auto` does while its store is down: it does without."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from transforms.errors import PayloadStoreError
from transforms.logger_name import logger_name

__all__ = ["Fallback"]

_logger = logging.getLogger(logger_name(__name__))
_AGAIN_S = 5.0  # as the worker with `large.message.strategy` = `auto`


class Fallback:
    """Whether the store is down, and which values go without it. Several threads may use one object.

    Args:
        max_bytes: the longest value that can do without the store.
        clock: for tests, in seconds.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._until_s: float | None = None

    def holds(self, data: object) -> bool:
        """Whether a value goes without the store now."""
        until_s = self._until_s  # another thread may set it meanwhile
        fits = isinstance(data, bytes) and len(data) <= self._max_bytes
        return until_s is not None and fits and self._clock() < until_s

    def begin(self) -> None:
        """Takes in that a store call begins: while the store is down, the other values do not wait for it."""
        if self._until_s is not None:
            self._until_s = self._clock() + _AGAIN_S

    def takes(self, data: bytes, error: Exception) -> bool:
        """Takes in that a store call has failed; true if its value goes without the store."""
        down = isinstance(error, PayloadStoreError) and error.retriable and len(data) <= self._max_bytes
        if down:
            if self._until_s is None:
                _logger.warning("the payload store is down, and large values go as chunks meanwhile: %s", error)
            self._until_s = self._clock() + _AGAIN_S
        return down

    def end(self) -> None:
        """Takes in that the store has answered."""
        if self._until_s is not None:
            _logger.info("the payload store answers again")
            self._until_s = None
