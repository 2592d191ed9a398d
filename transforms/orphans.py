"""Orphans: payloads that no record refers to any more. The rules of a sweep, on rows that are sorted by path.

A payload is `live` if a reference leads to it; else `young` if it was not published before the cutoff; else `foreign`
if its name is not one that the stores of this project give to payloads; else it is an `orphan`, and may be removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

# A SHA-256, or a UUID.
_OWN_NAME = re.compile(r"/(?:[0-9a-f]{64}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\Z")


STATES: Mapping[str, str] = {
    "live": "a record refers to it",
    "young": "no record refers to it, and it is not older than the minimum age",
    "foreign": "no record refers to it, and its name is not one of a payload",
    "orphan": "no record refers to it, and it is older than the minimum age",
}
"""The states of a payload, and why it has the state."""


class Listed(NamedTuple):
    """A payload as the store lists it, with its stored bytes; `modified_us` counts from 1970."""

    path: str
    topic: str
    stored: int
    modified_us: int


@dataclass(frozen=True, slots=True)
class Marking:
    """Marks payloads; it is pickled for executors.

    Attributes:
        cutoff_us: a payload of this time or later is not an orphan.
        any_name: whether a payload of any name may be an orphan.
    """

    cutoff_us: int
    any_name: bool = False

    def marked(self, rows: Iterable[tuple[int, tuple[Any, ...]]]) -> Iterator[tuple[str, str, int, int, str, str]]:
        """The payloads, each with its state and why, of rows of which 0 marks a `Listed`, any other a reference."""
        for _, together in groupby(rows, lambda row: row[1][0]):
            listed, live = [], False
            for number, row in together:
                if number == 0:
                    listed.append(Listed(*row))
                else:
                    live = True
            for payload in listed:
                state = "live" if live else self._unused(payload)
                yield *payload, state, STATES[state]

    def _unused(self, payload: Listed) -> str:
        if payload.modified_us >= self.cutoff_us:
            return "young"
        return "orphan" if self.any_name or _OWN_NAME.search(payload.path) else "foreign"


@dataclass(slots=True)
class Sum:
    """Of things of one kind, how many there are, their bytes, and the least of what is kept of each."""

    count: int = 0
    bytes: int = 0
    first: Any = None


class Tally(dict[tuple[str, ...], Sum]):
    """Sums by kind. A part of the rows gives one, and those of all parts are merged."""

    def add(self, kind: tuple[str, ...], first: Any, size: int = 0, count: int = 1) -> None:
        """Counts one thing, or several."""
        found = self.setdefault(kind, Sum())
        found.count, found.bytes = found.count + count, found.bytes + size
        if first is not None and (found.first is None or first < found.first):
            found.first = first

    @classmethod
    def merged(cls, parts: Iterable[Tally]) -> Tally:
        """The sums of all parts."""
        tally = cls()
        for part in parts:
            for kind, found in part.items():
                tally.add(kind, found.first, found.bytes, found.count)
        return tally

    def of(self, *kind: str) -> Sum:
        """The sum of one kind."""
        return self.get(kind, Sum())
