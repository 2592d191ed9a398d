"""How many bytes one call of a consumer may download or re-read."""

from __future__ import annotations

import time
from collections.abc import Callable

# The number of parallel downloads of a client; as many as a pipeline's `store.threads`, below `s3.max.connections`.
PARALLEL = 8


class Allowance:
    """How many bytes one call of a consumer may download.

    Args:
        max_bytes: the most bytes, unless the first download alone is larger.
        download_ms: the longest time of one download.
        interval_ms: the longest time of the call, from now.
        clock: for tests, in seconds.
    """

    def __init__(
        self, max_bytes: int, download_ms: int, interval_ms: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes = max_bytes
        self._spare_s = (interval_ms - download_ms) / 1000
        self._clock = clock
        self._begun_at = clock()
        self._bytes: int | None = None

    def takes(self, size: int) -> bool:
        """Counts a download of at most `size` bytes; False if the call may not start it. The first may always start."""
        if self._bytes is not None and (
            self._bytes + size > self._max_bytes or self._clock() - self._begun_at > self._spare_s
        ):
            return False
        self._bytes = (self._bytes or 0) + size
        return True
