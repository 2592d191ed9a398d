"""What is left out of a history, so that it becomes shorter. All else is drawn as without it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cuts"]


@dataclass(frozen=True, slots=True)
class Cuts:
    """See the module.

    Attributes:
        only: the names of the faults and acts that happen, such as `1.8.0`: for worker 1, its first request of API 8;
            None for all.
        workers: at the start, at most; None for those of the scenario.
        records: in the source, at most; None for those of the scenario.
        play: what is simulated: a name of `plays.PLAYS`. It stands here as it goes wherever cuts go.
    """

    only: frozenset[str] | None = None
    workers: int | None = None
    records: int | None = None
    play: str = "worker"
