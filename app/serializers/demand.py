"""How many bytes a record downloads, and how many bytes one call of a consumer may download."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from app.serializers.composable import ComposableDeserializer
from app.serializers.config import ClientConfig
from app.serializers.large_message import LargeMessageDeserializer
from transforms.record import Header

__all__ = ["Allowance", "Demand"]


class Demand:
    """Says from the headers of a record what it downloads.

    Args:
        deserializers: of a client.

    Attributes:
        store_timeout_ms: the longest time of all store calls of one record together.
    """

    def __init__(self, deserializers: ClientConfig[ComposableDeserializer]) -> None:
        leaves = deserializers.leaves()
        self._large = [(part, leaf) for part, leaf in leaves if isinstance(leaf, LargeMessageDeserializer)]
        self.store_timeout_ms = sum(large.store_timeout_ms for _, large in self._large)

    def restored_bytes(self, key: object, value: object, headers: Sequence[Header]) -> int | None:
        """The most bytes that the store gives for a record; None if the store is not called."""
        if not headers:
            return None
        data = {"key": key, "value": value}
        wanted = [
            large.restored_bytes(headers)
            for part, large in self._large
            if data[part] is not None and large.wants(headers)
        ]
        return sum(wanted) if wanted else None


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
        """Counts a download of at most `size` bytes, and is True, if the call may begin it. It may begin the first."""
        if self._bytes is not None and (
            self._bytes + size > self._max_bytes or self._clock() - self._begun_at > self._spare_s
        ):
            return False
        self._bytes = (self._bytes or 0) + size
        return True
