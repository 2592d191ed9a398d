"""What does the work of an audit and of a sweep: rows are made, brought together by path, counted and saved.

Two engines do the same: `app.payloads.local_engine.LocalEngine` in this process, and
`jobs.payloads.spark_engine.SparkEngine` on executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

Row = tuple[Any, ...]
"""Cells of str, int, bytes or None."""

Frame = TypeVar("Frame")
Item = TypeVar("Item")
Result = TypeVar("Result")


class Engine(Protocol[Frame]):
    """Where rows are made and kept. Use it in a `with` block; its end drops all frames.

    `columns` are `NAME TYPE, …`: `string`, `int` (32 bits), `long` (64 bits), `binary`, or `timestamp`, which is an int
    in rows: microseconds since 1970.

    `work` runs in many tasks, on threads or on executors, for which it is pickled. It opens what it needs, and may be
    called without any row. Everything that it raises ends the run.
    """

    @property
    def seconds(self) -> Mapping[str, float]:
        """How long each step took, by its name."""

    def step(self, name: str) -> AbstractContextManager[None]:
        """Shows what is done while the block lasts. Rows may be made as late as in `gathered` and `save`."""

    def spread(self, items: Sequence[Item], work: Callable[[Iterable[Item]], Iterator[Row]], columns: str) -> Frame:
        """The rows that `work` makes of the items; each of them is a separate task."""

    def by_path(
        self, frames: Sequence[Frame], work: Callable[[Iterator[tuple[int, Row]]], Iterator[Row]], columns: str
    ) -> Frame:
        """The rows that `work` makes of all rows of the frames, each with the number of its frame.

        They come sorted by the first column, which is a string, then by frame, then by the second column. All rows with
        one first column come to one call of `work`, which gets many of them.
        """

    def gathered(self, frame: Frame, work: Callable[[Iterator[Row]], Result]) -> list[Result]:
        """The small results of `work` for each part of the rows; of `by_path`, rows of a path stay side by side."""

    def check_new(self, path: str) -> None:
        """Makes sure that rows can be saved there, and that nothing is there yet.

        Raises:
            ConfigurationError: they cannot, or something is.
        """

    def save(self, frame: Frame, path: str) -> None:
        """Writes all rows."""
