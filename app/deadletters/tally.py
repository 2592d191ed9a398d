"""The tally of a replay: what was done with each dead letter."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from app.deadletters.reader import FoundLetter

REPLAYED = "replayed "
"""The beginning of each reason to skip a dead letter that was replayed already."""

_MOST_FAILED = 20  # that are kept


@dataclass(frozen=True, slots=True)
class Failure:
    """A dead letter that cannot be replayed.

    Attributes:
        partition: of the dead-letter topic.
        offset: in the partition.
        reason: why not.
    """

    partition: int
    offset: int
    reason: str


@dataclass(slots=True)
class Tally:
    """The dead letters that a replay has replayed, skipped or could not replay; in a dry run, that it would.

    Attributes:
        targets: replayed dead letters by the topic and the partition of their records.
        errors: replayed dead letters by the class of the exception.
        skipped: dead letters that the filters match and that are skipped, by the reason.
        failed: the first dead letters that cannot be replayed.
        failures: how many dead letters cannot be replayed.
    """

    targets: Counter[tuple[str, int]] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    failed: list[Failure] = field(default_factory=list)
    failures: int = 0

    @property
    def replayed(self) -> int:
        """How many dead letters are replayed."""
        return self.targets.total()

    @property
    def passed_over(self) -> int:
        """How many dead letters were skipped, if all were; else 0."""
        return 0 if self.replayed or self.failures else self.skipped.total()

    @property
    def in_vain(self) -> bool:
        """Whether all were skipped, and none because it was replayed already: the command is probably wrong."""
        return self.passed_over > 0 and not any(reason.startswith(REPLAYED) for reason in self.skipped)

    def fail(self, found: FoundLetter, reason: str) -> None:
        """Counts a dead letter that cannot be replayed."""
        self.failures += 1
        if len(self.failed) < _MOST_FAILED:
            self.failed.append(Failure(found.partition, found.offset, reason))
