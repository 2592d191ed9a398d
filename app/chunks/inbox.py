"""The records, whole ones and chunks, that a client has fetched and not yet delivered.

A client puts what it has fetched into the queue of its partition, and takes from the head. Chunks are reassembled
there, when they are delivered, not when they are fetched, so the head of a queue is the position of its partition.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from transforms.chunk import is_chunk
from transforms.chunked_message import Assembled, Counts, Discarded, Limits, LoggedRecord
from transforms.read_range import ReadRange
from transforms.reassembly import Reassembly
from transforms.record import Header

Place = tuple[str, int]
"""A topic and the number of a partition; the `TopicPartition` of a client is equal to one."""

Action = Discarded | ReadRange
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Entry(Generic[R]):
    """A record in a queue.

    Attributes:
        record: as Kafka has it; the whole message in the place of its last chunk.
        offset: of the record.
        first: the offset of the first chunk of a whole message; None of an ordinary record.
        ready: whether the record is whole and to be delivered.
        work: what the client does for it, such as a download.
        error: with which that failed, until a call has raised it.
    """

    record: R
    offset: int
    first: int | None = None
    ready: bool = False
    work: Any = None
    error: Exception | None = None


class Inbox(Generic[R]):
    """The queues of one client. Belongs to one thread.

    Args:
        limits: how much of incomplete messages may be held in memory. Chunks that exceed them are re-read.
        lookback: how many offsets before the one where reading began the first chunk of a message may be.

    Attributes:
        actions: what the client has to do, in order, before any record behind it is delivered: pass a discarded message
            to the application (then call `done`), or read a range (then call `resolve`).
        ready: what was popped, or need not be put here, and is not delivered yet, of a client that returns several
            records at a time. They count like entries before the others.
        interrupted: the partitions whose work an interrupt, or a lack of memory, has ended in the middle, each with the
            offset and the metadata of a commit: the client seeks there, and calls `begin`.
    """

    def __init__(self, limits: Limits, lookback: int) -> None:
        self.actions: deque[Action] = deque()
        self.ready: dict[Place, deque[R]] = {}
        self.interrupted: dict[Place, tuple[int, str]] = {}
        self._lookback = lookback
        self._reassembly = Reassembly(limits, rereads=True, lookback=lookback)
        self._queues = OrderedDict[Place, deque[Entry[R]]]()
        self._begun: set[Place] = set()
        self._noted: dict[Place, int] = {}  # below which all was delivered before the restart
        self._resets: dict[Place, tuple[Entry[R], int, str | None]] = {}  # what `begin` is called with behind an entry
        self._waited: dict[Place, float] = {}  # the seconds that do not count before the queue is empty

    # --- what a client's record has: for other clients than aiokafka and kafka-python, to be overridden --------------

    def headers(self, record: R) -> Iterable[Header] | None:
        """The headers of a record."""
        found: Iterable[Header] | None = record.headers  # type: ignore[attr-defined]
        return found

    def offset(self, record: R) -> int:
        """The offset of a record."""
        found: int = record.offset  # type: ignore[attr-defined]
        return found

    def logged(self, record: R) -> LoggedRecord:
        """A chunk for `Reassembly`; a discarded message has it in `records`, with `topic` and `partition`."""
        return record  # type: ignore[return-value]

    def whole(self, last: R, message: Assembled) -> R:
        """The message in the place of its last chunk."""
        raise NotImplementedError

    # --- what is known -----------------------------------------------------------------------------------------------

    @property
    def empty(self) -> bool:
        """Whether records without chunks may be delivered unchanged: none waits, none is read again."""
        return not (self._queues or self.actions or self.interrupted or self._noted)

    @property
    def quiet(self) -> bool:
        """Whether it is empty, and the time of no message is running."""
        return self.empty and not self.waits

    @property
    def waits(self) -> bool:
        """Whether the time of an incomplete message is running: the client has to call `tick`."""
        return self._reassembly.waits

    @property
    def places(self) -> Iterable[Place]:
        """The partitions that have entries, those that have waited longest first."""
        return self._queues.keys()

    @property
    def counts(self) -> Counts:
        """How many messages have been assembled and discarded, and how many chunks were ignored, so far."""
        return self._reassembly.counts

    def stats(self) -> dict[str, int]:
        """The incomplete messages."""
        return {
            "pendingChunkedMessages": self._reassembly.pending,
            "pendingChunkedBytes": self._reassembly.pending_bytes,
            "setAside": self.counts.set_aside,
            "expired": self.counts.discarded.get("expired", 0),
        }

    # --- reading -----------------------------------------------------------------------------------------------------

    def has_begun(self, place: Place) -> bool:
        """Whether `begin` was called since the partition was cleared or moved."""
        return place in self._begun

    def begin(self, place: Place, offset: int, metadata: str | None = None) -> None:
        """Sets where the reading of a partition begins: at a commit with this metadata, or at a position.

        If it has begun before, the client itself has reset its position. What was fetched is delivered first, as it is
        not read again, and then incomplete messages are forgotten.
        """
        if place in self._begun and (queue := self._queues.get(place)):
            self._resets[place] = queue[-1], offset, metadata
        else:
            self._begin(place, offset, metadata)

    def put(self, place: Place, records: Iterable[R]) -> None:
        """Appends records that were read after those that are here."""
        entries = [Entry(each, self.offset(each)) for each in records]
        if entries:
            self._queues.setdefault(place, deque()).extend(entries)

    def entries(self, place: Place) -> Iterable[Entry[R]]:
        """The entries of a partition, in the order of offsets."""
        return self._queues.get(place, ())

    def first(self, place: Place) -> Entry[R]:
        """The next entry of a partition that has entries; it may be a chunk."""
        return self._queues[place][0]

    def is_piece(self, entry: Entry[R]) -> bool:
        """Whether a record is a chunk, and not the whole message."""
        return entry.first is None and _is_chunk(self.headers(entry.record))

    def head(self, place: Place) -> Entry[R] | None:
        """The next entry of a partition that is ready; None if there is none, or an action precedes it.

        After an interrupt, or without memory, the partition is in `interrupted`, and the error is raised.
        """
        queue = self._queues.get(place, ())
        while queue and not self.actions:
            entry = queue[0]
            if not entry.ready:
                self._assemble(place, entry)
            if entry.ready:
                return entry
            # The last chunk of a message that is read again stays: `resolve` puts the message in its place.
            if not any(each.reason is None for each in self.actions if isinstance(each, ReadRange)):
                self.pop(place)
        return None

    def pop(self, place: Place) -> None:
        """Drops the head of a partition, which was delivered, and puts the partition last."""
        queue = self._queues[place]
        entry = queue[0]
        if len(queue) > 1:
            queue.popleft()
            self.put_last(place)
        else:  # an interrupt leaves no empty queue
            self._queues.pop(place).popleft()
            if self._waited:
                self._expire(place)
        if self._resets and place in self._resets and self._resets[place][0] is entry:
            self._begin(place, *self._resets.pop(place)[1:])

    def put_last(self, place: Place) -> None:
        """Puts a partition last."""
        self._queues.move_to_end(place)

    def put_back(self, popped: Sequence[tuple[Place, Entry[R]]]) -> None:
        """Reverts these calls of `pop`: the application did not receive the records; the last one may have failed."""
        for place, entry in reversed(popped):
            queue = self._queues.setdefault(place, deque())
            if not queue or queue[0] is not entry:
                queue.appendleft(entry)

    def tick(self, seconds: float, places: Iterable[Place]) -> None:
        """Counts the time in which a call has waited for records of these partitions: messages expire by it.

        This must follow the reassembly of the records that have arrived, which may include the last chunk.
        """
        for place in places:
            self._waited[place] = self._waited.get(place, 0.0) + seconds
            self._expire(place)

    # --- actions -----------------------------------------------------------------------------------------------------

    def done(self, discarded: Discarded) -> None:
        """Removes a message that was passed to the application from `actions`, unless its partition was revoked."""
        if self.actions and self.actions[0] is discarded:
            self.actions.popleft()

    def resolve(self, range_: ReadRange) -> None:
        """Processes the first of `actions`, a range that was read to its end, unless its partition was revoked."""
        if not self.actions or self.actions[0] is not range_:
            return
        place: Any = range_.partition
        outcome = self._reassembly.resolve(range_)
        self.actions.popleft()
        if isinstance(outcome, Discarded):
            self.actions.appendleft(outcome)
        if range_.reason is None:
            entry = self._queues[place][0]
            if isinstance(outcome, Assembled):
                self._complete(entry, outcome)
            else:
                self.pop(place)

    # --- positions and commits ---------------------------------------------------------------------------------------

    def position(self, place: Place, offset: int) -> int:
        """The offset from which the next record is delivered.

        If an incomplete message begins more than `lookback` before that, it is the offset of its first chunk: a seek to
        it may repeat records, and loses none.

        Args:
            place: the partition.
            offset: the client's own position: all below it has been put here, or delivered.
        """
        position = self._position(place, offset, stated=False)
        first = self._reassembly.safe_offset(place, position)
        return position if position - first <= self._lookback else first

    def commit(self, place: Place, offset: int, metadata: str = "", *, stated: bool = False) -> tuple[int, str]:
        """The offset and the metadata to commit.

        They pass neither the first chunk of an incomplete message nor a record that was not delivered. If records
        behind them have been delivered, the metadata notes this, unless the application passed metadata.

        Args:
            place: the partition.
            offset: as in `position`.
            metadata: of the application.
            stated: whether the application itself has passed this offset: ordinary records that were not delivered then
                do not count.
        """
        position = self._position(place, offset, stated=stated)
        firsts = [each.first for each in self.actions if _place(each) == place]
        safe, note = self._reassembly.commit(place, position, firsts)
        return safe, metadata or note

    def clear(self, place: Place) -> None:
        """Forgets a partition that was revoked."""
        self._reassembly.clear(place)
        self._forget(place)

    def move(self, place: Place, offset: int) -> None:
        """The application has set a position; messages that span it are retained."""
        self._reassembly.move(place, offset)
        self._forget(place)

    # -----------------------------------------------------------------------------------------------------------------

    def _begin(self, place: Place, offset: int, metadata: str | None) -> None:
        if place in self._begun:
            self._reassembly.clear(place)
            self._noted.pop(place, None)
        self._begun.add(place)
        self._reassembly.begin(place, offset)
        delivered = self._reassembly.resume(place, metadata)
        if delivered > offset:
            self._noted[place] = delivered

    def _position(self, place: Place, offset: int, *, stated: bool) -> int:
        if ready := self.ready.get(place):
            offset = min(offset, self.offset(ready[0]))
        if place in self._resets:  # the offsets of what was fetched before are of a log that is gone
            offset = min(offset, self._resets[place][1])
        lasts = [each.last for each in self.actions if _place(each) == place]
        for entry in self._queues.get(place, ()):
            if entry.offset >= offset:
                break
            if not stated or entry.first is not None or self.is_piece(entry):
                return min([entry.offset, *lasts])
        return min([offset, *lasts])

    def _assemble(self, place: Place, entry: Entry[R]) -> None:
        if not _is_chunk(self.headers(entry.record)):
            delivered = self._noted.get(place, 0)
            entry.ready = entry.offset >= delivered
            if delivered and entry.ready:
                del self._noted[place]
            return
        try:
            ahead_ms = self._waited.get(place, 0.0) * 1000
            for event in self._reassembly.receive(place, self.logged(entry.record), ahead_ms):
                if isinstance(event, Assembled):
                    self._complete(entry, event)
                else:
                    self.actions.append(event)
        except BaseException:
            commit = self.commit(place, entry.offset)  # not before: what was popped may be put back
            self.clear(place)
            self.interrupted[place] = commit
            raise

    def _complete(self, entry: Entry[R], message: Assembled) -> None:
        entry.record, entry.first, entry.ready = self.whole(entry.record, message), message.id.first, True

    def _expire(self, place: Place) -> None:
        if place not in self._queues and (seconds := self._waited.pop(place, 0.0)):
            events = self._reassembly.tick(seconds * 1000, [place])
            self.actions.extend(each for each in events if not isinstance(each, Assembled))

    def _forget(self, place: Place) -> None:
        self._begun.discard(place)
        by_place: dict[Place, Any]
        for by_place in (self.ready, self._queues, self._noted, self._resets, self._waited, self.interrupted):
            by_place.pop(place, None)
        self.actions = deque(each for each in self.actions if _place(each) != place)


def _place(action: Action) -> Place:
    """Where an action is, as `receive` was given it."""
    place: Any
    if isinstance(action, ReadRange):
        place = action.partition
    elif action.gone is not None:
        place = action.gone.partition
    else:
        record: Any = action.records[0]
        place = record.topic, record.partition
    return place  # type: ignore[no-any-return]


def _is_chunk(headers: Iterable[Header] | None) -> bool:
    return bool(headers) and is_chunk(headers)  # type: ignore[arg-type]
