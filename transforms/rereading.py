"""A message whose chunks are read again, from the log: what `Assembler` with `on_reread` asks for.

The caller reads the offsets from `Reread.first` to `Reread.last`, and gives each record to `take`. If the first chunk
is not known, the caller looks for it before that, and begins there: see `Beginnings`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from transforms.assembly import Assembler
from transforms.chunk import Chunk, is_chunk
from transforms.chunked_message import Assembled, Discarded, Limits, LoggedRecord, Reread
from transforms.errors import MalformedChunkError
from transforms.partition_history import hash_of
from transforms.pending_message import LEAST_CHUNK_BYTES

__all__ = ["Beginnings", "Rereading"]

_STEP = 500  # so many offsets are searched at once


class Rereading:
    """Puts one message together. Holds its chunks, and those of no other message.

    Args:
        limits: those of the assembler that gave `reread`.
        reread: the message.

    Attributes:
        beginning: a hash of its first chunk; None if that was not read.
    """

    def __init__(self, limits: Limits, reread: Reread) -> None:
        self._reread = reread
        self._limits = limits
        # Time has told its part when the message was read first.
        self._assembler = Assembler(replace(limits, messages=1, expire_ms=0))
        self._chunks: dict[Hashable, LoggedRecord] = {}
        self._bytes = 0
        self.beginning: int | None = None
        self._repeats = False
        self._outcome: Assembled | Discarded | None = None

    def take(self, record: LoggedRecord) -> None:
        """Takes the next record of the partition; those that are not of the message are ignored."""
        if (chunk := _chunk(record)) is None or chunk.uuid != self._reread.uuid:
            return
        if not chunk.id:
            self.beginning = hash_of(record)
        size = len(record.value or b"") + LEAST_CHUNK_BYTES
        same = chunk, record.key, hash(record.value)
        if same not in self._chunks and self._bytes + size <= 2 * self._limits.pending_bytes:
            self._chunks[same] = record
            self._bytes += size
        for event in self._assembler.add(0, record, 0):
            if isinstance(event, Discarded):
                self._outcome = self._outcome or event
            elif event.id.last == self._reread.last:
                self._outcome = event
            else:  # it was whole before: what came later is of a writer that wrote it once more
                self._repeats = True

    def outcome(self) -> Assembled | Discarded | None:
        """What the chunks make; None if the message was whole before, and they only repeat it.

        Chunks that have left the log meanwhile are `missing-first`. If none is left, the result has `gone`.
        """
        reread, chunks = self._reread, tuple(self._chunks.values())
        if reread.reason is None and isinstance(self._outcome, Assembled):
            return self._outcome
        if self._repeats:
            return None
        gone = None if chunks else reread
        if reread.reason is not None:
            return Discarded(reread.reason, reread.uuid, chunks, reread.detail, gone=gone)
        if isinstance(self._outcome, Discarded):
            return replace(self._outcome, records=chunks or self._outcome.records)
        detail = f"{len(chunks)} chunks were left when it was read again, up to offset {reread.last}"
        return Discarded("missing-first", reread.uuid, chunks, detail, gone=gone)


class Beginnings:
    """Where messages begin below the offset where reading began; the log is searched backwards, and only once.

    Args:
        below: that offset.
        floor: the lowest offset that may be searched.
    """

    def __init__(self, below: int, floor: int) -> None:
        self.below = below
        self._floor = floor
        self._searched = below
        self._found: dict[str, int] = {}
        self._now: dict[str, int] = {}

    def missing(self, uuid: str) -> tuple[int, int] | None:
        """The range to search next, for `take` and then `searched`; None if that is of no use any more."""
        if uuid in self._found or self._searched <= self._floor:
            return None
        return max(self._floor, self._searched - _STEP), self._searched

    def take(self, record: LoggedRecord) -> None:
        """Takes the next record of the range."""
        chunk = _chunk(record)
        if chunk is not None and not chunk.id:
            self._now[chunk.uuid] = record.offset  # the last time that it begins

    def searched(self, begin: int) -> None:
        """Takes in that a range was read, from `begin` on."""
        self._found = self._now | self._found
        self._now = {}
        self._searched = begin

    def of(self, uuid: str) -> int | None:
        """The offset of the first chunk of a message, if it was found."""
        return self._found.get(uuid)


def _chunk(record: LoggedRecord) -> Chunk | None:
    if not record.headers or not is_chunk(record.headers):
        return None
    try:
        return Chunk.parse(record)[0]
    except MalformedChunkError:
        return None
