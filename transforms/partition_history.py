"""What an assembler remembers of a partition: the messages that have ended, and which of them a commit must not pass.

Four tables, each of bounded size:

    ended       messages that have ended, so that a chunk of theirs that comes later is recognised
    unsettled   messages that have ended and may not be delivered yet; a commit must not pass their first chunk
    rewrites    delivered messages that a writer is writing again; a commit must not pass the first chunk of that
    torn        delivered messages that were begun more often than ended; the rest of one may come at any time

A commit that passed a rewrite would be wrong for this reason: after a restart in its middle, the assembler could not
know that the rest is a duplicate. For torn messages, `torn_ids` is what to note beside the commit.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from transforms.chunk import Chunk
from transforms.chunked_message import LoggedRecord, Reason

__all__ = ["Bounds", "End", "PartitionHistory", "hash_of", "same_message"]

_REMEMBERED = 1000  # messages of a partition in `ended`, and in `torn`
_UNSETTLED = 100  # messages of a partition in `unsettled`; more are merged
_TORN = 32  # ids of messages of a partition, in the note beside a commit; as many as a writer has in its hands
_TORN_ID_BYTES = 16


class Bounds(NamedTuple):
    """Where a message was read; `below` and `key` as in `PendingMessage`."""

    first: int
    last: int
    below: int | None
    key: int


@dataclass(frozen=True, slots=True)
class End:
    """How a message has ended.

    Attributes:
        chunk: one of its chunks.
        reason: why it was discarded; None if it was delivered.
        last: the offset at which it ended.
        first: a hash of its first chunk; None if it was discarded.
        bounds: where it was read; None if it was discarded.
    """

    chunk: Chunk
    reason: Reason | None
    last: int
    first: int | None = None
    bounds: Bounds | None = None

    def begins_again_with(self, chunk: Chunk, record: LoggedRecord) -> bool:
        """Whether this first chunk begins the same message once more.

        Anyone who can write to the topic may know the uuid beforehand, so everything must be the same.
        """
        return record.offset > self.last and self.first == hash_of(record) and same_message(chunk, self.chunk)


@dataclass(slots=True)
class _Rewrite:
    first: int  # the offset of its first chunk
    since_ms: int  # when that came
    began_ms: int  # when a first chunk came last


@dataclass(slots=True)
class _Torn:
    since: int  # the offset of the first chunk with which it was torn
    open: int = 0  # how many writers have begun the message and not ended it
    ends: list[int] = field(default_factory=list)  # where others have ended it since the last commit


class PartitionHistory:
    """The four tables of one partition.

    Attributes:
        last: the offset of the last chunk that was read.
        delivered: all that ended below this offset was delivered before the restart.
    """

    def __init__(self) -> None:
        self.last = -1
        self.delivered = 0
        self._ended: OrderedDict[str, End] = OrderedDict()
        self._unsettled: deque[tuple[int, int]] = deque()  # first chunk, and the chunk that ended it
        self._rewrites: dict[str, _Rewrite] = {}
        self._torn: dict[str, _Torn] = {}

    @property
    def rewrites(self) -> int:
        """How many delivered messages are being written again."""
        return len(self._rewrites)

    def resume(self, delivered: int, torn: Iterable[str]) -> None:
        """Takes in what was noted beside the commit at which reading begins."""
        self.delivered = delivered
        self._torn = {id_: _Torn(-1, count) for id_, count in Counter(torn).items()}

    # --- messages that end --------------------------------------------------------------------------------------------

    def end_of(self, uuid: str) -> End | None:
        """How the message ended; None if it has not, or if that was long ago."""
        return self._ended.get(uuid)

    def ends(self) -> Iterable[End]:
        """How the messages ended that are remembered."""
        return self._ended.values()

    def end(self, chunk: Chunk, reason: Reason | None, first: int | None = None, bounds: Bounds | None = None) -> None:
        """Notes that a message has ended here.

        Args:
            chunk: one of its chunks.
            reason: why it was discarded; None if it is delivered.
            first: the hash of its first chunk, if it is delivered.
            bounds: where it was read, if it is delivered.
        """
        self._ended[chunk.uuid] = End(chunk, reason, self.last, first, bounds)
        self._ended.move_to_end(chunk.uuid)
        self._rewrites.pop(chunk.uuid, None)
        if len(self._ended) > _REMEMBERED:
            forgotten, _ = self._ended.popitem(last=False)
            self._rewrites.pop(forgotten, None)

    def settle(self, first: int) -> None:
        """Notes that the message whose first chunk is at this offset has ended; commits wait until it is delivered."""
        self._unsettled.append((first, self.last))
        if len(self._unsettled) > _UNSETTLED:
            # The newest two: if it were the oldest, a commit would never pass them as long as so many are on their way.
            (low, last), (lower, _) = self._unsettled.pop(), self._unsettled.pop()
            self._unsettled.append((min(low, lower), last))

    def safe_offset(self, position: int) -> int:
        """The highest offset up to `position` that a commit may have, as far as these tables know.

        Args:
            position: all that ended below it has been delivered.
        """
        while self._unsettled and self._unsettled[0][1] < position:
            self._unsettled.popleft()
        firsts = [first for first, _ in self._unsettled] + [each.first for each in self._rewrites.values()]
        return min([position, *firsts])

    # --- delivered messages that are written again --------------------------------------------------------------------

    def begin_rewrite(self, chunk: Chunk, offset: int, now_ms: int, allowed_ms: int) -> None:
        """Takes in the first chunk of a delivered message.

        Args:
            chunk: the chunk.
            offset: its offset.
            now_ms: the time.
            allowed_ms: for so long a message that begins again and again keeps commits back; 0 for ever.
        """
        if chunk.count == 1:
            return
        self.tear(chunk, offset)
        rewrite = self._rewrites.setdefault(chunk.uuid, _Rewrite(offset, now_ms, now_ms))
        if allowed_ms and now_ms - rewrite.since_ms >= allowed_ms:
            self.settle(rewrite.first)
            rewrite.first, rewrite.since_ms = offset, now_ms
        rewrite.began_ms = now_ms

    def go_on_with_rewrite(self, chunk: Chunk) -> None:
        """Takes in a later chunk of a delivered message; the last one ends the rewrite."""
        if chunk.count > 1 and chunk.id == chunk.count - 1:
            self.mend(chunk)
            if (rewrite := self._rewrites.pop(chunk.uuid, None)) is not None:
                self.settle(rewrite.first)

    def expire_rewrites(self, now_ms: int, limit_ms: int) -> None:
        """Gives up the rewrites that began so long ago."""
        for uuid in [uuid for uuid, each in self._rewrites.items() if now_ms - each.began_ms >= limit_ms]:
            self.settle(self._rewrites.pop(uuid).first)

    # --- torn messages ------------------------------------------------------------------------------------------------

    def is_torn(self, chunk: Chunk) -> bool:
        """Whether the message of this chunk was begun more often than ended."""
        return bool(self._torn) and _torn_id(chunk) in self._torn

    def tear(self, chunk: Chunk, first: int, times: int = 1) -> None:
        """Takes in that writers have begun the message so many times more, the earliest at offset `first`."""
        torn = self._torn.setdefault(_torn_id(chunk), _Torn(first))
        torn.open += times
        if len(self._torn) > _REMEMBERED:
            del self._torn[next(iter(self._torn))]

    def mend(self, chunk: Chunk) -> None:
        """Takes in that one of these writers has ended the message."""
        torn = self._torn.get(_torn_id(chunk))
        if torn is not None and torn.open:
            torn.open -= 1
            torn.ends.append(self.last)

    def torn_ids(self, offset: int) -> tuple[str, ...]:
        found: list[str] = []
        for id_, torn in list(self._torn.items()):
            torn.ends = [end for end in torn.ends if end >= offset]  # a restart reads these again
            if not torn.open and not torn.ends:
                del self._torn[id_]
            elif torn.since < offset:  # else it is found again
                found += [id_] * (torn.open + len(torn.ends))
        return tuple(found[-_TORN:])


def same_message(one: Chunk, other: Chunk) -> bool:
    """Whether two chunks of one uuid say the same of their message."""
    return (one.count, one.size, one.checksum) == (other.count, other.size, other.checksum)


def _torn_id(chunk: Chunk) -> str:
    told = f"{chunk.uuid} {chunk.count} {chunk.size} {chunk.checksum}"
    digest = hashlib.sha256(told.encode()).digest()[:_TORN_ID_BYTES]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def hash_of(record: LoggedRecord) -> int:
    """Tells a chunk from another one, within this process."""
    return hash((record.key, record.value, tuple(record.headers)))
