"""A message of chunks: what has been read of it, and its state.

Source: Pulsar's post on chunking, "Combining Chunks". Setting chunks aside is ours: Pulsar drops the oldest message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

from transforms.chunk import Chunk
from transforms.chunked_message import Limits, LoggedRecord, Reason
from transforms.record import Header, Record

if TYPE_CHECKING:
    from hashlib import _Hash  # known to type checkers only

# The memory of a record of aiokafka in addition to the bytes of key, value and headers; measured with tracemalloc.
_RECORD_OVERHEAD_BYTES = 400
_HEADER_OVERHEAD_BYTES = 160
_LEAST_HEADERS = 4
LEAST_CHUNK_BYTES = _RECORD_OVERHEAD_BYTES + _LEAST_HEADERS * _HEADER_OVERHEAD_BYTES
# The memory of a message whose chunks were set aside, with its places in the tables; measured with tracemalloc.
ASIDE_BYTES = 700


class State(Enum):
    """The state of a message."""

    KEPT = "incomplete, with its chunks in memory"
    ASIDE = "incomplete, and its chunks must be read again"
    READING = "its last chunk has arrived, and its chunks are being read again"
    DELIVERED = "whole"
    DISCARDED = "discarded"


@dataclass(slots=True, eq=False)
class Message:
    """One message.

    Attributes:
        partition: where it is.
        chunk: the description of the message in the first chunk that was read.
        first: the lowest offset of its chunks that were read.
        key_hash: a hash of its key.
        below: the offset where reading began, if its first chunk was not read and may be before that; else None.
        first_ms: when its first chunk was read.
        began_ms: when its writer last started it.
        begun: how often its writers have started it.
        last: the highest offset of its chunks that were read.
        expected: the id of the next chunk.
        length: the bytes of its value that were read.
        held: its memory in bytes.
        records: its chunks; None if they are not kept.
        headers: the headers of the message itself; empty if its chunks are not kept.
        first_hash: a hash of its first chunk, once its chunks are not kept.
        moved: whether the position was set since its last chunk, so that any chunk of it may be next.
        ended: the offset at which it ended; None while it is incomplete.
        whole_at: the offset of its last chunk, if that was read before the position was set.
        reason: why it was discarded.
    """

    partition: Hashable
    chunk: Chunk
    first: int
    key_hash: int = 0
    below: int | None = None
    first_ms: float = 0.0
    began_ms: float = 0.0
    state: State = State.KEPT
    begun: int = 1
    last: int = -1
    expected: int = 0
    length: int = 0
    held: int = 0
    records: list[LoggedRecord] | None = field(default_factory=list)
    headers: tuple[Header, ...] = ()
    first_hash: int | None = None
    moved: bool = False
    ended: int | None = None
    whole_at: int | None = None
    reason: Reason | None = None
    _digest: _Hash | None = None

    def __lt__(self, other: Message) -> bool:
        return self.first < other.first

    def add(self, record: LoggedRecord) -> int:
        """Adds a chunk for which `problem` returned None; returns by how much the memory has grown."""
        piece = record.value or b""
        self.last = record.offset
        self.expected += 1
        self.length += len(piece)
        if self.records is None:
            return 0
        if self.chunk.checksum is not None:
            if self._digest is None:
                self._digest = hashlib.sha256()
            self._digest.update(piece)
        self.records.append(record)
        held = len(piece) + len(record.key or b"") + _RECORD_OVERHEAD_BYTES
        held += sum(len(name) + len(value or b"") + _HEADER_OVERHEAD_BYTES for name, value in record.headers)
        self.held += held
        return held

    def drop_chunks(self) -> None:
        """Releases the chunks; the rest is enough to re-read and to recognize them."""
        if self.records and self.below is None:
            self.first_hash = hash_of(self.records[0])
        self.records, self.headers, self._digest = None, (), None

    def set_aside(self) -> int:
        """Releases the chunks of an incomplete message; returns the freed bytes."""
        self.drop_chunks()
        self.state = State.ASIDE
        free, self.held = self.held - ASIDE_BYTES, ASIDE_BYTES
        return free

    def skip_to(self, number: int) -> None:
        """Expects this chunk next: those before it were read earlier, or will be searched."""
        self.expected = self.length = number  # each has a byte at least
        self.moved = False

    def is_same_as(self, chunk: Chunk) -> bool:
        """Whether a chunk with this uuid describes its message identically."""
        own = self.chunk
        return (chunk.count, chunk.size, chunk.checksum) == (own.count, own.size, own.checksum)

    def begins_again_with(self, chunk: Chunk, record: LoggedRecord) -> bool:
        """Whether this first chunk repeats a message that was delivered.

        Anyone who can write to the topic may know the uuid beforehand, so everything must be identical.
        """
        if self.state is State.DISCARDED or self.ended is None or record.offset <= self.ended:
            return False
        return self.first_hash == hash_of(record) and self.is_same_as(chunk)

    def problem(
        self, chunk: Chunk, record: LoggedRecord, *, torn: bool
    ) -> tuple[Reason, str] | Literal["duplicate"] | None:
        """Why a chunk does not continue the message; None if it does.

        The bytes of a message that was set aside are compared when it is read again.

        Args:
            chunk: the headers of the record.
            record: the chunk.
            torn: whether a slow writer may still send the rest of a message that was delivered.
        """
        first = self.chunk
        if not self.is_same_as(chunk):
            found = f"{chunk.count:,} chunks, {chunk.size:,} bytes, SHA-256 {chunk.checksum}"
            return "contradictory", f"chunk {chunk.id} has {found}; unlike the first"
        if record.key != self.records[0].key if self.records else hash(record.key) != self.key_hash:
            return "contradictory", f"chunk {chunk.id} has a different key than the first"
        if chunk.id < self.expected:
            same = self.records is None or self.records[chunk.id].value == record.value
            return "duplicate" if same else ("contradictory", f"chunk {chunk.id} arrived twice, with different bytes")
        if chunk.id > self.expected:
            # If the message was delivered, this is the rest from a slow writer.
            return "duplicate" if torn else ("out-of-order", f"chunk {chunk.id} arrived, expected {self.expected}")
        left = first.count - 1 - chunk.id  # each has a byte at least
        if self.length + len(record.value or b"") + left > first.size:
            return "contradictory", f"more bytes than the {first.size:,} of the message"
        return None

    def whole(self) -> Record | str:
        """The message, or what is wrong with its bytes. Its chunks are kept."""
        records = self.records or []
        value = b"".join(record.value or b"" for record in records)
        found = None if self._digest is None else self._digest.hexdigest()
        if len(value) != self.chunk.size or found != self.chunk.checksum:
            return f"{len(value):,} of {self.chunk.size:,} bytes, SHA-256 {found}"
        return Record(records[0].key, value, self.headers, records[0].timestamp)


def too_large(chunk: Chunk, limits: Limits) -> str | None:
    """Why a message cannot be assembled within the limits, judging by its first chunk; None if it can."""
    if chunk.size > limits.message_bytes:
        return f"a message of {chunk.size:,} bytes, allowed are {limits.message_bytes:,}"
    least = chunk.size + chunk.count * LEAST_CHUNK_BYTES
    if least > limits.pending_bytes:
        what = f"{chunk.size:,} bytes in {chunk.count:,} chunks"
        return f"{what} take {least:,} bytes of memory at least, allowed are {limits.pending_bytes:,}"
    return None


def hash_of(record: LoggedRecord) -> int:
    """Distinguishes a chunk from another one, within this process."""
    return hash((record.key, record.value, tuple(record.headers)))
