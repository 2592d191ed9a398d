"""What a run of the simulation reports: its progress, each kind of broken guarantee with a short history, totals."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.simulation.clock import real_s
from tests.simulation.outcome import Cuts, Outcome
from tests.simulation.processes import Detail, outcomes

_EVERY_S = 20.0
_SEEDS = 8


class Report:
    def __init__(self) -> None:
        self.broken: dict[str, list[Outcome]] = defaultdict(list)  # by kind, the outcomes that broke a guarantee
        self.tally: Counter[str] = Counter()  # how often each thing happened
        self._began_s = self._said_s = real_s()
        self._count = self._steps = 0
        self._virtual_s = self._cpu_s = 0.0
        self._slowest: Outcome | None = None

    def add(self, outcome: Outcome) -> None:
        """Counts a history; reports new kinds of broken guarantees, and regularly the progress."""
        self._count += 1
        self._steps += outcome.steps
        self._virtual_s += outcome.virtual_s
        self._cpu_s += outcome.cpu_s
        self.tally += outcome.tally
        if self._slowest is None or outcome.cpu_s > self._slowest.cpu_s:
            self._slowest = outcome
        if outcome.broken is not None:
            kinds = self.broken[outcome.kind]
            kinds.append(outcome)
            if len(kinds) == 1:
                _say(f"seed {outcome.seed}: {outcome.kind}")
        if real_s() - self._said_s > _EVERY_S:
            self._said_s = real_s()
            _say(f"{self._count:,} histories, {sum(map(len, self.broken.values()))} broke a guarantee")

    def summary(self) -> Iterator[str]:
        seconds, count = real_s() - self._began_s, max(1, self._count)
        yield (
            f"{self._count:,} histories in {seconds:.1f} s, {self._count / max(seconds, 0.001):.0f} per second; each:"
            f" {self._cpu_s / count * 1000:.1f} ms of CPU, {self._steps / count:,.0f} steps,"
            f" {self._virtual_s / count:.1f} virtual seconds"
        )
        if self._slowest is not None:
            yield f"the slowest: seed {self._slowest.seed}, {self._slowest.cpu_s:.2f} s, {self._slowest.steps:,} steps"
        for kind, found in sorted(self.broken.items(), key=lambda each: -len(each[1])):
            seeds = " ".join(str(each.seed) for each in found[:_SEEDS])
            yield f"{len(found):,} failed: {kind} (seeds {seeds}{' …' if len(found) > _SEEDS else ''})"

    def tallied(self) -> Iterator[str]:
        """How often each thing happened, the rarest last."""
        for name, count in sorted(self.tally.items(), key=lambda each: (each[0].split(":")[0], -each[1], each[0])):
            yield f"{count:9,} {name}"


def explain(found: list[Outcome], seconds: float) -> Iterator[str]:
    """The shortest history of one kind of broken guarantee that is found in so many seconds."""
    smallest = min(found, key=lambda each: (len(each.happened), each.steps))
    best = shrunk(smallest, seconds) if seconds > 0 else smallest
    (outcome,) = outcomes([(best.seed, best.cuts)], 1, Detail(history=True))
    yield f"seed {outcome.seed}, {len(outcome.happened)} of its {len(smallest.happened)} faults and acts:"
    yield from told(outcome)
    yield f"to run it again: {best.command}"


def told(outcome: Outcome) -> Iterator[str]:
    before, times = "", 0
    for line in outcome.history:
        text = line[9:]
        if text == before:
            times += 1
            continue
        if times:
            yield f"           … {times} more times"
        before, times = text, 0
        yield f"  {line}"
    yield f"  BROKEN: {outcome.broken}" if outcome.broken else "  all guarantees were kept"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def shrunk(found: Outcome, seconds: float) -> Outcome:
    """The shortest history of its seed, found in so many seconds, that breaks this guarantee; the given one at worst.

    Faults are left out by halves, then quarters, down to single ones (delta debugging, Zeller and Hildebrandt 2002).
    What is left out changes what happens afterwards, so the result may not be minimal, and need not be.
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
        """Tries it; True if it still breaks the guarantee, and so is the best."""
        if cuts in self._tried or real_s() > self._until_s:
            return False
        self._tried.add(cuts)
        (outcome,) = outcomes([(self.best.seed, cuts)], 1)
        if outcome.broken is None or outcome.kind != self._kind:
            return False
        self.best = outcome
        return True

    def fewer_faults(self) -> None:
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
        any(self.take(replace(self.best.cuts, workers=count)) for count in range(1, self.best.workers))

    def fewer_records(self) -> None:
        counts = [each for each in (1, 2, 3, 5, 8, 12, 20, 30) if each < self.best.records]
        any(self.take(replace(self.best.cuts, records=count)) for count in counts)
