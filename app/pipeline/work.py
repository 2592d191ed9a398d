"""The work on a record: what a transform plans for it, and how far it has come in the chain.

A `Stage` plans `None` if the record passes, or the step that it takes: `Now`, on the event loop; `Thread`, as it takes
time; or `Store`, as it calls the store. Nothing here is changed; it is not frozen, as that takes twice as long to make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from transforms.record import RecordLike


@dataclass(slots=True)
class Step:
    """What a transform does with a record.

    Attributes:
        do: makes the records that take the place of the record, or finds out which step has to be taken instead. It may
            be called again after an error of the store. Raises what `Chain.go_on` raises.
        reserve_bytes: what it needs in addition to the record; None if only the store knows, and `do` asks it: what it
            returns is the step that is then known.
        counts: the name of the transform that is counted; empty if the value of the record stays where it is.
    """

    level: ClassVar[int]
    do: Callable[[], Sequence[RecordLike] | Step]
    reserve_bytes: int | None = 0
    counts: str = ""

    def taken(self) -> Sequence[RecordLike]:
        """What it makes, with all steps that follow from it."""
        made = self.do()
        return made.taken() if isinstance(made, Step) else made


class Now(Step):
    """A step that takes no time. It makes one record from one, always with the same result."""

    __slots__ = ()
    level = 0


class Thread(Step):
    """A step that takes time, and asks no store."""

    __slots__ = ()
    level = 1


@dataclass(slots=True)
class Store(Step):
    """A step that calls the store.

    Attributes:
        kept: the record as it may continue while the store is down; None if it may not.
    """

    level = 2
    kept: RecordLike | None = None


@dataclass(slots=True)
class Work:
    """The work of a chain on one record.

    Attributes:
        source: the record as it was read.
        codec: the number of the codec with which it leaves; 0 for none.
        records: what was made of it so far, in order.
        position: the index of the transform whose step is next.
        step: the next step; None if there is none.
        reserve_bytes: the most that is needed in addition to the record itself, as far as it is known.
        applied: the names of the transforms that are counted so far.
    """

    source: RecordLike
    codec: int
    records: Sequence[RecordLike]
    position: int = 0
    step: Step | None = None
    reserve_bytes: int = 0
    applied: tuple[str, ...] = ()

    @property
    def lacks_size(self) -> bool:
        """True if the next step asks the store how many bytes are needed."""
        return self.step is not None and self.step.reserve_bytes is None
