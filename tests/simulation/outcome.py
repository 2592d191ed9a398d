"""What came of one history."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.cuts import Cuts

__all__ = ["Outcome"]

_VARIES = re.compile(r"b?'[^']*'|\d+(?:[.,]\d+)*")
_LISTS = re.compile(r"#(?:, #)+")


@dataclass(frozen=True, slots=True)
class Outcome:
    """See the module.

    Attributes:
        seed: of the history.
        cuts: what was left out.
        broken: the promise that was broken; None if all were kept.
        digest: of all that happened, the requests and the draws: the same for the same seed.
        happened: the names of the faults and acts that there were.
        steps: callbacks of the event loop.
        virtual_s: how long it took for the workers.
        cpu_s: how long it took.
        workers: at the start.
        records: in the source.
        tally: how often each thing happened; empty if nobody asked.
        history: in words; empty if nobody asked.
    """

    seed: int
    cuts: Cuts
    broken: str | None
    digest: str
    happened: tuple[str, ...] = ()
    steps: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    workers: int = 0
    records: int = 0
    tally: Counter[str] = field(default_factory=Counter)
    history: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What was broken, without numbers and names: two seeds with one fault mostly have the same."""
        lines = (self.broken or "").strip().splitlines() or [""]
        # Of an error with a traceback: which line of the log, and the error.
        text = lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1].strip()}"
        return _LISTS.sub("#", _VARIES.sub("#", text))

    @property
    def command(self) -> str:
        """What runs this history again."""
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
