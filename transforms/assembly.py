"""Assembly of chunks into messages. A state machine: chunks and the time go in, messages and outcomes come out.

Chunks that do not make a message are returned with a reason, and counted in `Counts`. Only duplicates are ignored.

    malformed        a header breaks the format of chunks
    missing-first    there is no first chunk before them in the partition
    out-of-order     a chunk before this one is missing; the log is in order, so it will not come
    contradictory    key, count, size or checksum differ from the first chunk, the bytes of a chunk differ from those of
                     the same chunk before, or there are more bytes than the message has
    oversized        the first chunk says that the message is larger than allowed; or keys and headers make it larger
                     than all that may be pending
    corrupt          size or checksum of the whole message are wrong
    expired          the last chunk did not come in time
    evicted          the oldest message, when more messages or more bytes are pending than allowed
    duplicate        a chunk that came before, or one of a delivered message: ignored

A chunk of a message that was discarded before is returned too, with the reason of the message, and marked `late`.

A writer that seems dead is replaced by another one, which writes its message again, and that is delivered. If the first
writer was only slow, it later writes the rest of its message, without a beginning. So the messages that were begun more
often than ended are remembered, also after a restart: see `Assembler.torn`.

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

_BEGINNINGS = 10  # for so many times `expire_ms` a writer may begin its message again
# The memory of a record of aiokafka beside the bytes of key, value and headers; measured with tracemalloc.
_RECORD_OVERHEAD_BYTES = 400
_HEADER_OVERHEAD_BYTES = 160
_LEAST_HEADERS = 4
# These depend on other messages or on the time, so the same chunks may have another outcome the next time.
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

    It owns the safe offset: a commit must not pass the first chunk of a message that is incomplete or not delivered
    yet. Messages are delivered in order, so one number says which ones above it were delivered: `delivered_below`.

    Args:
        limits: the limits for pending messages.
    """

    # One caller at a time. `_order` has each pending message once, the oldest first.

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.counts = Counts()
        self._partitions: dict[Hashable, _Partition] = {}
        self._order: OrderedDict[tuple[Hashable, str], None] = OrderedDict()
        self._held = 0
        self._rewrite_ms = _BEGINNINGS * limits.expire_ms  # 0 for ever

    @property
    def pending(self) -> int:
        """How many messages are incomplete."""
        return len(self._order)

    @property
    def repeating(self) -> int:
        """How many delivered messages are being written again."""
        return sum(state.history.rewrites for state in self._partitions.values())

    @property
    def pending_bytes(self) -> int:
        """The memory of their chunks."""
        return self._held

    def add(self, partition: Hashable, record: LoggedRecord, now_ms: int) -> list[Assembled | Discarded]:
        """Takes the next chunk of a partition, in the order of offsets; returns the messages that end with it.

        An evicted message may belong to another partition. The caller must process the chunks of evicted and expired
        messages before the next commit of their partition, because the safe offset does not wait for them.

        Args:
            partition: identifies the partition. If its position is set back, `clear` it first.
            record: a record for which `is_chunk` is true.
            now_ms: milliseconds of a monotonic clock. It should stop while nothing is read; otherwise messages expire
                whose chunks are waiting in the log.
        """
        state = self._partitions.setdefault(partition, _Partition())
        state.history.last = record.offset
        events = list(self._take(partition, state, record, now_ms))
        if record.offset < state.history.delivered:  # they were delivered before the restart
            events = [event for event in events if isinstance(event, Discarded) and event.reason in _BY_CHANCE]
        for event in events:
            self._count(event)
        return events

    def expire(self, now_ms: int) -> list[Discarded]:
        """Discards the messages that have waited too long; to be called regularly, also if no chunk comes."""
        limit = self.limits.expire_ms
        events = []
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
        """The offset to commit: `position`, or the lowest first chunk of a message that is not delivered.

        It also does not pass the first chunk of a delivered message that is being written again: after a restart in
        the middle of that, the rest could not be recognised as a duplicate.

        Args:
            partition: as in `add`.
            position: everything that ended below it has been delivered. It never goes back.
        """
        state = self._partitions.get(partition)
        if state is None:
            return position
        firsts = [context.records[0].offset for context in state.contexts.values()]
        return min([state.history.safe_offset(position), *firsts])

    def delivered_below(self, partition: Hashable, position: int) -> int:
        """The offset to note beside a commit: `position`, or the one noted before the restart if that is higher."""
        state = self._partitions.get(partition)
        return position if state is None else max(position, state.history.delivered)

    def torn(self, partition: Hashable, offset: int) -> tuple[str, ...]:
        """The ids to note beside a commit of `offset`: of messages that were begun more often than ended below it.

        They are delivered. The rest of such a message may come at any time, from a writer that seemed dead. It is a
        duplicate, and after a restart only this note tells. Only the newest ids are given, each as often as there are
        writers. An id is 22 characters of base64: a hash of uuid, count, size and checksum.
        """
        state = self._partitions.get(partition)
        return () if state is None else state.history.torn_ids(offset)

    def resume(self, partition: Hashable, delivered: int, torn: Iterable[str] = ()) -> None:
        """Continues after a restart at a safe offset: messages that ended below `delivered` are not returned again.

        Evicted and expired messages are the exception: the next time it may be another message that is discarded.

        Args:
            partition: as in `add`.
            delivered: the result of `delivered_below` at the commit.
            torn: the result of `torn` then.
        """
        self._partitions.setdefault(partition, _Partition()).history.resume(delivered, torn)

    def delivered(self, partition: Hashable, offset: int) -> bool:
        """Whether an ordinary record at this offset was delivered before the restart."""
        state = self._partitions.get(partition)
        return state is not None and offset < state.history.delivered

    def clear(self, partition: Hashable) -> None:
        """Forgets a partition that was revoked."""
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
        if not chunk.id:  # the writer begins again, and gets the whole time again
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
        """Why the chunk does not continue its message; None if it does. A duplicate has no reason."""
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
            # If the message was delivered, this is the rest from a slow writer.
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
            # There is another message: this one alone is within the limits, or was dropped above.
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
