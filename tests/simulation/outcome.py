"""What was left out of a history, and what came of it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Cuts:
    """What is left out of a history, so that it becomes shorter. All else is drawn as without it."""

    # The names of the faults and acts that happen, such as `1.8.0`: for worker 1, its first request of API 8; None
    # for all
    only: frozenset[str] | None = None
    workers: int | None = None  # at the start, at most; None for those of the scenario
    records: int | None = None  # in the source, at most; None for those of the scenario
    play: str = "worker"  # what is simulated: a name of `plays.PLAYS`. It stands here as it goes wherever cuts go.


_VARIES = re.compile(r"b?'[^']*'|\d+(?:[.,]\d+)*")
_LISTS = re.compile(r"#(?:, #)+")


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int  # of the history
    cuts: Cuts  # what was left out
    broken: str | None  # the promise that was broken; None if all were kept
    digest: str  # of all that happened, the requests and the draws: the same for the same seed
    happened: tuple[str, ...] = ()  # the names of the faults and acts that there were
    steps: int = 0  # callbacks of the event loop
    virtual_s: float = 0.0  # how long it took for the workers
    cpu_s: float = 0.0  # how long it took
    workers: int = 0  # at the start
    records: int = 0  # in the source
    tally: Counter[str] = field(default_factory=Counter)  # how often each thing happened; empty if nobody asked
    history: tuple[str, ...] = ()  # in words; empty if nobody asked

    @property
    def kind(self) -> str:
        """What was broken, without numbers and names: two seeds with one fault mostly have the same."""
        lines = (self.broken or "").strip().splitlines() or [""]
        # Of an error with a traceback: which line of the log, and the error.
        text = lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1].strip()}"
        return _LISTS.sub("#", _VARIES.sub("#", text))

    @property
    def command(self) -> str:
        words = ["python -m tests.simulation", str(self.seed)]
        if self.cuts.play != "worker":
            words.append(f"--play {self.cuts.play}")
        if self.cuts.only is not None:
            words.append(f"--only {','.join(self.happened) or 'none'}")
        if self.cuts.workers is not None:
            words.append(f"--workers {self.cuts.workers}")
        if self.cuts.records is not None:
            words.append(f"--records {self.cuts.records}")
        return " ".join(words)
