"""Makes a history that broke a promise shorter: the fewest faults, acts, workers and records that still break it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.simulation.clock import real_s
from tests.simulation.cuts import Cuts
from tests.simulation.outcome import Outcome
from tests.simulation.processes import outcomes

__all__ = ["shrunk"]


def shrunk(found: Outcome, seconds: float) -> Outcome:
    """The shortest history of its seed that is found in so many seconds and breaks the same promise; itself at worst.

    Faults are left out by halves, then quarters, down to single ones (delta debugging, Zeller and Hildebrandt 2002).
    What is left out changes what happens afterwards, so the result is no minimum, and need not be.
    """
    search = _Search(found, real_s() + seconds)
    search.take(replace(found.cuts, only=frozenset(found.happened)))
    before = None
    while before is not search.best:
        before = search.best
        search.fewer_faults()
        search.fewer_workers()
        search.fewer_records()
    return search.best


class _Search:
    def __init__(self, found: Outcome, until_s: float) -> None:
        self.best = found
        self._until_s = until_s
        self._kind = found.kind
        self._tried: set[Cuts] = set()

    def take(self, cuts: Cuts) -> bool:
        """Tries it; whether it still breaks the promise, and so is the best."""
        if cuts in self._tried or real_s() > self._until_s:
            return False
        self._tried.add(cuts)
        (outcome,) = outcomes([(self.best.seed, cuts)], 1)
        if outcome.broken is None or outcome.kind != self._kind:
            return False
        self.best = outcome
        return True

    def fewer_faults(self) -> None:
        """Leaves out as many faults as it can."""
        names = self.best.happened
        if self.take(self._only(())):
            return
        parts = 2
        while len(names) > 1:
            size = -(-len(names) // parts)
            for at in range(0, len(names), size):
                if self.take(self._only((*names[:at], *names[at + size :]))):
                    names = self.best.happened
                    parts = max(2, parts - 1)
                    break
            else:
                if size == 1:
                    return
                parts = min(len(names), parts * 2)
            if real_s() > self._until_s:
                return

    def _only(self, names: Sequence[str]) -> Cuts:
        return replace(self.best.cuts, only=frozenset(names))

    def fewer_workers(self) -> None:
        """Tries with fewer workers."""
        any(self.take(replace(self.best.cuts, workers=count)) for count in range(1, self.best.workers))

    def fewer_records(self) -> None:
        """Tries with fewer records."""
        counts = [each for each in (1, 2, 3, 5, 8, 12, 20, 30) if each < self.best.records]
        any(self.take(replace(self.best.cuts, records=count)) for count in counts)
