"""Spark's own archives of Python code, and what they cost a task.

Spark puts `pyspark.zip` and Py4J's archive on the path of its Python workers. Each task has Python read their
directories anew, once for each package in them that was imported: a fifth of a second of CPU, which is most of what a
small task takes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from typing import Generic, TypeVar

__all__ = ["Sparing", "without_archives"]

_ARCHIVES = "/python/lib/"  # of Spark

In = TypeVar("In")
Out = TypeVar("Out")


def without_archives(path: Sequence[str]) -> list[str]:
    """The path without Spark's archives, if PySpark and Py4J are in folders of it; else the path as it is."""
    rest = [entry for entry in path if not (entry.endswith(".zip") and _ARCHIVES in entry)]
    found = all(PathFinder.find_spec(name, rest) is not None for name in ("pyspark", "py4j"))
    return rest if found else list(path)


@dataclass(frozen=True, slots=True)
class Sparing(Generic[In, Out]):
    """The work of a task, after which the worker's next task does not read the archives' directories again.

    A worker's first task reads them still. Modules are found as before: `zipimport` keeps what it has read, and makes
    a new importer of it where one is needed.

    Attributes:
        work: of the task.
    """

    work: Callable[[Iterable[In]], Iterable[Out]]

    def __call__(self, items: Iterable[In]) -> Iterator[Out]:
        try:
            yield from self.work(items)
        finally:
            _forget()


def _forget() -> None:
    """Removes the importers of the archives, which `importlib.invalidate_caches` would ask to read them again."""
    for entry in [*sys.path_importer_cache]:
        if _ARCHIVES in entry and ".zip" in entry:
            sys.path_importer_cache.pop(entry, None)
