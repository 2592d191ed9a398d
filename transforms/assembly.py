"""Assembly: chunks become messages again. A state machine: chunks and the time go in, messages and outcomes come out.

What happens to chunks that do not make a message; each is counted in `Counts`, and nothing leaves in silence but
duplicates:

    missing-first    there is no first chunk before them in the partition
    out-of-order     a chunk between was left out; the log is in order, so it will not come
    contradictory    count, size or checksum differ from those of the first chunk, or bytes of one chunk from themselves
    oversized        the message is larger than is allowed; said by its first chunk, before anything is kept
    corrupt          size or checksum of the whole are not what the chunks say
    expired          the last chunk did not come in time
    evicted          the oldest, where there are more messages, or more bytes, than may be pending
    duplicate        a chunk that is there already, or one of a message that has been delivered: ignored

Source: seed 004, "Combining Chunks" and "Best practices for the consumer"; design, "Chunks".
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import total_ordering
from typing import Literal, Protocol

from transforms.chunk import Chunk
from transforms.errors import MalformedChunkError
from transforms.record import Header, Record, RecordLike

__all__ = ["Assembled", "Assembler", "ChunkMessageId", "Counts", "Discarded", "Limits", "LoggedRecord", "Reason"]

Reason = Literal[
    "missing-first", "out-of-order", "contradictory", "oversized", "corrupt", "expired", "evicted", "malformed"
]

_REMEMBERED = 1000  # messages of a partition that have ended, so that a late chunk of theirs is known for what it is
_RECORD_OVERHEAD_BYTES = 400  # of a record that is kept, beside key, value and headers


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
        pending_bytes: `max.pending.chunked.bytes`, which Pulsar lacks: of all chunks that are kept.
        message_bytes: the largest message.
        expire_ms: `expire.time.of.incomplete.chunked.message.ms`, from the first chunk on; 0 for never.
    """

    messages: int = 100
    pending_bytes: int = 134_217_728
    message_bytes: int = 67_108_864
    expire_ms: int = 60_000


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
    """

    reason: Reason
    uuid: str | None
    records: tuple[LoggedRecord, ...]
    detail: str


@dataclass(slots=True)
class Counts:
    """What has happened so far.

    Attributes:
        assembled: whole messages.
        duplicates: chunks that were ignored.
        discarded: messages, or late chunks of them, by reason.
    """

    assembled: int = 0
    duplicates: int = 0
    discarded: dict[Reason, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Context:
    chunk: Chunk
    headers: tuple[Header, ...]
    began_ms: int
    records: list[LoggedRecord] = field(default_factory=list)
    held: int = 0
    length: int = 0


@dataclass(slots=True)
class _Partition:
    contexts: dict[str, _Context] = field(default_factory=dict)
    ended: OrderedDict[str, Reason | None] = field(default_factory=OrderedDict)
    delivered: int = 0


class Assembler:
    """Keeps the chunks of each message, by partition and uuid, until it is whole.

    It owns the safe offset: a commit must not pass the first chunk of a message that is not whole yet. What was
    delivered above it is one number, as everything is delivered in order: see `delivered`.

    Args:
        limits: how much may be pending.
    """

    # State that changes: `_partitions` and what is in them. One caller at a time; the oldest context is the first one
    # in `_order`, which has each pending context once.

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.counts = Counts()
        self._partitions: dict[Hashable, _Partition] = {}
        self._order: OrderedDict[tuple[Hashable, str], None] = OrderedDict()
        self._held = 0

    @property
    def pending(self) -> int:
        """How many messages are not whole."""
        return len(self._order)

    @property
    def pending_bytes(self) -> int:
        """What their chunks hold."""
        return self._held

    def add(self, partition: Hashable, record: LoggedRecord, now_ms: int) -> list[Assembled | Discarded]:
        """Takes the next chunk of a partition, in the order of offsets; gives what has ended with it.

        Args:
            partition: whatever tells partitions apart.
            record: one that `is_chunk` is true of.
            now_ms: milliseconds of a clock that does not go back.
        """
        state = self._partitions.setdefault(partition, _Partition())
        events = list(self._take(partition, state, record, now_ms))
        if record.offset < state.delivered:
            return []  # it ended so before the restart too, and that was delivered
        for event in events:
            self._count(event)
        return events

    def expire(self, now_ms: int) -> list[Discarded]:
        """Gives up what has waited too long; to be called now and then, also where no chunk comes."""
        limit = self.limits.expire_ms
        events = []
        # The oldest is first, so the rest need not be looked at.
        while limit and self._order:
            partition, uuid = next(iter(self._order))
            context = self._partitions[partition].contexts[uuid]
            if now_ms - context.began_ms < limit:
                break
            have, count = len(context.records), context.chunk.count
            events.append(self._drop(partition, uuid, "expired", f"{have} of {count} chunks came in {limit:,} ms"))
        for event in events:
            self._count(event)
        return events

    def safe_offset(self, partition: Hashable, position: int) -> int:
        """What may be committed: `position`, or the first chunk of a message that is not whole, if that is lower."""
        state = self._partitions.get(partition)
        firsts = () if state is None else (context.records[0].offset for context in state.contexts.values())
        return min(firsts, default=position) if state is not None else position

    def resume(self, partition: Hashable, delivered: int) -> None:
        """After a restart at a safe offset: what ended below `delivered` was delivered, and is not given again."""
        self._partitions.setdefault(partition, _Partition()).delivered = delivered

    def delivered(self, partition: Hashable, offset: int) -> bool:
        """Whether an ordinary record at this offset was delivered before the restart."""
        state = self._partitions.get(partition)
        return state is not None and offset < state.delivered

    def clear(self, partition: Hashable) -> None:
        """Forgets a partition that another consumer has now; those of the others stay."""
        state = self._partitions.pop(partition, None)
        for uuid, context in () if state is None else state.contexts.items():
            self._held -= context.held
            del self._order[partition, uuid]

    # --- one chunk ---------------------------------------------------------------------------------------------------

    def _take(
        self, partition: Hashable, state: _Partition, record: LoggedRecord, now_ms: int
    ) -> Iterator[Assembled | Discarded]:
        try:
            chunk, headers = Chunk.parse(record)
        except MalformedChunkError as exc:
            yield Discarded("malformed", None, (record,), str(exc))
            return
        context = state.contexts.get(chunk.uuid)
        if context is None:
            if chunk.id:
                yield from self._late(state, chunk, record)
                return
            limit = min(self.limits.message_bytes, self.limits.pending_bytes)
            if chunk.size > limit:
                self._end(state, chunk.uuid, "oversized")
                detail = f"a message of {chunk.size:,} bytes, allowed are {limit:,}"
                yield Discarded("oversized", chunk.uuid, (record,), detail)
                return
            context = _Context(chunk, headers, now_ms)
            state.ended.pop(chunk.uuid, None)
        elif (problem := self._problem(context, chunk, record)) is not None:
            reason, detail = problem
            if reason is None:
                self.counts.duplicates += 1
                return
            dropped = self._drop(partition, chunk.uuid, reason, detail)
            yield Discarded(reason, chunk.uuid, (*dropped.records, record), detail)
            return
        yield from self._keep(partition, state, context, record)
        if len(context.records) == context.chunk.count:
            yield self._finish(partition, state, context)

    def _late(self, state: _Partition, chunk: Chunk, record: LoggedRecord) -> Iterator[Discarded]:
        reason = state.ended.get(chunk.uuid, "missing-first")
        if reason is None:
            self.counts.duplicates += 1
            return
        self._end(state, chunk.uuid, reason)
        detail = f"chunk {chunk.id} of {chunk.count}, and no first one before it"
        if reason != "missing-first":
            detail = f"chunk {chunk.id} of {chunk.count} of a message that was discarded: {reason}"
        yield Discarded(reason, chunk.uuid, (record,), detail)

    def _problem(self, context: _Context, chunk: Chunk, record: LoggedRecord) -> tuple[Reason | None, str] | None:
        """Why the chunk does not go on with its message; without a reason it is a duplicate. None where it does."""
        first = context.chunk
        if (chunk.count, chunk.size, chunk.checksum) != (first.count, first.size, first.checksum):
            return "contradictory", f"chunk {chunk.id} says {chunk.count} chunks, {chunk.size:,} bytes"
        expected = len(context.records)
        if chunk.id < expected:
            same = context.records[chunk.id].value == record.value
            return (None, "") if same else ("contradictory", f"chunk {chunk.id} came twice, with other bytes")
        if chunk.id > expected:
            return "out-of-order", f"chunk {chunk.id} came, chunk {expected} was next"
        if context.length + len(record.value or b"") > first.size:
            return "contradictory", f"more bytes than the {first.size:,} of the message"
        return None

    def _keep(
        self, partition: Hashable, state: _Partition, context: _Context, record: LoggedRecord
    ) -> Iterator[Discarded]:
        uuid = context.chunk.uuid
        held = len(record.value or b"") + len(record.key or b"") + _RECORD_OVERHEAD_BYTES
        held += sum(len(name) + len(value or b"") for name, value in record.headers)
        state.contexts[uuid] = context
        self._order.setdefault((partition, uuid))
        context.records.append(record)
        context.held += held
        context.length += len(record.value or b"")
        self._held += held
        while len(self._order) > self.limits.messages or self._held > self.limits.pending_bytes:
            oldest = next((place for place in self._order if place != (partition, uuid)), None)
            if oldest is None:
                break  # alone it may go over by what headers and keys take beside the value
            yield self._drop(*oldest, "evicted", "more messages, or more bytes, are pending than may be")

    def _finish(self, partition: Hashable, state: _Partition, context: _Context) -> Assembled | Discarded:
        chunk = context.chunk
        records = tuple(context.records)
        value = b"".join(record.value or b"" for record in records)
        found = hashlib.sha256(value).hexdigest()
        if len(value) != chunk.size or found != (chunk.checksum or found):
            detail = f"{len(value):,} of {chunk.size:,} bytes, SHA-256 {found}"
            return self._drop(partition, chunk.uuid, "corrupt", detail)
        self._forget(partition, state, chunk.uuid)
        self._end(state, chunk.uuid, None)
        first, last = records[0], records[-1]
        return Assembled(
            Record(first.key, value, context.headers, first.timestamp), ChunkMessageId(first.offset, last.offset)
        )

    # --- the end of a message ----------------------------------------------------------------------------------------

    def _drop(self, partition: Hashable, uuid: str, reason: Reason, detail: str) -> Discarded:
        state = self._partitions[partition]
        context = self._forget(partition, state, uuid)
        self._end(state, uuid, reason)
        return Discarded(reason, uuid, tuple(context.records), detail)

    def _forget(self, partition: Hashable, state: _Partition, uuid: str) -> _Context:
        context = state.contexts.pop(uuid)
        del self._order[partition, uuid]
        self._held -= context.held
        return context

    def _end(self, state: _Partition, uuid: str, reason: Reason | None) -> None:
        state.ended[uuid] = reason
        state.ended.move_to_end(uuid)
        if len(state.ended) > _REMEMBERED:
            state.ended.popitem(last=False)

    def _count(self, event: Assembled | Discarded) -> None:
        if isinstance(event, Assembled):
            self.counts.assembled += 1
        else:
            self.counts.discarded[event.reason] = self.counts.discarded.get(event.reason, 0) + 1
