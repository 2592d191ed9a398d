"""Reassembly of chunks into messages: a state machine whose input is chunks and time, its output messages and outcomes.

Chunks that do not make a message are returned with a reason, and counted in `Counts`. Only duplicates are ignored.

    malformed        a header breaks the format of chunks
    missing-first    there is no first chunk before them in the partition
    out-of-order     a chunk before this one is missing; the log is ordered, so it will not arrive
    contradictory    key, count, size or checksum differ from the first chunk, the bytes of a chunk differ from those of
                     its earlier copy, or there are more bytes than the message has
    oversized        the message is larger than allowed according to its first chunk; or keys and headers make it larger
                     than the limit of pending bytes
    corrupt          size or checksum of the whole message are wrong
    expired          the last chunk did not arrive in time
    evicted          the oldest message, when more is pending than allowed, and nothing can be re-read
    duplicate        a chunk that arrived before, or one of a delivered message: ignored

A chunk of a message that was discarded before is returned too, with the reason of the message, and marked `late`.

Source: Pulsar's post on chunking, "Combining Chunks" and "Best practices for the consumer"; design, "Chunks".
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import chain

from transforms.chunk import Chunk
from transforms.chunked_message import Assembled, ChunkMessageId, Counts, Discarded, Limits, LoggedRecord, Reason
from transforms.commit_metadata import KAFKAS_BYTES, note, noted
from transforms.errors import MalformedChunkError
from transforms.message import Message, State, too_large
from transforms.read_range import Beginnings, ReadRange, Receive
from transforms.torn import REMEMBERED, TornMessages

_LONGEST = 10  # a message that its writer restarts repeatedly expires after this many times `expire_ms`
_SPARE = 100
# These depend on other messages or on the time, so these chunks may have a different outcome the next time.
_BY_CHANCE = frozenset({"expired", "evicted"})

Event = Assembled | Discarded | ReadRange


@dataclass(slots=True)
class _Partition:
    """The state of one partition.

    Attributes:
        open: the incomplete messages, by uuid; the one that has waited longest first.
        ended: those that have ended, so that a later chunk of theirs is recognised; the oldest first.
        torn: delivered messages whose rest may arrive.
        start: the offset where reading began.
        last: the offset of the last chunk that was read.
        delivered: all that ended below this offset was delivered before the restart.
        now_ms: the time in which the partition was read.
        beginnings: where messages begin before the offset where reading began.
    """

    open: dict[str, Message] = field(default_factory=dict)
    ended: dict[str, Message] = field(default_factory=dict)
    torn: TornMessages = field(default_factory=TornMessages)
    start: int | None = None
    last: int = -1
    delivered: int = 0
    now_ms: float = 0.0
    beginnings: Beginnings | None = None
    _heap: list[Message] = field(default_factory=list)  # by the first chunk; what commits may pass leaves it later
    _position: int = 0

    def add(self, message: Message) -> None:
        """Adds an incomplete message: no commit passes its first chunk."""
        self.open[message.chunk.uuid] = message
        heappush(self._heap, message)
        if len(self._heap) > 2 * (len(self.open) + len(self.ended)) + _SPARE:
            self._heap = [each for each in self._heap if each.ended is None or each.ended >= self._position]
            heapify(self._heap)

    def end(self, message: Message) -> None:
        """Remembers a message that has ended here; it is the newest."""
        message.ended = self.last
        self.ended.pop(message.chunk.uuid, None)
        self.ended[message.chunk.uuid] = message
        if len(self.ended) > REMEMBERED:
            del self.ended[next(iter(self.ended))]

    def safe(self, position: int) -> int:
        """The highest offset up to `position` that a commit may have."""
        self._position = position
        while self._heap and (ended := self._heap[0].ended) is not None and ended < position:
            heappop(self._heap)
        return min(position, self._heap[0].first) if self._heap else position


class Reassembly:
    """Keeps the chunks of each message, by partition and uuid, until it is whole.

    It owns the safe offset: a commit must not pass the first chunk of a message that is incomplete or not delivered
    yet. Messages are delivered in order, so one number is enough to know which ones above it were delivered; the
    commit's metadata notes it.

    Args:
        limits: the limits for pending messages.
        rereads: whether the caller can re-read the log. If so, no message is evicted for others: messages that exceed
            the limits keep only their offsets, and end as a `ReadRange`. A message whose first chunk was not read,
            because reading began behind it, is not discarded but searched. A message is evicted only if offsets
            alone exceed the limits, or if the limits require it.
        lookback: how many offsets before the one where reading began are searched for a first chunk.
    """

    # One caller at a time. `_kept` and `_aside` have each incomplete message once, in the order of their start.

    def __init__(self, limits: Limits, *, rereads: bool = False, lookback: int = 0) -> None:
        self.limits = limits
        self.counts = Counts()
        self._rereads = rereads
        self._lookback = lookback
        self._evicts = limits.drops_oldest or not rereads
        self._partitions: dict[Hashable, _Partition] = {}
        self._kept: dict[Message, None] = {}
        self._aside: dict[Message, None] = {}
        self._held = 0
        self._longest_ms = _LONGEST * limits.expire_ms  # 0 for never

    @property
    def pending(self) -> int:
        """How many messages are incomplete."""
        return len(self._kept) + len(self._aside)

    @property
    def waits(self) -> bool:
        """Whether the time of a message is running."""
        return bool((self._kept or self._aside) and self.limits.expire_ms)

    @property
    def pending_bytes(self) -> int:
        """The memory of their chunks."""
        return self._held

    # --- reading -----------------------------------------------------------------------------------------------------

    def begin(self, partition: Hashable, offset: int) -> None:
        """Sets where the reading of a partition begins; by default, at the first chunk passed to `receive`."""
        self._of(partition).start = offset

    def resume(self, partition: Hashable, metadata: str | None) -> int:
        """Continues at a commit with this metadata: messages that ended below what it notes are not returned again.

        Evicted and expired messages are the exception, because a different message may be discarded the next time.

        Returns:
            The offset below which all was delivered; 0 if the metadata is not of the form of `note`.
        """
        found = noted(metadata)
        if found is None:
            return 0
        state = self._of(partition)
        state.delivered, state.torn = found.delivered, TornMessages(found.torn)
        return found.delivered

    def receive(self, partition: Hashable, record: LoggedRecord, ahead_ms: float = 0.0) -> list[Event]:
        """Processes the next chunk of a partition, in the order of offsets; returns what ends with it.

        An evicted message may belong to another partition. The caller must process the chunks of evicted and expired
        messages before the next commit of their partition, because the safe offset does not wait for them. It must
        `resolve` a `ReadRange` of this partition before it passes the next chunk.

        Args:
            partition: identifies the partition. If its position is set back, `clear` it first.
            record: a record for which `is_chunk` is true.
            ahead_ms: the time since the last `tick` of this partition.
        """
        state = self._of(partition)
        state.last = record.offset
        if state.start is None:
            state.start = record.offset
        events = list(self._take(partition, state, record, state.now_ms + ahead_ms))
        if record.offset < state.delivered:  # before the restart
            events = [each for each in events if not isinstance(each, Assembled) and each.reason in _BY_CHANCE]
        return self._counted(events)

    def tick(self, ms: float, partitions: Iterable[Hashable] | None = None) -> list[Event]:
        """Counts the time in which partitions were read, and discards the messages that have waited too long.

        The time should stand still while nothing is read; otherwise messages expire whose chunks are waiting in the
        log. Call it regularly, even if no chunk arrives.

        Args:
            ms: the time since the last call.
            partitions: those that were read; None for all.
        """
        limit = self.limits.expire_ms
        events: list[Event] = []
        for place in self._partitions if partitions is None else partitions:
            state = self._partitions.get(place)
            if state is None:
                continue
            state.now_ms += ms
            while limit and state.open:
                message = next(iter(state.open.values()))
                if state.now_ms - message.began_ms < limit:
                    break
                have, count = message.expected, message.chunk.count
                events.append(
                    self._drop(state, message, "expired", f"{have} of {count} chunks arrived in {limit:,} ms")
                )
        return self._counted(events)

    # --- commits -----------------------------------------------------------------------------------------------------

    def safe_offset(self, partition: Hashable, position: int) -> int:
        """The offset to commit: `position`, or the lowest first chunk of a message that is not delivered.

        Args:
            partition: as in `receive`.
            position: everything that ended below it has been delivered. It never decreases.
        """
        state = self._partitions.get(partition)
        return position if state is None else state.safe(position)

    def commit(
        self, partition: Hashable, position: int, firsts: Iterable[int] = (), most_bytes: int = KAFKAS_BYTES
    ) -> tuple[int, str]:
        """The offset to commit, and its note (see `transforms.commit_metadata`).

        Args:
            partition: as in `receive`.
            position: as in `safe_offset`.
            firsts: offsets that the commit must not pass either.
            most_bytes: the longest note that brokers accept.
        """
        offset = min([self.safe_offset(partition, position), *firsts])
        state = self._partitions.get(partition, _Partition())
        return offset, note(offset, max(position, state.delivered), state.torn.ids(offset), most_bytes)

    # --- positions ---------------------------------------------------------------------------------------------------

    def clear(self, partition: Hashable) -> None:
        """Forgets a partition that was revoked."""
        state = self._partitions.pop(partition, None)
        for message in () if state is None else state.open.values():
            self._held -= message.held
            del self._table(message)[message]

    def move(self, partition: Hashable, offset: int) -> None:
        """Sets the position: the chunks from `offset` are next, some of them perhaps again.

        Messages that span it are kept as offsets alone: they are delivered whole, however far before it they begin, and
        no commit passes their first chunks. Everything else is forgotten, as with `clear`.

        Args:
            partition: as in `receive`.
            offset: the position.
        """
        former = self._partitions.get(partition)
        self.clear(partition)
        if former is None:
            return
        state = self._partitions[partition] = _Partition(start=offset, now_ms=former.now_ms)
        for message in chain(former.open.values(), former.ended.values()):
            if message.ended is not None:
                if message.reason is not None or message.chunk.uuid in former.open:
                    continue
                message.first_ms = message.began_ms = state.now_ms
                message.ended, message.whole_at, message.begun = None, message.last, 1
            if message.first < offset and (message.whole_at is None or message.whole_at >= offset):
                self.counts.set_aside += message.state is State.KEPT
                message.set_aside()
                message.moved = True
                self._held += message.held
                self._aside[message] = None
                state.add(message)

    def resolve(self, range_: ReadRange) -> Assembled | Discarded | None:
        """The outcome of a message that was re-read: it is counted, and its later chunks are judged by it.

        Returns:
            None if the message was delivered before.
        """
        outcome = range_.outcome()
        if range_.reason is None:
            self._counted([] if outcome is None else [outcome])
            state = self._of(range_.partition)
            message = state.ended.get(range_.uuid)
            if message is not None and message.state is State.READING:
                message.first_hash = range_.first_hash
                if isinstance(outcome, Discarded):
                    message.state, message.reason = State.DISCARDED, outcome.reason
                else:
                    self._deliver(state, message)
        return outcome

    # --- one chunk ---------------------------------------------------------------------------------------------------

    def _of(self, partition: Hashable) -> _Partition:
        state = self._partitions.get(partition)
        if state is None:
            state = self._partitions[partition] = _Partition()
        return state

    def _take(self, partition: Hashable, state: _Partition, record: LoggedRecord, now_ms: float) -> Iterator[Event]:
        try:
            chunk, headers = Chunk.parse(record)
        except MalformedChunkError as exc:
            yield Discarded("malformed", None, (record,), str(exc))
            return
        message = state.open.get(chunk.uuid)
        if message is not None and not chunk.id and 0 < self._longest_ms <= now_ms - message.first_ms:
            detail = f"its writer restarted repeatedly for {now_ms - message.first_ms:,.0f} ms"
            yield self._drop(state, message, "expired", detail)
            message = None
        if message is None:
            if self._is_repetition(state, chunk, record):
                self.counts.duplicates += 1
                return
            if (unfit := self._unfit(state, chunk, record)) is not None:
                yield unfit
                return
            message = self._open(partition, state, chunk, record, now_ms)
            message.headers = headers
        else:
            if message.moved and chunk.id:
                message.skip_to(chunk.id)
            problem = message.problem(chunk, record, torn=state.torn.has(chunk))
            if problem == "duplicate":
                self._duplicate(state, message, chunk, now_ms)
                return
            if problem is not None:
                event = self._drop(state, message, *problem)
                yield replace(event, records=(*event.records, record)) if isinstance(event, Discarded) else event
                return
        self._held += message.add(record)
        yield from self._keep_within_limits(state, message)
        if message.ended is None and message.expected == chunk.count:
            yield self._finish(state, message)

    def _is_repetition(self, state: _Partition, chunk: Chunk, record: LoggedRecord) -> bool:
        """Whether the chunk, whose message is not open, repeats one that was delivered."""
        ended = state.ended.get(chunk.uuid)
        if not chunk.id:
            if ended is None or not ended.begins_again_with(chunk, record):
                return False
            if chunk.count > 1:
                state.torn.tear(chunk, record.offset)
            return True
        if not state.torn.has(chunk) if ended is None else ended.reason is not None or not ended.is_same_as(chunk):
            return False
        if chunk.id == chunk.count - 1:
            state.torn.mend(chunk, state.last)
        return True

    def _unfit(self, state: _Partition, chunk: Chunk, record: LoggedRecord) -> Discarded | None:
        """Why the chunk begins no message; None if it does."""
        ended, late = state.ended.get(chunk.uuid), False
        reason: Reason = "missing-first"
        if chunk.id and ended is not None and ended.reason is not None:
            reason, late = ended.reason, True
            detail = f"chunk {chunk.id} of {chunk.count} of a message that was discarded: {reason}"
        elif chunk.id and (ended is not None or not self._rereads or not state.start):
            detail = f"chunk {chunk.id} of {chunk.count}, without a first chunk before it"
        elif (found := too_large(chunk, self.limits)) is not None:
            reason, detail = "oversized", found
        else:
            return None
        state.end(Message(None, chunk, record.offset, state=State.DISCARDED, records=None, reason=reason))
        return Discarded(reason, chunk.uuid, (record,), detail, late=late)

    def _open(
        self, partition: Hashable, state: _Partition, chunk: Chunk, record: LoggedRecord, now_ms: float
    ) -> Message:
        """A message that begins here; or before the offset where reading began, if this is not its first chunk."""
        below = state.start if chunk.id else None
        message = Message(partition, chunk, record.offset, hash(record.key), below, now_ms, now_ms)
        state.add(message)
        self._kept[message] = None
        if chunk.id:
            message.skip_to(chunk.id)
            self._set_aside(message)
        return message

    def _duplicate(self, state: _Partition, message: Message, chunk: Chunk, now_ms: float) -> None:
        self.counts.duplicates += 1
        if not chunk.id:  # the writer restarts, and the whole time is granted again
            message.begun += 1
            message.began_ms = now_ms
            table = self._table(message)
            table[message] = table.pop(message)
            state.open[chunk.uuid] = state.open.pop(chunk.uuid)
        elif chunk.id == chunk.count - 1:
            state.torn.mend(chunk, state.last)

    def _keep_within_limits(self, state: _Partition, message: Message) -> Iterator[Event]:
        """Releases what exceeds the limits, perhaps of another partition."""
        if message.held > self.limits.pending_bytes:
            detail = f"with keys and headers {message.held:,} bytes, allowed are {self.limits.pending_bytes:,}"
            yield self._drop(state, message, "oversized", detail)
        while len(self._kept) > self.limits.messages or self._held > self.limits.pending_bytes:
            if self._kept and not self._evicts:
                # The one that started last: those that are kept can be completed without being read twice.
                self._set_aside(next(reversed(self._kept)))
                continue
            # There is another message: this one alone is within the limits, or was dropped above.
            oldest = next(each for each in chain(self._kept, self._aside) if each is not message)
            detail = "pending messages exceed the limits"
            yield self._drop(self._of(oldest.partition), oldest, "evicted", detail)

    def _set_aside(self, message: Message) -> None:
        del self._kept[message]
        self._aside[message] = None
        self._held -= message.set_aside()
        self.counts.set_aside += 1

    def _table(self, message: Message) -> dict[Message, None]:
        return self._kept if message.state is State.KEPT else self._aside

    # --- the end of a message ----------------------------------------------------------------------------------------

    def _finish(self, state: _Partition, message: Message) -> Event:
        if message.records is None:
            range_ = self._range(state, message, message.last, None, "")
            self._end(state, message, State.READING)
            if message.last < state.delivered:  # before the restart
                self._deliver(state, message)
            return range_
        whole = message.whole()
        if isinstance(whole, str):
            return self._drop(state, message, "corrupt", whole)
        self._end(state, message, State.DELIVERED)
        self._deliver(state, message)
        return Assembled(whole, ChunkMessageId(message.first, state.last))

    def _deliver(self, state: _Partition, message: Message) -> None:
        message.state = State.DELIVERED
        if message.begun > 1 or state.torn.has(message.chunk):
            state.torn.tear(message.chunk, message.first, message.begun)
            state.torn.mend(message.chunk, state.last)

    def _drop(self, state: _Partition, message: Message, reason: Reason, detail: str) -> Discarded | ReadRange:
        """Discards a message."""
        event: Discarded | ReadRange
        if message.records is None:
            last = message.last if reason in _BY_CHANCE else state.last
            event = self._range(state, message, last, reason, detail)
        else:
            event = Discarded(reason, message.chunk.uuid, tuple(message.records), detail)
        self._end(state, message, State.DISCARDED, reason)
        return event

    def _end(self, state: _Partition, message: Message, outcome: State, reason: Reason | None = None) -> None:
        """Ends an incomplete message; commits wait until all that ended here is delivered."""
        del state.open[message.chunk.uuid]
        del self._table(message)[message]
        self._held -= message.held
        message.drop_chunks()
        message.state, message.reason = outcome, reason
        state.end(message)

    def _range(self, state: _Partition, message: Message, last: int, reason: Reason | None, detail: str) -> ReadRange:
        below = message.below
        if below is not None and (state.beginnings is None or state.beginnings.below != below):
            state.beginnings = Beginnings(below, self._lookback)
        beginnings = None if below is None or reason is not None else state.beginnings
        return ReadRange(message, last, reason, detail, self.limits, beginnings, self._receiver)

    def _receiver(self) -> Receive:
        """Reassembles one message again, without a time limit, which was applied when the message was read first."""
        own = Reassembly(replace(self.limits, messages=1, expire_ms=0))
        return lambda record: own.receive(0, record)

    def _counted(self, events: list[Event]) -> list[Event]:
        """Counts what has ended; returns what the caller receives."""
        counts, drops = self.counts, self.limits.drops_oldest
        for event in events:
            if isinstance(event, Assembled):
                counts.assembled += 1
            elif isinstance(event, Discarded) and event.late:
                counts.late += 1
            elif event.reason is not None:
                counts.discarded[event.reason] = counts.discarded.get(event.reason, 0) + 1
        return [each for each in events if not drops or isinstance(each, Assembled) or each.reason != "evicted"]
