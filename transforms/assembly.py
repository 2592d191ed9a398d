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
    evicted          the oldest message, when more is pending than allowed, and nothing can be read again
    duplicate        a chunk that came before, or one of a delivered message: ignored

A chunk of a message that was discarded before is returned too, with the reason of the message, and marked `late`.

A writer that seems dead is replaced by another one, which writes its message again, and that is delivered. If the first
writer was only slow, it later writes the rest of its message, without a beginning. So the messages that were begun more
often than ended are remembered, also after a restart: see `Assembler.torn`.

Source: seed 004, "Combining Chunks" and "Best practices for the consumer"; design, "Chunks".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import chain

from transforms.chunk import Chunk
from transforms.chunked_message import (
    Assembled,
    ChunkMessageId,
    Counts,
    Discarded,
    Limits,
    LoggedRecord,
    Reason,
    Reread,
)
from transforms.commit_metadata import KAFKAS_BYTES, note
from transforms.errors import MalformedChunkError
from transforms.partition_history import Bounds, End, PartitionHistory, hash_of, same_message
from transforms.partition_messages import PartitionMessages
from transforms.pending_message import PendingMessage, too_large

__all__ = [
    "Assembled",
    "Assembler",
    "ChunkMessageId",
    "Counts",
    "Discarded",
    "Limits",
    "LoggedRecord",
    "Reason",
    "Reread",
]

_BEGINNINGS = 10  # for so many times `expire_ms` a writer may begin its message again
# These depend on other messages or on the time, so the same chunks may have another outcome the next time.
_BY_CHANCE = frozenset({"expired", "evicted"})


class Assembler:
    """Keeps the chunks of each message, by partition and uuid, until it is whole.

    It owns the safe offset: a commit must not pass the first chunk of a message that is incomplete or not delivered
    yet. Messages are delivered in order, so one number says which ones above it were delivered: `delivered_below`.

    Args:
        limits: the limits for pending messages.
        on_reread: gets the messages whose chunks are to be read again. If it is given, no message is evicted for
            others: what is over the limits keeps its offsets alone. And a message whose first chunk was not read,
            because reading began behind it, is not discarded at once: it is to be looked for. Only a message that is
            neither whole nor given up within the limits of its offsets alone is evicted; or any, if the limits say so.
    """

    # One caller at a time. `_kept` and `_aside` have each pending message once, the one that began first first.

    def __init__(self, limits: Limits, on_reread: Callable[[Reread], None] | None = None) -> None:
        self.limits = limits
        self.counts = Counts()
        self._on_reread = on_reread
        self._evicts = limits.drops_oldest or on_reread is None
        self._partitions: dict[Hashable, PartitionMessages] = {}
        self._kept: OrderedDict[tuple[Hashable, str], None] = OrderedDict()
        self._aside: OrderedDict[tuple[Hashable, str], None] = OrderedDict()
        self._held = 0
        self._rewrite_ms = _BEGINNINGS * limits.expire_ms  # 0 for ever

    @property
    def pending(self) -> int:
        """How many messages are incomplete."""
        return len(self._kept) + len(self._aside)

    @property
    def repeating(self) -> int:
        """How many delivered messages are being written again."""
        return sum(state.history.rewrites for state in self._partitions.values())

    @property
    def pending_bytes(self) -> int:
        """The memory of their chunks."""
        return self._held

    def begin(self, partition: Hashable, offset: int) -> None:
        """Takes in where the reading of a partition begins. Without it, that is the first chunk that `add` is given."""
        self._partitions.setdefault(partition, PartitionMessages()).start = offset

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
        state = self._partitions.setdefault(partition, PartitionMessages())
        state.history.last, state.now_ms = record.offset, now_ms
        if state.start is None:
            state.start = record.offset
        events = list(self._take(partition, state, record, now_ms))
        if record.offset < state.history.delivered:  # they were delivered before the restart
            events = [event for event in events if isinstance(event, Discarded) and event.reason in _BY_CHANCE]
        for event in events:
            self._count(event)
        return [event for event in events if not (isinstance(event, Discarded) and self._drops(event.reason))]

    def expire(self, now_ms: int, partition: Hashable | None = None) -> list[Discarded]:
        """Discards the messages that have waited too long; to be called regularly, also if no chunk comes.

        Args:
            now_ms: as in `add`.
            partition: only the messages of this one, whose clock says `now_ms`; None for all partitions.
        """
        limit = self.limits.expire_ms
        events: list[Discarded] = []
        states = (
            self._partitions if partition is None else {partition: self._partitions.get(partition, PartitionMessages())}
        )
        for place, state in states.items() if limit else ():
            state.now_ms = now_ms
            while state.contexts:
                uuid, context = next(iter(state.contexts.items()))
                if now_ms - context.began_ms < limit:
                    break
                have, count = context.expected, context.chunk.count
                events += self._drop(place, uuid, "expired", f"{have} of {count} chunks came in {limit:,} ms")
            state.history.expire_rewrites(now_ms, limit)
        for event in events:
            self._count(event)
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
        safe, first = state.history.safe_offset(position), state.lowest()
        return safe if first is None else min(safe, first)

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

    def commit(
        self, partition: Hashable, position: int, firsts: Iterable[int] = (), most_bytes: int = KAFKAS_BYTES
    ) -> tuple[int, str]:
        """The offset to commit, and the note beside it (see `transforms.commit_metadata`).

        Args:
            partition: as in `add`.
            position: as in `safe_offset`.
            firsts: offsets that the commit must not pass either.
            most_bytes: the longest note that brokers take.
        """
        offset = min([self.safe_offset(partition, position), *firsts])
        return offset, note(offset, self.delivered_below(partition, position), self.torn(partition, offset), most_bytes)

    def resume(self, partition: Hashable, delivered: int, torn: Iterable[str] = ()) -> None:
        """Continues after a restart at a safe offset: messages that ended below `delivered` are not returned again.

        Evicted and expired messages are the exception: the next time it may be another message that is discarded.

        Args:
            partition: as in `add`.
            delivered: the result of `delivered_below` at the commit.
            torn: the result of `torn` then.
        """
        self._partitions.setdefault(partition, PartitionMessages()).history.resume(delivered, torn)

    def delivered(self, partition: Hashable, offset: int) -> bool:
        """Whether an ordinary record at this offset was delivered before the restart."""
        state = self._partitions.get(partition)
        return state is not None and offset < state.history.delivered

    def clear(self, partition: Hashable) -> None:
        """Forgets a partition that was revoked."""
        state = self._partitions.pop(partition, None)
        for uuid, context in () if state is None else state.contexts.items():
            self._held -= context.held
            del self._table(context)[partition, uuid]

    def move(self, partition: Hashable, offset: int) -> None:
        """Takes in that the position is set: the chunks from `offset` on come next, some of them maybe once more.

        Messages that begin before it, and have not ended before it, are kept as offsets alone: they come whole, however
        far before it they begin, and no commit passes their first chunks. All else is forgotten, as with `clear`.

        Args:
            partition: as in `add`.
            offset: the position.
        """
        former = self._partitions.get(partition)
        across = [] if former is None else list(former.across(offset))
        self.clear(partition)
        if former is None:
            return
        state = self._partitions[partition] = PartitionMessages(start=offset, now_ms=former.now_ms)
        for context in across:
            self.counts.set_aside += context.records is not None
            context.set_aside()
            context.moved = True
            self._held += context.held
            self._aside[partition, context.chunk.uuid] = None
            state.add(context)

    def resolve(self, reread: Reread, outcome: Assembled | Discarded | None, beginning: int | None = None) -> None:
        """Takes in what became of a message that was read again: it is counted, and its later chunks are judged by it.

        Args:
            reread: what `on_reread` was given.
            outcome: what `transforms.rereading` found; None if the message was delivered before.
            beginning: `Rereading.beginning`.
        """
        if reread.reason is not None:
            return
        if outcome is not None:
            self._count(outcome)
        state = self._partitions.get(reread.partition)
        context = None if state is None else state.again.get(reread.uuid)
        if state is None or context is None or context.last != reread.last:
            return  # the partition was left, or another copy of the message has ended meanwhile
        del state.again[reread.uuid]
        if isinstance(outcome, Discarded):
            state.history.end(context.chunk, outcome.reason)
        else:
            self._settle(state, context, beginning)

    # --- one chunk ---------------------------------------------------------------------------------------------------

    def _take(
        self, partition: Hashable, state: PartitionMessages, record: LoggedRecord, now_ms: int
    ) -> Iterator[Assembled | Discarded]:
        try:
            chunk, headers = Chunk.parse(record)
        except MalformedChunkError as exc:
            yield Discarded("malformed", None, (record,), str(exc))
            return
        context = state.contexts.get(chunk.uuid)
        if context is not None and not chunk.id and 0 < self._rewrite_ms <= now_ms - context.first_ms:
            times = f"its writer began again and again for {now_ms - context.first_ms:,} ms"
            yield from self._drop(partition, chunk.uuid, "expired", times)
            context = None
        if context is not None:
            context.go_on_at(chunk)
        if context is None:
            begun = self._begin(partition, state, chunk, record, now_ms)
            if not isinstance(begun, PendingMessage):
                yield from begun
                return
            context, context.headers = begun, headers
        elif (problem := context.problem(chunk, record, torn=state.history.is_torn(chunk))) is not None:
            reason, detail = problem
            if reason is None:
                self._duplicate(partition, context, chunk, now_ms)
                return
            for dropped in self._drop(partition, chunk.uuid, reason, detail):
                yield Discarded(reason, chunk.uuid, (*dropped.records, record), detail)
            return
        self._held += context.add(record)
        yield from self._keep_within_limits(partition, context)
        if chunk.uuid in state.contexts and context.expected == context.chunk.count:
            yield from self._finish(partition, state, context)

    def _begin(
        self, partition: Hashable, state: PartitionMessages, chunk: Chunk, record: LoggedRecord, now_ms: int
    ) -> PendingMessage | tuple[Discarded, ...]:
        """The context of a chunk that has none; or why it gets none, which is nothing to tell for a duplicate."""
        history = state.history
        end = history.end_of(chunk.uuid)
        again = state.again.get(chunk.uuid)
        if again is not None:
            # It is not known yet whether that copy is whole. This one is read again with it, from its first chunk on.
            return self._open(partition, state, chunk, record, now_ms, again)
        if not chunk.id:
            if end is not None and end.begins_again_with(chunk, record):
                self.counts.duplicates += 1
                history.begin_rewrite(chunk, record.offset, now_ms, self._rewrite_ms)
                return ()
        elif history.is_torn(chunk) if end is None else end.reason is None and same_message(chunk, end.chunk):
            self.counts.duplicates += 1
            history.go_on_with_rewrite(chunk)
            return ()
        elif end is not None or self._on_reread is None or not state.start:
            return (self._late(history, end, chunk, record),)
        if (detail := too_large(chunk, self.limits)) is not None:
            history.end(chunk, "oversized")
            return (Discarded("oversized", chunk.uuid, (record,), detail),)
        return self._open(partition, state, chunk, record, now_ms, None)

    def _open(
        self,
        partition: Hashable,
        state: PartitionMessages,
        chunk: Chunk,
        record: LoggedRecord,
        now_ms: int,
        again: PendingMessage | None,
    ) -> PendingMessage:
        """A new context, behind the one of the same message that is being read again if there is one."""
        first, below = record.offset, state.start if chunk.id else None
        if again is not None:
            first, below = again.first, again.below
        context = PendingMessage(chunk, first, hash(record.key), below, now_ms, now_ms)
        state.add(context)
        self._kept[partition, chunk.uuid] = None
        if chunk.id or again is not None:  # its first chunk was not read, or not kept
            context.expected = context.length = chunk.id  # each has a byte at least
            self._set_aside(partition, context)
        return context

    def _duplicate(self, partition: Hashable, context: PendingMessage, chunk: Chunk, now_ms: int) -> None:
        self.counts.duplicates += 1
        state = self._partitions[partition]
        if not chunk.id:  # the writer begins again, and gets the whole time again
            context.begun += 1
            context.began_ms = now_ms
            self._table(context).move_to_end((partition, chunk.uuid))
            state.contexts[chunk.uuid] = state.contexts.pop(chunk.uuid)
        elif chunk.id == chunk.count - 1:
            state.history.mend(chunk)

    def _late(self, history: PartitionHistory, end: End | None, chunk: Chunk, record: LoggedRecord) -> Discarded:
        if end is not None and end.reason is not None:
            history.end(end.chunk, end.reason)
            detail = f"chunk {chunk.id} of {chunk.count} of a message that was discarded: {end.reason}"
            return Discarded(end.reason, chunk.uuid, (record,), detail, late=True)
        history.end(chunk, "missing-first")
        detail = f"chunk {chunk.id} of {chunk.count}, and no first one before it"
        return Discarded("missing-first", chunk.uuid, (record,), detail)

    def _keep_within_limits(self, partition: Hashable, context: PendingMessage) -> Iterator[Discarded]:
        """Lets go of what is over the limits; it may be of another partition."""
        uuid = context.chunk.uuid
        if context.held > self.limits.pending_bytes:
            detail = f"with keys and headers {context.held:,} bytes, allowed are {self.limits.pending_bytes:,}"
            yield from self._drop(partition, uuid, "oversized", detail)
        while len(self._kept) > self.limits.messages or self._held > self.limits.pending_bytes:
            if self._kept and not self._evicts:
                # The one that began last: those that are kept come to their ends, and are not read twice.
                where, which = next(reversed(self._kept))
                self._set_aside(where, self._partitions[where].contexts[which])
                continue
            # There is another message: this one alone is within the limits, or was dropped above.
            oldest = next(place for place in chain(self._kept, self._aside) if place != (partition, uuid))
            yield from self._drop(*oldest, "evicted", "more messages, or more bytes, are pending than may be")

    def _set_aside(self, partition: Hashable, context: PendingMessage) -> None:
        place = partition, context.chunk.uuid
        del self._kept[place]
        self._aside[place] = None
        self._held -= context.set_aside()
        self.counts.set_aside += 1

    def _table(self, context: PendingMessage) -> OrderedDict[tuple[Hashable, str], None]:
        return self._aside if context.records is None else self._kept

    # --- the end of a message ----------------------------------------------------------------------------------------

    def _finish(
        self, partition: Hashable, state: PartitionMessages, context: PendingMessage
    ) -> Iterator[Assembled | Discarded]:
        chunk, records, last = context.chunk, context.records, state.history.last
        if records is None:
            self._forget(partition, state, context)
            state.again[chunk.uuid] = context  # until `resolve`
            self._give_reread(partition, state, context, None, "")
        elif isinstance(whole := context.whole(), str):
            yield from self._drop(partition, chunk.uuid, "corrupt", whole)
        else:
            self._forget(partition, state, context)
            self._settle(state, context, hash_of(records[0]))
            yield Assembled(whole, ChunkMessageId(context.first, last))

    def _settle(self, state: PartitionMessages, context: PendingMessage, beginning: int | None) -> None:
        chunk, history = context.chunk, state.history
        history.end(chunk, None, beginning, Bounds(context.first, context.last, context.below, context.key))
        if context.begun > 1 or history.is_torn(chunk):
            history.tear(chunk, context.first, context.begun)
            history.mend(chunk)

    def _drop(self, partition: Hashable, uuid: str, reason: Reason, detail: str) -> list[Discarded]:
        """Gives a message up; gives nothing back if it is to be read again."""
        state = self._partitions[partition]
        context = state.contexts[uuid]
        self._forget(partition, state, context)
        state.history.end(context.chunk, reason)
        if context.records is not None:
            return [Discarded(reason, uuid, tuple(context.records), detail)]
        self._give_reread(partition, state, context, reason, detail)
        return []

    def _give_reread(
        self, partition: Hashable, state: PartitionMessages, context: PendingMessage, reason: Reason | None, detail: str
    ) -> None:
        assert self._on_reread is not None
        last = context.last if reason in _BY_CHANCE else state.history.last
        if last < state.history.delivered and reason not in _BY_CHANCE:  # before the restart
            if reason is None:
                del state.again[context.chunk.uuid]
                self._settle(state, context, context.beginning)
            return
        if reason is not None:
            self.counts.discarded[reason] = self.counts.discarded.get(reason, 0) + 1
        if self._drops(reason):
            return
        uuid, size = context.chunk.uuid, context.chunk.size
        self._on_reread(Reread(partition, uuid, size, context.first, last, context.below, reason, detail))

    def _drops(self, reason: Reason | None) -> bool:
        return reason == "evicted" and self.limits.drops_oldest

    def _forget(self, partition: Hashable, state: PartitionMessages, context: PendingMessage) -> None:
        del state.contexts[context.chunk.uuid]
        del self._table(context)[partition, context.chunk.uuid]
        self._held -= context.held
        state.history.settle(context.first)

    def _count(self, event: Assembled | Discarded) -> None:
        if isinstance(event, Assembled):
            self.counts.assembled += 1
        elif event.late:
            self.counts.late += 1
        else:
            self.counts.discarded[event.reason] = self.counts.discarded.get(event.reason, 0) + 1
