"""A defect of the worker itself: one call that puts a record behind the others of its sink partition raises.

Nothing of a cluster or a store makes it raise. The pipeline then ends, its log has the traceback, and what was not
written must not be committed.
"""

from __future__ import annotations

from random import Random
from typing import Any

from app.pipeline.output import Output

__all__ = ["TEXT", "Defect"]

_APPEND = Output.append
TEXT = "a defect of the simulation"


class Defect:
    """Takes the place of `Output.append` for one history.

    Attributes:
        raised: whether it has raised. Of a discarded message the commit then goes back to before the letters.
    """

    def __init__(self) -> None:
        self._left = 0
        self.raised = False

        def append(output: Output, *values: Any) -> None:
            if self._left:
                self._left -= 1
                if not self._left:
                    self.raised = True
                    raise MemoryError(TEXT)
            _APPEND(output, *values)

        setattr(Output, "append", append)  # noqa: B010  # mypy takes it for a declaration

    def arm(self, chance: Random) -> None:
        """One of the next calls raises."""
        self._left = chance.randint(1, 5)

    @staticmethod
    def is_in(text: str | None) -> bool:
        """Whether an error is that one."""
        return text is not None and TEXT in text
