"""The replayed offsets of a partition of a dead-letter topic: all below an offset, and some above it.

A consumer group commits the offset. The metadata of the commit has the rest: `wideload:replayed=` and, compressed and
in base 64, pairs of varints: how many offsets were not replayed, and how many were, in turn. A colon and the id of a
run may follow, as it was written when replays had no transactions; it is not read.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from bisect import bisect_right
from collections.abc import Sequence

from transforms.errors import WideloadError
from transforms.identifiers import IDENTIFIERS

_PREFIX = "wideload:replayed="
_MOST_BYTES = 1_000_000  # after decompression
_LIMIT = IDENTIFIERS["offset-metadata"].limit


class TooManyGapsError(WideloadError):
    """The replayed offsets have more gaps than the metadata of a commit has room for."""

    def __init__(self, topic: str, partition: int, limit: int = _LIMIT) -> None:
        super().__init__(topic, partition, limit)
        self.limit = limit
        self.topic = topic
        self.partition = partition

    def __str__(self) -> str:
        return (
            f"topic {self.topic}, partition {self.partition}: there are too many gaps between the records that were "
            f"replayed: the metadata of a commit ({self.limit:,} bytes) has no room for them; replay those in the "
            "gaps too, from the beginning; --skip-unreadable skips those that cannot be read; or use another "
            "--group, which begins with nothing replayed"
        )


class ReplayedOffsets:
    """The replayed offsets of one partition.

    Attributes:
        offset: all offsets below it were replayed.
    """

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self._starts: list[int] = []  # of ranges above `offset`, apart from one another, in order
        self._ends: list[int] = []

    def __contains__(self, offset: int) -> bool:
        if offset < self.offset:
            return True
        i = bisect_right(self._starts, offset) - 1
        return i >= 0 and offset < self._ends[i]

    def add(self, start: int, end: int) -> None:
        """Adds all offsets from `start` on and before `end`."""
        first = bisect_right(self._ends, start - 1)
        while first < len(self._starts) and self._starts[first] <= end:
            start, end = min(start, self._starts.pop(first)), max(end, self._ends.pop(first))
        if start <= self.offset:
            self.offset = max(self.offset, end)
            while self._starts and self._starts[0] <= self.offset:
                self.offset = max(self.offset, self._ends[0])
                del self._starts[0], self._ends[0]
            return
        self._starts.insert(first, start)
        self._ends.insert(first, end)

    def metadata(self, limit: int = _LIMIT) -> str | None:
        """The metadata of a commit of `offset`; None if it would be too long.

        Args:
            limit: `offset.metadata.max.bytes` of the brokers.
        """
        if not self._starts:
            return ""
        octets = bytearray()
        at = self.offset
        for start, end in zip(self._starts, self._ends, strict=True):
            _put(octets, start - at)
            _put(octets, end - start)
            at = end
        text = _PREFIX + base64.b64encode(zlib.compress(bytes(octets), 9)).decode()
        return text if len(text) <= limit else None

    @classmethod
    def parse(cls, offset: int, metadata: str | None) -> ReplayedOffsets | None:
        """The offsets of a commit; None if its metadata is of another program."""
        found = cls(offset)
        if not metadata:
            return found
        if not metadata.startswith(_PREFIX):
            return None
        ranges, _, run = metadata[len(_PREFIX) :].partition(":")
        if run and not ranges:
            return found
        try:
            decoder = zlib.decompressobj()
            octets = decoder.decompress(base64.b64decode(ranges, validate=True), _MOST_BYTES)
            numbers = _numbers(octets)
        except (binascii.Error, zlib.error, ValueError):
            return None
        if len(numbers) % 2:
            return None
        at = offset
        for skipped, done in zip(numbers[::2], numbers[1::2], strict=True):
            found.add(at + skipped, at + skipped + done)
            at += skipped + done
        return found


def _put(octets: bytearray, number: int) -> None:
    while number > 0x7F:  # noqa: PLR2004  # seven bits a byte
        octets.append(0x80 | number & 0x7F)
        number >>= 7
    octets.append(number)


def _numbers(octets: bytes) -> Sequence[int]:
    numbers = []
    number = shift = 0
    for octet in octets:
        number |= (octet & 0x7F) << shift
        shift += 7
        if octet < 0x80:  # noqa: PLR2004  # the last one
            numbers.append(number)
            number = shift = 0
    if shift:
        raise ValueError("a number that does not end")
    return numbers
