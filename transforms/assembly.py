"""Assembly: chunks become messages again. A state machine: chunks and the time go in, messages and outcomes come out.

What happens to chunks that do not make a message; each is counted in `Counts`, and nothing leaves in silence but
duplicates:

    malformed        the headers are not those of a chunk
    missing-first    there is no first chunk before them in the partition
    out-of-order     a chunk between was left out; the log is in order, so it will not come
    contradictory    key, count, size or checksum differ from those of the first chunk, bytes of one chunk from
                     themselves, or there are more bytes than the message has
    oversized        the message is larger than is allowed, which its first chunk says, before anything is kept; or its
                     keys and headers make it larger than all that may be pending
    corrupt          size or checksum of the whole are not what the chunks say
    expired          the last chunk did not come in time
    evicted          the oldest, where there are more messages, or more bytes, than may be pending
    duplicate        a chunk that is there already, or one of a message that has been delivered: ignored

A chunk that comes when its message has been discarded is given back too, with the message's reason, and marked `late`.

A message whose writer was taken for dead is written again by another one, and is delivered. If the first writer was
only asleep, it goes on in the middle when it wakes: the rest of a message without its beginning. So the messages that
were begun more often than ended are remembered, also beyond a restart: see `Assembler.torn`.

Source: seed 004, "Combining Chunks" and "Best practices for the consumer"; design, "Chunks".
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from transforms.chunk import Chunk
from transforms.chunked_message import Assembled, ChunkMessageId, Counts, Discarded, Limits, LoggedRecord, Reason
from transforms.errors import MalformedChunkError
from transforms.partition_history import PartitionHistory, same_message
from transforms.record import Header, Record

if TYPE_CHECKING:
    from hashlib import _Hash  # known to type checkers only

__all__ = ["Assembled", "Assembler", "ChunkMessageId", "Counts", "Discarded", "Limits", "LoggedRecord", "Reason"]

_BEGINNINGS = 10  # times the time that a message may wait: as long may its writer begin again
# What Python holds of a record of aiokafka beside the bytes of key, value and headers; measured with tracemalloc.
_RECORD_OVERHEAD_BYTES = 400
_HEADER_OVERHEAD_BYTES = 160
_LEAST_HEADERS = 4
# Discarded for what others hold, or for the time that has passed: when the same chunks come again, it may be otherwise.
_BY_CHANCE = frozenset({"expired", "evicted"})


@dataclass(slots=True)
class _Context:
    chunk: Chunk
    headers: tuple[Header, ...]
    first_ms: int
    began_ms: int
    digest: _Hash | None
    records: list[LoggedRecord] = field(default_factory=list)
    held: int = 0
    length: int = 0
    begun: int = 1


@dataclass(slots=True)
class _Partition:
    contexts: dict[str, _Context] = field(default_factory=dict)
    history: PartitionHistory = field(default_factory=PartitionHistory)


class Assembler:
    """Keeps the chunks of each message, by partition and uuid, until it is whole.

    It owns the safe offset: a commit must not pass the first chunk of a message that is not whole, or not delivered
    yet. What was delivered above it is one number, as everything is delivered in order: see `delivered_below`.

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
        self._rewrite_ms = _BEGINNINGS * limits.expire_ms  # 0 for ever

    @property
    def pending(self) -> int:
        """How many messages are not whole."""
        return len(self._order)

    @property
    def repeating(self) -> int:
        """How many messages that were delivered are just being written again."""
        return sum(state.history.rewrites for state in self._partitions.values())

    @property
    def pending_bytes(self) -> int:
        """What their chunks hold."""
        return self._held

    def add(self, partition: Hashable, record: LoggedRecord, now_ms: int) -> list[Assembled | Discarded]:
        """Takes the next chunk of a partition, in the order of offsets; gives what has ended with it.

        An evicted message may be of another partition. What it and an expired one give back must be dealt with before
        the next commit of their partition, for no offset waits for it.

        Args:
            partition: whatever tells partitions apart. Where its position is set back, `clear` it first.
            record: one that `is_chunk` is true of.
            now_ms: milliseconds of a clock that does not go back. It should stand still while nothing is read, or
                messages expire whose chunks are waiting in the log.
        """
        state = self._partitions.setdefault(partition, _Partition())
        state.history.last = record.offset
        events = list(self._take(partition, state, record, now_ms))
        if record.offset < state.history.delivered:  # what ended so before the restart too, and was delivered
            events = [event for event in events if isinstance(event, Discarded) and event.reason in _BY_CHANCE]
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
        for state in self._partitions.values() if limit else ():
            state.history.expire_rewrites(now_ms, limit)
        return events

    def safe_offset(self, partition: Hashable, position: int) -> int:
        """What may be committed: `position`, or the lowest first chunk of a message that is not delivered.

        Nor does it pass the first chunk of a message that was delivered and is being written again: after a restart in
        the middle of that, nobody could know the rest for what it is.

        Args:
            partition: as in `add`.
            position: all that ended below it has been delivered. It does not go back.
        """
        state = self._partitions.get(partition)
        if state is None:
            return position
        firsts = [context.records[0].offset for context in state.contexts.values()]
        return min([state.history.safe_offset(position), *firsts])

    def delivered_below(self, partition: Hashable, position: int) -> int:
        """What to note beside a commit: `position`, or what was noted before the restart, where that is higher."""
        state = self._partitions.get(partition)
        return position if state is None else max(position, state.history.delivered)

    def torn(self, partition: Hashable, offset: int) -> tuple[str, ...]:
        """What to note beside a commit of `offset`: ids of messages that were begun more often than ended below it.

        They are delivered. The rest of such a message may come at any time, from a writer that was taken for dead; it
        is a duplicate, and after a restart nobody could know that without this. Only the newest are given, and one as
        often as there are writers. Each is 22 characters of base64: a hash of what the chunks say of their message.
        """
        state = self._partitions.get(partition)
        return () if state is None else state.history.torn_ids(offset)

    def resume(self, partition: Hashable, delivered: int, torn: Iterable[str] = ()) -> None:
        """After a restart at a safe offset: what ended below `delivered` was delivered, and is not given again.

        Only what was evicted or has expired may be given back again, since the next time it may be another message
        that has to go.

        Args:
            partition: as in `add`.
            delivered: what `delivered_below` said at the commit.
            torn: what `torn` said then.
        """
        self._partitions.setdefault(partition, _Partition()).history.resume(delivered, torn)

    def delivered(self, partition: Hashable, offset: int) -> bool:
        """Whether an ordinary record at this offset was delivered before the restart."""
        state = self._partitions.get(partition)
        return state is not None and offset < state.history.delivered

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
        if context is not None and not chunk.id and 0 < self._rewrite_ms <= now_ms - context.first_ms:
            times = f"its writer began again and again for {now_ms - context.first_ms:,} ms"
            yield self._drop(partition, chunk.uuid, "expired", times)
            context = None
        if context is None:
            if chunk.id:
                yield from self._late(state, chunk, record)
                return
            end = state.history.end_of(chunk.uuid)
            if end is not None and end.begins_again_with(chunk, record):
                self.counts.duplicates += 1
                state.history.begin_rewrite(chunk, record.offset, now_ms, self._rewrite_ms)
                return
            if (detail := self._too_large(chunk)) is not None:
                state.history.end(chunk, "oversized")
                yield Discarded("oversized", chunk.uuid, (record,), detail)
                return
            context = _Context(chunk, headers, now_ms, now_ms, None if chunk.checksum is None else hashlib.sha256())
        elif (problem := self._problem(state, context, chunk, record)) is not None:
            reason, detail = problem
            if reason is None:
                self._duplicate(partition, context, chunk, now_ms)
                return
            dropped = self._drop(partition, chunk.uuid, reason, detail)
            yield Discarded(reason, chunk.uuid, (*dropped.records, record), detail)
            return
        yield from self._keep(partition, state, context, record)
        if chunk.uuid in state.contexts and len(context.records) == context.chunk.count:
            yield self._finish(partition, state, context)

    def _duplicate(self, partition: Hashable, context: _Context, chunk: Chunk, now_ms: int) -> None:
        self.counts.duplicates += 1
        if not chunk.id:  # the writer begins again, and has as long as the first time
            context.begun += 1
            context.began_ms = now_ms
            self._order.move_to_end((partition, chunk.uuid))
        elif chunk.id == chunk.count - 1:
            self._partitions[partition].history.mend(chunk)

    def _too_large(self, chunk: Chunk) -> str | None:
        if chunk.size > self.limits.message_bytes:
            return f"a message of {chunk.size:,} bytes, allowed are {self.limits.message_bytes:,}"
        least = chunk.size + chunk.count * (_RECORD_OVERHEAD_BYTES + _LEAST_HEADERS * _HEADER_OVERHEAD_BYTES)
        if least > self.limits.pending_bytes:
            what = f"{chunk.size:,} bytes in {chunk.count:,} chunks"
            return f"{what} take {least:,} bytes of memory at least, allowed are {self.limits.pending_bytes:,}"
        return None

    def _late(self, state: _Partition, chunk: Chunk, record: LoggedRecord) -> Iterator[Discarded]:
        history = state.history
        end = history.end_of(chunk.uuid)
        if history.is_torn(chunk) if end is None else end.reason is None and same_message(chunk, end.chunk):
            self.counts.duplicates += 1
            history.go_on_with_rewrite(chunk)
        elif end is not None and end.reason is not None:
            history.end(end.chunk, end.reason)
            detail = f"chunk {chunk.id} of {chunk.count} of a message that was discarded: {end.reason}"
            yield Discarded(end.reason, chunk.uuid, (record,), detail, late=True)
        else:
            history.end(chunk, "missing-first")
            detail = f"chunk {chunk.id} of {chunk.count}, and no first one before it"
            yield Discarded("missing-first", chunk.uuid, (record,), detail)

    def _problem(
        self, state: _Partition, context: _Context, chunk: Chunk, record: LoggedRecord
    ) -> tuple[Reason | None, str] | None:
        """Why the chunk does not go on with its message; without a reason it is a duplicate. None where it does."""
        first = context.chunk
        if not same_message(chunk, first):
            found = f"{chunk.count:,} chunks, {chunk.size:,} bytes, SHA-256 {chunk.checksum}"
            return "contradictory", f"chunk {chunk.id} says {found}; unlike the first"
        if record.key != context.records[0].key:
            return "contradictory", f"chunk {chunk.id} has another key than the first"
        expected = len(context.records)
        if chunk.id < expected:
            same = context.records[chunk.id].value == record.value
            return (None, "") if same else ("contradictory", f"chunk {chunk.id} came twice, with other bytes")
        if chunk.id > expected:
            told = f"chunk {chunk.id} came, chunk {expected} was next"
            # Of a message that was delivered, it is the rest of an older writing.
            return (None, told) if state.history.is_torn(chunk) else ("out-of-order", told)
        left = first.count - 1 - chunk.id  # each has a byte at least
        if context.length + len(record.value or b"") + left > first.size:
            return "contradictory", f"more bytes than the {first.size:,} of the message"
        return None

    def _keep(
        self, partition: Hashable, state: _Partition, context: _Context, record: LoggedRecord
    ) -> Iterator[Discarded]:
        uuid = context.chunk.uuid
        piece = record.value or b""
        held = len(piece) + len(record.key or b"") + _RECORD_OVERHEAD_BYTES
        held += sum(len(name) + len(value or b"") + _HEADER_OVERHEAD_BYTES for name, value in record.headers)
        if context.digest is not None:
            context.digest.update(piece)
        state.contexts[uuid] = context
        self._order.setdefault((partition, uuid))
        context.records.append(record)
        context.held += held
        context.length += len(piece)
        self._held += held
        if context.held > self.limits.pending_bytes:
            detail = f"with keys and headers {context.held:,} bytes, allowed are {self.limits.pending_bytes:,}"
            yield self._drop(partition, uuid, "oversized", detail)
        while len(self._order) > self.limits.messages or self._held > self.limits.pending_bytes:
            # There is another one: this one alone is within the limits, or is gone.
            oldest = next(place for place in self._order if place != (partition, uuid))
            yield self._drop(*oldest, "evicted", "more messages, or more bytes, are pending than may be")

    def _finish(self, partition: Hashable, state: _Partition, context: _Context) -> Assembled | Discarded:
        chunk = context.chunk
        records = tuple(context.records)
        value = b"".join(record.value or b"" for record in records)
        found = None if context.digest is None else context.digest.hexdigest()
        if len(value) != chunk.size or found != chunk.checksum:
            detail = f"{len(value):,} of {chunk.size:,} bytes, SHA-256 {found}"
            return self._drop(partition, chunk.uuid, "corrupt", detail)
        self._forget(partition, state, chunk.uuid)
        first, last = records[0], records[-1]
        state.history.end(chunk, None, first)
        if context.begun > 1 or state.history.is_torn(chunk):
            state.history.tear(chunk, first.offset, context.begun)
            state.history.mend(chunk)
        return Assembled(
            Record(first.key, value, context.headers, first.timestamp), ChunkMessageId(first.offset, last.offset)
        )

    # --- the end of a message ----------------------------------------------------------------------------------------

    def _drop(self, partition: Hashable, uuid: str, reason: Reason, detail: str) -> Discarded:
        state = self._partitions[partition]
        context = self._forget(partition, state, uuid)
        state.history.end(context.chunk, reason)
        return Discarded(reason, uuid, tuple(context.records), detail)

    def _forget(self, partition: Hashable, state: _Partition, uuid: str) -> _Context:
        context = state.contexts.pop(uuid)
        del self._order[partition, uuid]
        self._held -= context.held
        state.history.settle(context.records[0].offset)
        return context

    def _count(self, event: Assembled | Discarded) -> None:
        if isinstance(event, Assembled):
            self.counts.assembled += 1
        elif event.late:
            self.counts.late += 1
        else:
            self.counts.discarded[event.reason] = self.counts.discarded.get(event.reason, 0) + 1
