"""What a producer with the strategy `auto` does while its store is down."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from transforms.errors import PayloadStoreError
from transforms.logger_name import logger_name

_T = TypeVar("_T")
_logger = logging.getLogger(logger_name(__name__))
_AGAIN_S = 5.0  # as the worker with `large.message.strategy` = `auto`


class Fallback:
    """Whether the store is down, and which values are sent without it. Several threads may use one object.

    Args:
        max_bytes: the longest value that can be sent without the store.
        clock: for tests, in seconds.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._until_s: float | None = None  # when the store is tried again

    def holds(self, data: object) -> bool:
        """Whether a value is sent without the store now."""
        until_s = self._until_s  # another thread may set it
        fits = isinstance(data, bytes) and len(data) <= self._max_bytes
        return until_s is not None and fits and self._clock() < until_s

    def tried(self, data: bytes, store: Callable[[], _T]) -> _T | None:
        """What `store` returns for a value; None if the store is down, and the value is sent without it.

        Raises:
            PayloadStoreError: the value needs the store, or a later try does not help.
        """
        if self._until_s is not None:
            self._until_s = self._clock() + _AGAIN_S  # no other value waits for this call
        try:
            found = store()
        except PayloadStoreError as exc:
            if not exc.retriable or len(data) > self._max_bytes:
                raise
            if self._until_s is None:
                _logger.warning("the payload store is down, so large values are sent as chunks: %s", exc)
            self._until_s = self._clock() + _AGAIN_S
            return None
        if self._until_s is not None:
            _logger.info("the payload store answers again")
            self._until_s = None
        return found
