"""The offsets that a task reads: pure planning, for batches and for streams.

A stream keeps its offsets in its checkpoint, as Spark's Kafka source does: `{"orders": {"0": 23}}`, the next offset of
each partition. That of the source `wideload` adds the ids of the topics: `"topic ids": {"orders": "9d2f…"}`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, cast

from jobs.driver.failures import JobFailedError
from transforms.errors import ConfigurationError

Place = tuple[str, int]
"""A topic and one of its partitions."""

Offsets = Literal["earliest", "latest"] | Mapping[str, Mapping[str, int]]
"""Where to begin or to end: for all partitions, or by topic and partition; −2 is the earliest offset, −1 the latest."""

Positions = dict[Place, int]
"""The next offset of each partition."""

_EARLIEST, _LATEST = -2, -1
_FEW_OFFSETS = 1_000  # so many are worth a task, which takes some 100 ms to start
_IDS = "topic ids"  # no topic has a space in its name


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offset of the first record in a partition, and the offset behind the last record that may be read."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets of a partition that one task reads: from `start` up to `end`.

    A message of chunks belongs to the range that holds its last chunk. `topic_id` is the id of the topic for which the
    range was planned; empty if that is not known.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""


def parse_offsets(option: str, text: str) -> Offsets:
    """The offsets in the text of an option: `earliest`, `latest`, or Spark's JSON.

    Raises:
        ConfigurationError: it is none of these.
    """
    if text in ("earliest", "latest"):
        return cast("Offsets", text)
    try:
        found = json.loads(text)
        return {topic: {str(int(number)): int(at) for number, at in places.items()} for topic, places in found.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise ConfigurationError(
            option, f'found {text[:100]!r}, allowed are earliest, latest and JSON as {{"orders": {{"0": 23, "1": -2}}}}'
        ) from None


def position(option: str, wanted: Offsets, found: Mapping[Place, Bounds]) -> Positions:
    """The offset of each partition, as an option says.

    Raises:
        ConfigurationError: the option names a partition that does not exist, or leaves one out.
    """
    if isinstance(wanted, str):
        return {place: bounds.first if wanted == "earliest" else bounds.end for place, bounds in found.items()}
    given = {(topic, int(number)): at for topic, places in wanted.items() for number, at in places.items()}
    if given.keys() != found.keys():
        odd = sorted(given.keys() ^ found.keys())
        names = ", ".join(f"{topic} {number}" for topic, number in odd[:5])
        raise ConfigurationError(option, f"must name each partition of the topics and no other; wrong are: {names}")
    special = {_EARLIEST: lambda bounds: bounds.first, _LATEST: lambda bounds: bounds.end}
    return {place: special[at](found[place]) if at in special else at for place, at in given.items()}


def positions_json(positions: Positions) -> dict[str, dict[str, int]]:
    """Offsets as a checkpoint has them."""
    found: dict[str, dict[str, int]] = {}
    for (topic, number), at in sorted(positions.items()):
        found.setdefault(topic, {})[str(number)] = at
    return found


def noted(positions: Positions, ids: Mapping[str, str]) -> dict[str, Any]:
    """Offsets as a checkpoint of the source `wideload` has them: with the ids of the topics, if brokers give some."""
    return {**positions_json(positions), **({_IDS: dict(sorted(ids.items()))} if ids else {})}


def positions_of(offsets: Mapping[str, Mapping[str, Any]]) -> Positions:
    """The inverse of `positions_json`, and of `noted`."""
    return {
        (topic, int(number)): at for topic, places in offsets.items() if topic != _IDS for number, at in places.items()
    }


def ids_of(offsets: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The ids of the topics that `noted` has written; none from a checkpoint of an older release."""
    return dict(offsets.get(_IDS, {}))


def recreated(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The topics whose ids differ: those that were deleted and created again."""
    return sorted(name for name, each in now.items() if before.get(name, each) != each)


def without(positions: Positions, topics: Iterable[str]) -> Positions:
    """The positions in all topics but these."""
    left_out = {*topics}
    return {place: at for place, at in positions.items() if place[0] not in left_out}


def check_forward(start: Positions, found: Mapping[Place, Bounds]) -> None:
    """Makes sure that no partition ends before its next offset.

    Raises:
        JobFailedError: a partition does.
    """
    for (topic, number), bounds in found.items():
        at = start.get((topic, number), 0)
        if bounds.end < at:
            raise JobFailedError(
                f"topic {topic} partition {number} ends at offset {bounds.end}, and was read up to {at} before: the "
                "topic was deleted and created again, or its log was cut; use a new checkpoint, or "
                "failOnDataLoss=false to read it from its beginning"
            )


def advanced(start: Positions, found: Mapping[Place, Bounds], limit: int | None) -> Positions:
    """The end of a micro-batch that begins at `start`: at most `limit` offsets, each partition in proportion.

    A new partition begins at its first record, and so does one that ends before its start. A partition that no longer
    exists stays where it was.
    """
    begin = {
        place: bounds.first if (at := start.get(place)) is None or at > bounds.end else at
        for place, bounds in found.items()
    }
    waiting = {place: bounds.end - begin[place] for place, bounds in found.items()}
    total = sum(waiting.values())
    if limit is not None and total > limit:
        # A partition with any records advances by at least one offset, or it might never advance.
        waiting = {place: min(number, max(1, number * limit // total)) for place, number in waiting.items()}
    return {**start, **{place: begin[place] + waiting[place] for place in found}}


def between(start: Positions, end: Positions, first: Mapping[Place, int]) -> list[OffsetRange]:
    """The ranges between two positions; see `advanced`.

    Args:
        start: the first offset of each partition.
        end: the offset behind the last one.
        first: where a partition begins if `start` does not have it, or has it behind its end.
    """
    ranges = []
    for place, to in sorted(end.items()):
        begin = start.get(place, to + 1)
        begin = first.get(place, 0) if begin > to else begin
        if begin < to:
            ranges.append(OffsetRange(*place, begin, to))
    return ranges


def tasks(whole: Sequence[OffsetRange], most_offsets: int | None, least_tasks: int | None) -> list[list[OffsetRange]]:
    """The ranges of each task.

    A range is cut until none has more than `most_offsets`, and there are `least_tasks` if offsets suffice. Those with
    few offsets go to one task, but not to fewer tasks than `least_tasks`, or than this machine has cores.
    """
    total = sum(each.end - each.start for each in whole)
    size = most_offsets or max(total, 1)
    if least_tasks is not None and len(whole) < least_tasks:
        size = min(size, max(1, -(-total // least_tasks)))
    least = least_tasks or os.cpu_count() or 1
    together = min(size, _FEW_OFFSETS, total // least)
    pieces = []
    for each in whole:
        count = -(-(each.end - each.start) // size)
        cuts = [each.start + (each.end - each.start) * n // count for n in range(count + 1)]
        pieces += [replace(each, start=begin, end=to) for begin, to in pairwise(cuts)]
    found: list[list[OffsetRange]] = []
    left = 0
    for behind, piece in zip(range(len(pieces) - 1, -1, -1), pieces, strict=True):
        offsets = piece.end - piece.start
        if offsets > left or len(found) + behind < least:
            found.append([])
            left = together
        found[-1].append(piece)
        left -= offsets
    return found
