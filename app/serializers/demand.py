"""How many bytes a record downloads, and how many bytes one call of a consumer may download."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.serializers.composable import ComposableDeserializer
from app.serializers.config import ClientConfig
from app.serializers.large_message import LargeMessageDeserializer
from transforms.record import Header

__all__ = ["Allowance", "Demand"]


@dataclass(frozen=True, slots=True)
class Demand:
    """Says from the headers of a record what it downloads.

    Attributes:
        key: the deserializers of keys that call a store.
        value: the deserializers of values that call a store.
    """

    key: Sequence[LargeMessageDeserializer]
    value: Sequence[LargeMessageDeserializer]

    @classmethod
    def of(cls, config: ClientConfig[ComposableDeserializer]) -> Demand:
        """For the deserializers of a client."""
        return cls(_large(config.key), _large(config.value))

    @property
    def store_timeout_ms(self) -> int:
        """The longest time of all store calls of one record together."""
        return sum(each.store_timeout_ms for each in (*self.key, *self.value))

    def restored_bytes(self, key: object, value: object, headers: Sequence[Header]) -> int | None:
        """The most bytes that the store gives for a record; None if the store is not called."""
        if not headers:
            return None
        wanted = [
            each.restored_bytes(headers)
            for data, large in ((key, self.key), (value, self.value))
            for each in large
            if data is not None and each.wants(headers)
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


def _large(composable: ComposableDeserializer | None) -> list[LargeMessageDeserializer]:
    leaves = () if composable is None else composable.leaves()
    return [leaf for leaf in leaves if isinstance(leaf, LargeMessageDeserializer)]
