"""Which offsets a task reads: pure planning, for batches and for streams.

A stream's offsets stand in its checkpoint as Kafka's own source has them: `{"orders": {"0": 23}}`, the next offset of
each partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pyspark.sql.datasource import InputPartition

from jobs.driver.failures import JobFailedError
from transforms.errors import ConfigurationError

__all__ = [
    "Bounds",
    "OffsetRange",
    "Offsets",
    "Place",
    "Positions",
    "advanced",
    "between",
    "check_forward",
    "position",
    "positions_json",
    "positions_of",
    "split",
]

Place = tuple[str, int]
"""A topic and one of its partitions."""

Offsets = Literal["earliest", "latest"] | Mapping[str, Mapping[str, int]]
"""Where to begin or to end: everywhere alike, or by topic and partition; −2 is the earliest offset, −1 the latest."""

Positions = dict[Place, int]
"""Of each partition, the next offset."""

_EARLIEST, _LATEST = -2, -1


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offsets of a partition: of the first record that is there, and behind the last that may be read."""

    first: int
    end: int


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """What one task reads: the offsets of a partition from `start` up to `end`.

    A message of chunks belongs to the range that holds its last chunk.
    """

    topic: str
    partition: int
    start: int
    end: int


def position(option: str, wanted: Offsets, found: Mapping[Place, Bounds]) -> Positions:
    """The offset of each partition that an option means.

    Raises:
        ConfigurationError: it names a partition that is not there, or leaves one out.
    """
    if isinstance(wanted, str):
        return {place: bounds.first if wanted == "earliest" else bounds.end for place, bounds in found.items()}
    given = {(topic, int(number)): at for topic, places in wanted.items() for number, at in places.items()}
    if given.keys() != found.keys():
        odd = sorted(given.keys() ^ found.keys())
        names = ", ".join(f"{topic} {number}" for topic, number in odd[:5])
        raise ConfigurationError(option, f"names each partition of the topics and no other; at fault: {names}")
    special = {_EARLIEST: lambda bounds: bounds.first, _LATEST: lambda bounds: bounds.end}
    return {place: special[at](found[place]) if at in special else at for place, at in given.items()}


def positions_json(positions: Positions) -> dict[str, dict[str, int]]:
    """As a checkpoint has them."""
    found: dict[str, dict[str, int]] = {}
    for (topic, number), at in sorted(positions.items()):
        found.setdefault(topic, {})[str(number)] = at
    return found


def positions_of(offsets: Mapping[str, Mapping[str, int]]) -> Positions:
    """The inverse of `positions_json`."""
    return {(topic, int(number)): at for topic, places in offsets.items() for number, at in places.items()}


def check_forward(start: Positions, found: Mapping[Place, Bounds]) -> None:
    """Makes sure that no partition ends before it was read up to.

    Raises:
        JobFailedError: one does.
    """
    for (topic, number), bounds in found.items():
        at = start.get((topic, number), 0)
        if bounds.end < at:
            raise JobFailedError(
                f"topic {topic} partition {number} ends at offset {bounds.end}, and was read up to {at} before: the "
                "topic was made anew; give a new checkpoint, or failOnDataLoss=false to read it from its beginning"
            )


def advanced(start: Positions, found: Mapping[Place, Bounds], limit: int | None) -> Positions:
    """Where a micro-batch ends that begins at `start`: at most `limit` offsets on, each partition by what waits in it.

    A partition that is new begins at its first record, and so does one that ends before its start. One that is gone
    stays where it was.
    """
    begin = {place: _begin(start.get(place), bounds) for place, bounds in found.items()}
    waiting = {place: bounds.end - begin[place] for place, bounds in found.items()}
    total = sum(waiting.values())
    if limit is not None and total > limit:
        # Each with anything in it goes on by one at least, lest it never does.
        waiting = {place: min(number, max(1, number * limit // total)) for place, number in waiting.items()}
    return {**start, **{place: begin[place] + waiting[place] for place in found}}


def _begin(at: int | None, bounds: Bounds) -> int:
    return bounds.first if at is None or at > bounds.end else at


def between(start: Positions, end: Positions, first: Mapping[Place, int]) -> list[OffsetRange]:
    """What lies between two positions; see `advanced`.

    Args:
        start: of each partition, the first offset.
        end: the offset behind the last one.
        first: where partitions begin that `start` has not, or has behind their end.
    """
    ranges = []
    for place, to in sorted(end.items()):
        begin = start.get(place, to + 1)
        begin = first.get(place, 0) if begin > to else begin
        if begin < to:
            ranges.append(OffsetRange(*place, begin, to))
    return ranges


def split(ranges: Iterable[OffsetRange], most_offsets: int | None, least_tasks: int | None) -> list[OffsetRange]:
    """The ranges, cut until none has more than `most_offsets`, and there are `least_tasks` if there is so much."""
    whole = list(ranges)
    total = sum(each.end - each.start for each in whole)
    size = most_offsets or max(total, 1)
    if least_tasks is not None and len(whole) < least_tasks:
        size = min(size, max(1, -(-total // least_tasks)))
    pieces = []
    for each in whole:
        count = -(-(each.end - each.start) // size)
        cuts = [each.start + (each.end - each.start) * n // count for n in range(count + 1)]
        pieces += [OffsetRange(each.topic, each.partition, begin, to) for begin, to in pairwise(cuts)]
    return pieces
