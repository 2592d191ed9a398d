"""What an audit of names finds."""

from __future__ import annotations

from dataclasses import dataclass

from transforms.identifiers import IDENTIFIERS, Kind

__all__ = ["Audit", "NotRead", "Use"]


@dataclass(frozen=True, slots=True)
class Use:
    """A name that the cluster has.

    Attributes:
        kind: what it names.
        text: the name.
        limit: what it is held to.
        where: the first place where it was found, for people.
        count: how many places there are.
        judged: False where nobody chose the name, and no limit is meant for it: brokers make the member ids of classic
            groups, of the client id and a UUID.
    """

    kind: Kind
    text: str
    limit: int
    where: str
    count: int = 1
    judged: bool = True

    @property
    def length(self) -> int:
        """In the unit of the kind."""
        return IDENTIFIERS[self.kind].length(self.text)

    @property
    def over(self) -> bool:
        """Whether the limit would refuse it."""
        return self.judged and self.length > self.limit


@dataclass(frozen=True, slots=True)
class NotRead:
    """A part of the cluster that could not be looked at.

    Attributes:
        what: the names that may be missing.
        reason: why, and what would help.
    """

    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found.

    Attributes:
        uses: each name once, by kind in the order of the table, the longest first.
        not_read: what was not.
        enforced: whether the brokers enforce the limits now; None where they do not say.
    """

    uses: tuple[Use, ...]
    not_read: tuple[NotRead, ...]
    enforced: bool | None

    @property
    def over(self) -> tuple[Use, ...]:
        """What a limit would refuse."""
        return tuple(use for use in self.uses if use.over)

    def of(self, kind: Kind) -> tuple[Use, ...]:
        """The names of a kind, the longest first."""
        return tuple(use for use in self.uses if use.kind == kind)
