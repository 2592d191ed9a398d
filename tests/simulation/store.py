"""The payload store of a history: a dict, which fails as the seed wills."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from random import Random
from typing import Any

from stores.memory import MemoryStore
from transforms.errors import PayloadNotFoundError, PayloadStoreError, PayloadTooLargeError

__all__ = ["SimulatedStore", "StoreWorld"]


class StoreWorld:
    """What is in the store, for all workers of a history, and how it is today.

    Attributes:
        payloads: by full path.
        down: whether each call fails.
        lying: whether the check says that all is well though calls fail.
        rate: of the calls that fail.
    """

    def __init__(self, chance: Random, tell: Callable[[str], None], happens: Callable[[str, str], bool]) -> None:
        self.payloads: dict[str, bytes] = {}
        self.down = self.lying = False
        self.rate = 0.0
        self._chance = chance
        self._tell = tell
        self._happens = happens
        self._numbers = itertools.count()

    def call(self, what: str) -> None:
        """Fails, or not."""
        fails = self.down
        if fails:
            self._tell(f"store: {what} fails")
        elif self.rate:
            number = next(self._numbers)
            fails = self._chance.random() < self.rate and self._happens(f"store.{number}", f"store: {what} fails")
        if fails:
            raise PayloadStoreError(f"the simulated store does not answer: {what}", retriable=True)


class SimulatedStore(MemoryStore):
    """One worker's store.

    Args:
        world: of the history.
    """

    def __init__(self, world: StoreWorld) -> None:
        super().__init__()
        self._world = world

    def put(self, topic: str, object_id: str, data: bytes) -> str:
        path = self.root.path(topic, object_id)
        self._world.call(f"put {object_id[:8]}")
        self._world.payloads[path] = bytes(data)
        return path

    def get(self, full_path: str, max_bytes: int) -> bytes:
        self.root.split(full_path)
        self._world.call(f"get {full_path[-8:]}")
        data = self._world.payloads.get(full_path)
        if data is None:
            raise PayloadNotFoundError(full_path)
        if len(data) > max_bytes:
            raise PayloadTooLargeError(full_path, len(data), max_bytes)
        return data

    def check(self, *, writing: bool = True, topic: str | None = None) -> None:
        if not self._world.lying:
            self._world.call("check")


_ = hashlib, UTC, datetime, Mapping, Any
