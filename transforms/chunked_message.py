"""The input and output of `transforms.reassembly`: records of a log, limits, messages, discarded chunks."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import total_ordering
from typing import Literal, Protocol

from transforms.record import Record, RecordLike

Reason = Literal[
    "missing-first", "out-of-order", "contradictory", "oversized", "corrupt", "expired", "evicted", "malformed"
]


class LoggedRecord(RecordLike, Protocol):
    """A record with its offset."""

    @property
    def offset(self) -> int: ...


@total_ordering
@dataclass(frozen=True, slots=True)
class ChunkMessageId:
    """The position of a chunked message in its partition; ordered by the last chunk, as messages are delivered.

    Source: Pulsar's post on chunking, "Introducing Chunk Message ID" (PIP 107). Seeking to it means seeking to `first`.

    Attributes:
        first: offset of the first chunk.
        last: offset of the last one.
    """

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise ValueError(f"no message spans chunks from offset {self.first} to {self.last}")

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, ChunkMessageId):
            return NotImplemented
        return (self.last, self.first) < (other.last, other.first)

    @classmethod
    def parse(cls, text: str) -> ChunkMessageId:
        """The inverse of `str`.

        Raises:
            ValueError: it is not two offsets with a hyphen between them.
        """
        match = re.fullmatch(r"([0-9]{1,19})-([0-9]{1,19})", text)
        if match is None:
            raise ValueError(f"{text[:100]!r} is not FIRST-LAST, two offsets")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits for pending messages.

    Attributes:
        messages: `max.pending.chunked.message`.
        pending_bytes: `max.pending.chunked.bytes`, which Pulsar lacks: of all chunks that are held, with keys, headers
            and the overhead of Python. The message that is being assembled comes on top.
        message_bytes: the largest value of a message.
        expire_ms: `expire.time.of.incomplete.chunked.message.ms`, from the first chunk on; 0 for never.
        drops_oldest: `auto.ack.oldest.chunked.message.on.queue.full`: whether evicted messages are dropped, and only
            counted.

    Raises:
        ValueError: one is below 1, or `expire_ms` below 0.
    """

    messages: int = 100
    pending_bytes: int = 134_217_728
    message_bytes: int = 67_108_864
    expire_ms: int = 60_000
    drops_oldest: bool = False

    def __post_init__(self) -> None:
        if min(self.messages, self.pending_bytes, self.message_bytes) < 1 or self.expire_ms < 0:
            raise ValueError(f"nothing could be pending within {self}")


@dataclass(frozen=True, slots=True)
class Assembled:
    """A whole message.

    Attributes:
        record: as it was before it was split.
        id: the offsets of its first and last chunk.
    """

    record: Record
    id: ChunkMessageId


@dataclass(frozen=True, slots=True)
class Gone:
    """The place of chunks that have left the log: offset `first` to `last` of a partition."""

    partition: Hashable
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Discarded:
    """Chunks that do not make a message.

    Attributes:
        reason: see `transforms.reassembly`.
        uuid: of the message; None if it cannot be read.
        records: the chunks, as they were read; empty if they had to be re-read, and none was left in the log.
        detail: the finding, for people.
        late: True for one more chunk of a message that has been discarded before.
        gone: where the chunks were, if `records` is empty.
    """

    reason: Reason
    uuid: str | None
    records: tuple[LoggedRecord, ...]
    detail: str
    late: bool = False
    gone: Gone | None = None

    @property
    def first(self) -> int:
        """The offset of the first chunk that was read."""
        return self.records[0].offset if self.gone is None else self.gone.first

    @property
    def last(self) -> int:
        """The offset of the last chunk that was read."""
        return self.records[-1].offset if self.gone is None else self.gone.last


@dataclass(slots=True)
class Counts:
    """Counters.

    Attributes:
        assembled: messages that were delivered whole.
        duplicates: chunks that were ignored.
        late: chunks that arrived after their message was discarded.
        set_aside: messages whose chunks were released, to be re-read from the log.
        discarded: messages by reason; for malformed ones, chunks.
    """

    assembled: int = 0
    duplicates: int = 0
    late: int = 0
    set_aside: int = 0
    discarded: dict[Reason, int] = field(default_factory=dict)
