"""What goes into an assembler of chunks, and what comes out of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import total_ordering
from typing import Literal, Protocol

from transforms.record import Record, RecordLike

__all__ = ["Assembled", "ChunkMessageId", "Counts", "Discarded", "Limits", "LoggedRecord", "Reason"]

Reason = Literal[
    "missing-first", "out-of-order", "contradictory", "oversized", "corrupt", "expired", "evicted", "malformed"
]


class LoggedRecord(RecordLike, Protocol):
    """A record, and where it stands in its partition."""

    @property
    def offset(self) -> int: ...


@total_ordering
@dataclass(frozen=True, slots=True)
class ChunkMessageId:
    """Where a message of chunks stands in its partition; ordered as messages are delivered, by their last chunks.

    Source: seed 004, "Introducing Chunk Message ID" (PIP 107). Seeking to it means seeking to `first`.

    Attributes:
        first: offset of the first chunk.
        last: offset of the last one.
    """

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise ValueError(f"no message of chunks is from offset {self.first} to {self.last}")

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
        match = re.fullmatch(r"([0-9]{1,19})-([0-9]{1,19})", text, re.ASCII)
        if match is None:
            raise ValueError(f"{text[:100]!r} is not FIRST-LAST, two offsets")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be pending.

    Attributes:
        messages: `max.pending.chunked.message`.
        pending_bytes: `max.pending.chunked.bytes`, which Pulsar lacks: of all chunks that are kept, keys, headers and
            what Python holds for each included. The message that is being put together comes on top.
        message_bytes: the largest value of a message.
        expire_ms: `expire.time.of.incomplete.chunked.message.ms`, from the first chunk on; 0 for never.

    Raises:
        ValueError: one is below 1, or `expire_ms` below 0.
    """

    messages: int = 100
    pending_bytes: int = 134_217_728
    message_bytes: int = 67_108_864
    expire_ms: int = 60_000

    def __post_init__(self) -> None:
        if min(self.messages, self.pending_bytes, self.message_bytes) < 1 or self.expire_ms < 0:
            raise ValueError(f"nothing could be pending within {self}")


@dataclass(frozen=True, slots=True)
class Assembled:
    """A whole message.

    Attributes:
        record: as it was before it was split.
        id: where its first and its last chunk stand.
    """

    record: Record
    id: ChunkMessageId


@dataclass(frozen=True, slots=True)
class Discarded:
    """Chunks that will not be a message.

    Attributes:
        reason: why; see the module.
        uuid: the message's; None where it cannot be read.
        records: the chunks themselves, as they came.
        detail: for people: what was found.
        late: True for one more chunk of a message that has been discarded before.
    """

    reason: Reason
    uuid: str | None
    records: tuple[LoggedRecord, ...]
    detail: str
    late: bool = False


@dataclass(slots=True)
class Counts:
    """What has happened so far.

    Attributes:
        assembled: whole messages.
        duplicates: chunks that were ignored.
        late: chunks that came when their message had been discarded.
        discarded: messages by reason; for malformed ones, chunks.
    """

    assembled: int = 0
    duplicates: int = 0
    late: int = 0
    discarded: dict[Reason, int] = field(default_factory=dict)
