"""A journal of messages: what was sent, what has come, and what that says of losses, copies and order.

Messages are numbered from 0 on, partition by partition. What is kept of each is a digest and a mark.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field


def digest(value: bytes | None) -> bytes:
    """SHA-256; a null has one of its own."""
    return hashlib.sha256(b"null" if value is None else b"value" + value).digest()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a journal has found so far.

    Attributes:
        sent, received: messages; `received` counts each once.
        bytes: of the values that were received, each once.
        pending: sent, and not received yet; at the end they are lost.
        duplicated: copies of what had been received.
        disordered: messages that came for the first time behind a later one of their partition.
        changed: whose value is not what was sent.
        unknown: of which none with this number was sent.
    """

    sent: int
    received: int
    bytes: int
    pending: int
    duplicated: int
    disordered: int
    changed: int
    unknown: int


@dataclass(slots=True)
class _Partition:
    digests: list[bytes] = field(default_factory=list)
    seen: bytearray = field(default_factory=bytearray)
    highest: int = -1


class Journal:
    """The messages of one route. Not for several threads."""

    def __init__(self, partitions: int) -> None:
        self._partitions = [_Partition() for _ in range(partitions)]
        self._received = self._bytes = self._duplicated = self._disordered = self._changed = self._unknown = 0

    def sent(self, partition: int, value: bytes | None) -> int:
        """Notes the next message of a partition before it is sent, and returns its number."""
        place = self._partitions[partition]
        place.digests.append(digest(value))
        place.seen.append(0)
        return len(place.digests) - 1

    def received(self, partition: int, number: int, value: bytes | None) -> None:
        """Notes a message that has come."""
        place = self._partitions[partition]
        if not 0 <= number < len(place.digests):
            self._unknown += 1
            return
        if digest(value) != place.digests[number]:
            self._changed += 1
        if place.seen[number]:
            self._duplicated += 1
            return
        place.seen[number] = 1
        self._received += 1
        self._bytes += len(value or b"")
        if number < place.highest:
            self._disordered += 1
        place.highest = max(place.highest, number)

    def missing(self) -> list[tuple[int, int]]:
        """Partition and number of what was sent and has not come, some of it."""
        found = [
            (index, number)
            for index, place in enumerate(self._partitions)
            for number, seen in enumerate(place.seen)
            if not seen
        ]
        return found[:20]

    def verdict(self) -> Verdict:
        """What is found by now."""
        sent = sum(len(place.digests) for place in self._partitions)
        return Verdict(
            sent=sent,
            received=self._received,
            bytes=self._bytes,
            pending=sent - self._received,
            duplicated=self._duplicated,
            disordered=self._disordered,
            changed=self._changed,
            unknown=self._unknown,
        )
