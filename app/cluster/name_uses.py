"""The result of an audit of names."""

from __future__ import annotations

from dataclasses import dataclass

from transforms.identifiers import IDENTIFIERS, Kind


@dataclass(frozen=True, slots=True)
class Use:
    """A name that the cluster uses.

    Attributes:
        kind: of the name.
        text: the name.
        limit: of its kind; None if none holds for it. None does for member ids of classic groups: brokers make them,
            from the client id and a UUID.
        where: the first place where it was found, for people.
        count: of the places.
    """

    kind: Kind
    text: str
    limit: int | None
    where: str
    count: int = 1

    @property
    def length(self) -> int:
        """The length in the unit of the kind."""
        return IDENTIFIERS[self.kind].length(self.text)

    @property
    def over(self) -> bool:
        """Whether the limit would refuse the name."""
        return self.limit is not None and self.length > self.limit


@dataclass(frozen=True, slots=True)
class NotRead:
    """A part of the cluster that the audit could not read.

    Attributes:
        what: the names that may be missing.
        reason: why they may be missing, and what would help.
        failed: False if the brokers returned all that they can return, so it is not an error.
    """

    what: str
    reason: str
    failed: bool = True


@dataclass(frozen=True, slots=True)
class Audit:
    """The names of a cluster.

    Attributes:
        uses: each name once, by kind in the order of `IDENTIFIERS`, the longest first.
        not_read: the parts that are missing.
        enforced: whether any broker enforces the limits now; None if none says.
    """

    uses: tuple[Use, ...]
    not_read: tuple[NotRead, ...]
    enforced: bool | None

    @property
    def over(self) -> tuple[Use, ...]:
        """The names that a limit would refuse."""
        return tuple(use for use in self.uses if use.over)

    def of(self, kind: Kind) -> tuple[Use, ...]:
        """The names of a kind, the longest first."""
        return tuple(use for use in self.uses if use.kind == kind)
