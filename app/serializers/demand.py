"""How many bytes a record downloads."""

from __future__ import annotations

from collections.abc import Sequence

from app.serializers.composable import ComposableDeserializer
from app.serializers.config import ClientConfig
from app.serializers.large_message import LargeMessageDeserializer
from transforms.record import Header

__all__ = ["Demand"]


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
