"""The payload store of a history: a dict, whose calls fail, hang and lie as the seed wills."""

from __future__ import annotations

import contextvars
import hashlib
import itertools
import math
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random

from stores.memory import MemoryStore
from stores.store import PayloadInfo
from tests.simulation.loop import SimulatedLoop
from tests.simulation.threads import CALL, SteppedCall
from transforms.errors import (
    PayloadNotFoundError,
    PayloadStoreAccessError,
    PayloadStoreError,
    PayloadTooLargeError,
)

_WAYS = ("fails", "fails_late", "refuses", "is_slow", "hangs", "hangs_for_ever", "works_and_fails", "works_later")


class StoreWorld:
    """What is in the store, for all workers of a history, and how it is today."""

    def __init__(
        self, loop: SimulatedLoop, chance: Random, tell: Callable[[str], None], happens: Callable[[str, str], bool]
    ) -> None:
        self.payloads: dict[str, bytes] = {}  # by full path
        self.down = self.lying = False
        self.rate = 0.0  # of the calls that fail
        self.ways: tuple[str, ...] = ("fails",)  # in which calls fail; names from `_WAYS`
        self.cursed: set[str] = set()  # paths for which each call fails, though the store is up
        self.hanging: dict[SteppedCall, contextvars.Context] = {}  # calls that stand still until the store is `calmed`
        self._loop = loop
        self._chance = chance
        self._tell = tell
        self._happens = happens
        self._numbers = itertools.count()
        self._outside = contextvars.Context()

    @property
    def hangs(self) -> bool:
        """Whether calls may take time now, and need threads of their own."""
        return (self.down or self.rate > 0) and self.ways != ("fails",)

    def worsen(self, chance: Random) -> None:
        """From now on it is down, or fails at times, in some of the ways there are; and its check may lie."""
        self.down = chance.random() < 0.5
        self.rate = chance.choice((0.0, 0.3))
        self.lying = chance.random() < 0.3
        self.ways = ("fails",) if chance.random() < 0.4 else (chance.choice(_WAYS), chance.choice(_WAYS))
        self._tell(f"store: down {self.down}, fails {self.rate}, lies {self.lying}: {', '.join(self.ways)}")

    def calm(self) -> None:
        """All is well, and what hung for ever ends, with an error."""
        self.down, self.rate, self.lying = False, 0.0, False
        hanging, self.hanging = self.hanging, {}
        for call, context in hanging.items():
            self._loop.call_soon(call.step, context=context)

    def call(self, what: str, path: str = "", effect: Callable[[], None] | None = None) -> None:
        """One call: takes its time, has its effect or not, and fails or not."""
        if path in self.cursed:
            raise PayloadStoreError(f"the simulated store does not give this payload: {what}", retriable=True)
        way = self._way(what)
        if way is None:
            if effect is not None:
                effect()
            return
        if way in {"is_slow", "hangs", "fails_late"}:
            self._wait(self._chance.random() * (6.0 if way == "hangs" else 1.0))
        elif way == "hangs_for_ever":
            self._wait(math.inf)
        if effect is not None and way in {"is_slow", "hangs", "works_and_fails"}:
            effect()
        elif effect is not None and way == "works_later":
            self._loop.call_later(self._chance.random() * 3, effect, context=self._outside)
        if way == "refuses":
            raise PayloadStoreAccessError(f"the simulated store refuses: {what}", retriable=False)
        if way not in {"is_slow", "hangs"}:
            raise PayloadStoreError(f"the simulated store does not answer: {what}", retriable=True)

    def _way(self, what: str) -> str | None:
        if not (self.down or self.rate):
            return None
        number, rate = next(self._numbers), 1 if self.down else self.rate
        drawn, way = self._chance.random(), self._chance.choice(self.ways)
        told = f"store: {what} {way.replace('_', ' ')}"
        return way if drawn < rate and self._happens(f"store.{number}", told) else None

    def _wait(self, seconds: float) -> None:
        call = CALL.get()
        if call is None:
            return
        if seconds == math.inf:
            self.hanging[call] = call.context
        call.wait(seconds)


class SimulatedStore(MemoryStore):
    def __init__(self, world: StoreWorld) -> None:
        super().__init__()
        self._world = world

    def put(self, topic: str, object_id: str, data: bytes) -> str:
        path = self.root.path(topic, object_id)
        payload = bytes(data)
        self._world.call(f"put {object_id[:8]}", path, lambda: self._world.payloads.__setitem__(path, payload))
        return path

    def _found(self, what: str, full_path: str) -> bytes:
        self.root.split(full_path)
        self._world.call(f"{what} {full_path[-8:]}", full_path)
        data = self._world.payloads.get(full_path)
        if data is None:
            raise PayloadNotFoundError(full_path)
        return data

    def get(self, full_path: str, max_bytes: int) -> bytes:
        data = self._found("get", full_path)
        if len(data) > max_bytes:
            raise PayloadTooLargeError(full_path, len(data), max_bytes)
        return data

    def stat(self, full_path: str) -> PayloadInfo:
        return PayloadInfo(full_path, len(self._found("stat", full_path)), datetime.fromtimestamp(0, UTC))

    def check(self, *, writing: bool = True, topic: str | None = None) -> None:
        if not self._world.lying:
            self._world.call("check")


def path_of(value: bytes) -> str:
    return f"memory://default/out/{hashlib.sha256(value).hexdigest()}"
