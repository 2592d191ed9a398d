"""A range of offsets to be read, for a message whose chunks were not kept, or that began before the reading did.

`Reassembly` returns it as an action. The caller reads the log from `start` up to `end`, passes each record to `take`,
and then calls `finish`. If that returns False, `start` and `end` are the next range. Otherwise `Reassembly.resolve` has
the outcome. After an error, the caller calls `begin` and reads the range again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from transforms.chunk import Chunk, is_chunk
from transforms.chunked_message import Assembled, Discarded, Gone, Limits, LoggedRecord, Reason
from transforms.errors import MalformedChunkError
from transforms.message import LEAST_CHUNK_BYTES, Message, hash_of

_STEP = 500  # how many offsets are searched at a time

Receive = Callable[[LoggedRecord], Sequence[object]]


class Beginnings:
    """Where messages begin below the offset where reading began; the log is searched backwards, and only once.

    Args:
        below: that offset.
        lookback: how many offsets before it may be searched.
    """

    def __init__(self, below: int, lookback: int) -> None:
        self.below = below
        self._floor = max(0, below - lookback)
        self._searched = below
        self._found: dict[str, int] = {}
        self._now: dict[str, int] = {}

    def next_range(self, uuid: str) -> tuple[int, int] | None:
        """The range to search next for a message; None if it was found, or does not exist."""
        self._now = {}
        if uuid in self._found or self._searched <= self._floor:
            return None
        return max(self._floor, self._searched - _STEP), self._searched

    def take(self, chunk: Chunk, offset: int) -> None:
        """Processes the next chunk of the range."""
        if not chunk.id:
            self._now[chunk.uuid] = offset  # its last start

    def finish(self, begin: int, log_start: int) -> None:
        """Ends a range; there is nothing in the log before `log_start`."""
        self._found = self._now | self._found
        self._searched = begin if begin > log_start else self._floor

    def of(self, uuid: str) -> int | None:
        """The offset of the first chunk of a message, if it was found."""
        return self._found.get(uuid)


class ReadRange:
    """See the module. Holds the chunks of one message.

    Attributes:
        partition: where the message is.
        uuid: of the message.
        size: of its value, according to its chunks.
        first: the lowest offset of its chunks that were read.
        last: the highest one.
        reason: why the message is discarded; None if its last chunk has arrived.
        detail: the finding, for people.
        start: the offset to read from.
        end: the offset after the last one to read.
        searches: whether the range is searched for the first chunk.
        first_hash: a hash of its first chunk; None if that was not read.
    """

    def __init__(
        self,
        message: Message,
        last: int,
        reason: Reason | None,
        detail: str,
        limits: Limits,
        beginnings: Beginnings | None,
        receiver: Callable[[], Receive],
    ) -> None:
        self.partition: Hashable = message.partition
        self.uuid, self.size, self.first, self.last = message.chunk.uuid, message.chunk.size, message.first, last
        self.reason, self.detail = reason, detail
        self._most_bytes = 2 * limits.pending_bytes
        self._beginnings = beginnings
        self._receiver = receiver
        self.begin()

    def begin(self) -> None:
        """Starts the range, or restarts it."""
        self.first_hash: int | None = None
        self._receive = self._receiver()
        self._chunks: dict[Hashable, LoggedRecord] = {}
        self._bytes = 0
        self._repeats = False
        self._outcome: Assembled | Discarded | None = None
        range_ = None if self._beginnings is None else self._beginnings.next_range(self.uuid)
        self.searches = range_ is not None
        if range_ is not None:
            self.start, self.end = range_
            return
        found = None if self._beginnings is None else self._beginnings.of(self.uuid)
        self.start, self.end = self.first if found is None else found, self.last + 1

    def take(self, record: LoggedRecord) -> None:
        """Processes the next record of the range; records of other messages are ignored."""
        if not record.headers or not is_chunk(record.headers):
            return
        try:
            chunk, _ = Chunk.parse(record)
        except MalformedChunkError:
            return
        if self.searches and self._beginnings is not None:
            self._beginnings.take(chunk, record.offset)
        elif chunk.uuid == self.uuid:
            self._add(chunk, record)

    def finish(self, log_start: int) -> bool:
        """Ends the range; whether it was the last one.

        Args:
            log_start: the lowest offset that is in the log.
        """
        if not self.searches or self._beginnings is None:
            return True
        self._beginnings.finish(self.start, log_start)
        self.begin()
        return False

    def outcome(self) -> Assembled | Discarded | None:
        """The result of the chunks; None if the message was whole before, and they only repeat it.

        Chunks that have left the log are `missing-first`. If none is left, the result has `gone`.
        """
        chunks = tuple(self._chunks.values())
        if self.reason is None and isinstance(self._outcome, Assembled):
            return self._outcome
        if self._repeats:
            return None
        gone = None if chunks else Gone(self.partition, self.first, self.last)
        if self.reason is not None:
            return Discarded(self.reason, self.uuid, chunks, self.detail, gone=gone)
        if isinstance(self._outcome, Discarded):
            return replace(self._outcome, records=chunks or self._outcome.records)
        detail = f"{len(chunks)} chunks were left when it was re-read, up to offset {self.last}"
        return Discarded("missing-first", self.uuid, chunks, detail, gone=gone)

    def _add(self, chunk: Chunk, record: LoggedRecord) -> None:
        if not chunk.id:
            self.first_hash = hash_of(record)
        size = len(record.value or b"") + LEAST_CHUNK_BYTES
        same = chunk, record.key, hash(record.value)
        if same not in self._chunks and self._bytes + size <= self._most_bytes:
            self._chunks[same] = record
            self._bytes += size
        for event in self._receive(record):
            if isinstance(event, Discarded):
                self._outcome = self._outcome or event
            elif isinstance(event, Assembled) and event.id.last == self.last:
                self._outcome = event
            else:  # it was whole before; the later chunks are of a writer that wrote it again
                self._repeats = True
