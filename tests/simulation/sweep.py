"""A sweep of the payload store while one payload does not go in: what waits behind it was stored long ago.

A real outage of that length takes too many turns of the workers. So all times are shorter here, each by its part: the
longest time that the worker holds the reference to a payload, and the minimum age of a payload that the sweep takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from app.pipeline import dispatch
from transforms.errors import PayloadStoreError
from transforms.retention import LONGEST_HOLD_S

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Sweep"]

_HOLD_S = 1.0
# The hold, one call of the store, the longest delivery.timeout.ms, and the longest time that a worker stands still.
_LEAST_AGE_S = _HOLD_S + 3.0 + 15.0 + 12.0 + 5.0
_OUTAGE_S = _LEAST_AGE_S + 5.0


class Sweep:
    """Sweeps the store of a world once.

    Args:
        world: before its history begins.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._stuck: str | None = None
        self._until_s = 0.0
        self._payloads = world.store.payloads = _AgedPayloads(world.loop.time)
        self._call = world.store.call
        setattr(world.store, "call", self._called)  # noqa: B010  # mypy takes it for a declaration
        setattr(dispatch, "LONGEST_HOLD_S", _HOLD_S if "sweep" in world.scenario.acts else LONGEST_HOLD_S)  # noqa: B010

    def begin(self) -> None:
        """The next payload does not go in until all that is not referred to was swept."""
        if not self._until_s:
            loop = self._world.loop
            self._until_s = loop.time() + _OUTAGE_S
            loop.call_at(self._until_s, self._sweep)
            loop.call_later(5.0, self._end_without)

    def _called(self, what: str, *details: Any) -> None:
        if what.startswith("put") and self._world.loop.time() < self._until_s:
            self._stuck = self._stuck or what
            if what == self._stuck:
                raise PayloadStoreError(f"the simulated store does not take this payload: {what}", retriable=True)
        self._call(what, *details)

    def _end_without(self) -> None:
        if self._stuck is None:
            self._until_s = self._world.loop.time()

    def _sweep(self) -> None:
        world = self._world
        logs = [log for name in ("out", "dead") for log in world.cluster.logs(name)]
        # In wrappers there is more than the reference.
        referred = b" ".join(record.value or b"" for log in logs for _, record in log.committed())
        oldest_s = world.loop.time() - _LEAST_AGE_S
        aged = [path for path, put_s in self._payloads.put_s.items() if put_s < oldest_s]
        swept = [path for path in aged if "/raw/" not in path and path.encode() not in referred]
        for path in swept:
            del self._payloads[path]
        if self._stuck is not None:
            world.tell(f"{self._stuck} goes in from now on; a sweep takes {len(swept)} payloads")


class _AgedPayloads(dict[str, bytes]):
    """Knows when each was put last."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self.put_s: dict[str, float] = {}
        self._clock = clock

    def __setitem__(self, path: str, payload: bytes) -> None:
        self.put_s[path] = self._clock()
        super().__setitem__(path, payload)

    def __delitem__(self, path: str) -> None:
        del self.put_s[path]
        super().__delitem__(path)
