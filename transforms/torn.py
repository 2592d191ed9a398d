"""Torn messages: messages that were delivered, but started more often than ended, so that more chunks may follow.

A writer that seems dead is replaced by another one, which writes its message again, and that is delivered. If the first
writer was only slow, it later writes the rest of its message, without the start. The rest is a duplicate, and after a
restart only the metadata of a commit shows this. An id is 22 characters of base64: a hash of uuid, count, size and
checksum.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from transforms.chunk import Chunk

REMEMBERED = 1_000
_NOTED = 32  # ids of a partition in the metadata of a commit; as many as a writer has in flight
_ID_BYTES = 16


@dataclass(slots=True)
class _Torn:
    since: int  # the offset of the first chunk that has torn it
    open: int = 0  # how many writers have started the message and not ended it
    ends: list[int] = field(default_factory=list)  # where others have ended it since the last commit


class TornMessages:
    """The torn messages of one partition, by their ids."""

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._torn = {id_: _Torn(-1, count) for id_, count in Counter(ids).items()}

    def has(self, chunk: Chunk) -> bool:
        """Whether the message of this chunk was started more often than ended."""
        return bool(self._torn) and _id(chunk) in self._torn

    def tear(self, chunk: Chunk, first: int, times: int = 1) -> None:
        """Counts `times` more starts of the message, the earliest at offset `first`."""
        torn = self._torn.setdefault(_id(chunk), _Torn(first))
        torn.open += times
        if len(self._torn) > REMEMBERED:
            del self._torn[next(iter(self._torn))]

    def mend(self, chunk: Chunk, offset: int) -> None:
        """Counts that one of these writers has ended the message, at this offset."""
        torn = self._torn.get(_id(chunk))
        if torn is not None and torn.open:
            torn.open -= 1
            torn.ends.append(offset)

    def ids(self, offset: int) -> tuple[str, ...]:
        """The ids to note in a commit of `offset`: the newest ones, each as often as there are writers."""
        found: list[str] = []
        for id_, torn in list(self._torn.items()):
            torn.ends = [end for end in torn.ends if end >= offset]  # a restart reads these again
            if not torn.open and not torn.ends:
                del self._torn[id_]
            elif torn.since < offset:  # otherwise it is read again
                found += [id_] * (torn.open + len(torn.ends))
        return tuple(found[-_NOTED:])


def _id(chunk: Chunk) -> str:
    text = f"{chunk.uuid} {chunk.count} {chunk.size} {chunk.checksum}"
    digest = hashlib.sha256(text.encode()).digest()[:_ID_BYTES]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
