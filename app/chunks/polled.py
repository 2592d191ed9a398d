"""Chunks for a consumer that polls one record after the other, on one thread: messages, and the offsets to commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Protocol

from app.chunks.bounded_queue import BoundedQueue
from app.kafka.source_batch import ReadRecord
from transforms.assembly import Assembled, Assembler, Counts, Discarded, Limits, Reread
from transforms.commit_metadata import noted
from transforms.rereading import Beginnings, Rereading

__all__ = ["OnDiscarded", "Place", "Polled", "Rereads", "Seeking"]

_STEP_RECORDS = 500

Place = tuple[str, int]
"""A topic and the number of a partition."""

OnDiscarded = Callable[[Discarded], object]
"""What an application is called with for a message that is not whole."""


class Polled:
    """The incomplete messages of a consumer. Belongs to one thread.

    Args:
        limits: how much may be held in memory; what is over them is to be read again.
        lookback: how many offsets before the one where reading began the first chunk of a message may be.

    Attributes:
        discarded: what is to be given to the application, in order; or what is to be read again for that.
        again: the message that is to be delivered next, once it has been read again.
    """

    def __init__(self, limits: Limits, lookback: int) -> None:
        self.limits = limits
        self.lookback = lookback
        self.discarded = BoundedQueue[tuple[Place, Discarded | Reread]]()
        self.again: Reread | None = None
        self._assembler = Assembler(limits, self._on_reread)
        self._elapsed_s: dict[Place, float] = {}
        self._beginnings: dict[Place, Beginnings] = {}
        self._has_seen = False  # a chunk, or the note of one

    @property
    def counts(self) -> Counts:
        """How many messages have been assembled and discarded, and how many chunks were ignored, so far."""
        return self._assembler.counts

    @property
    def pending(self) -> int:
        """How many messages are incomplete."""
        return self._assembler.pending

    @property
    def pending_bytes(self) -> int:
        """The memory of their chunks."""
        return self._assembler.pending_bytes

    def stats(self) -> dict[str, int]:
        """The incomplete messages."""
        return {
            "pendingChunkedMessages": self.pending,
            "pendingChunkedBytes": self.pending_bytes,
            "setAside": self.counts.set_aside,
            "expired": self.counts.discarded.get("expired", 0),
        }

    @property
    def waits(self) -> bool:
        """Whether the time of a message is running."""
        if not self._has_seen:  # nearly every consumer, and it asks for each record
            return False
        return bool(self.limits.expire_ms and (self._assembler.pending or self._assembler.repeating))

    def begin(self, place: Place, offset: int) -> None:
        """Takes in the offset of the first record of a partition that is polled."""
        self._assembler.begin(place, offset)

    def take(self, record: ReadRecord) -> Assembled | None:
        """Takes a chunk; returns the message that is whole with it. Other outcomes are in `discarded` and `again`."""
        place = (record.topic, record.partition)
        self._has_seen = True
        whole: Assembled | None = None
        for event in self._assembler.add(place, record, self._now_ms(place)):
            if isinstance(event, Assembled):
                whole = event
            else:
                self._discard(event)
        return whole

    def count(self, places: Iterable[Place], seconds: float) -> None:
        """Adds the time in which the consumer has waited for these partitions, and discards what is too old."""
        for place in places:
            self._elapsed_s[place] = self._elapsed_s.get(place, 0.0) + seconds
            for event in self._assembler.expire(self._now_ms(place), place):
                self._discard(event)

    def resolve(self, reread: Reread, outcome: Assembled | Discarded | None, beginning: int | None) -> None:
        """Takes in what `Rereads.read` gave: `again`, or the first of `discarded`, is done with."""
        if reread is self.again:
            self.again = None
            self._assembler.resolve(reread, outcome, beginning)
            if isinstance(outcome, Discarded):
                self._wait(self._of(reread), outcome)
        elif isinstance(outcome, Discarded):
            self.discarded.replace_head((self._of(reread), outcome))
        else:
            self.discarded.drop_head()

    def delivered(self, place: Place, offset: int) -> bool:
        """Whether an ordinary record at this offset was delivered before the restart."""
        return self._assembler.delivered(place, offset)

    def position(self, place: Place, offset: int) -> int:
        """The offset from which the next record is delivered, if all below `offset` have been polled.

        If an incomplete message begins more than `lookback` before that, it is the offset of its first chunk.
        """
        position = self._undelivered(place, offset)
        first = self._assembler.safe_offset(place, position)
        return position if position - first <= self.lookback else first

    def safe(self, place: Place, offset: int, metadata: str = "", *, before: int | None = None) -> tuple[int, str]:
        """The offset and the metadata to commit, if all below `offset` have been polled; none passes `before`."""
        firsts = [first for first, _ in self._waiting(place)] + ([] if before is None else [before])
        safe, noted_too = self._assembler.commit(place, self._undelivered(place, offset), firsts)
        return safe, metadata or noted_too

    def resume(self, place: Place, metadata: str | None) -> None:
        """Takes in the metadata of the commit at which reading begins."""
        found = noted(metadata)
        if found is not None:
            self._has_seen = True
            self._assembler.resume(place, found.delivered, found.torn)

    def clear(self, place: Place) -> None:
        """Forgets a partition that was revoked."""
        self._assembler.clear(place)
        self._elapsed_s.pop(place, None)
        self._forget(place)

    def move(self, place: Place, offset: int) -> None:
        """Takes in that the application has set a position; see `Assembler.move`."""
        self._assembler.move(place, offset)
        self._forget(place)

    def _forget(self, place: Place) -> None:
        self.discarded.forget(place)
        if self.again is not None and self._of(self.again) == place:
            self.again = None

    def beginnings(self, place: Place, below: int, first: Callable[[Place], int]) -> Beginnings:
        """What is known of the messages that begin before the offset where reading began."""
        known = self._beginnings.get(place)
        if known is None or known.below != below:
            known = self._beginnings[place] = Beginnings(below, max(first(place), below - self.lookback))
        return known

    def _now_ms(self, place: Place) -> int:
        return int(self._elapsed_s.get(place, 0.0) * 1000)

    def _on_reread(self, reread: Reread) -> None:
        if reread.reason is None:
            self.again = reread
        else:
            self._wait(self._of(reread), reread)

    def _discard(self, event: Discarded) -> None:
        first = event.records[0]
        assert isinstance(first, ReadRecord)
        self._wait((first.topic, first.partition), event)

    def _wait(self, place: Place, event: Discarded | Reread) -> None:
        self.discarded.append(place, (place, event), event.first, event.last)

    def _waiting(self, place: Place) -> Iterator[tuple[int, int]]:
        """First and last offsets of what is not delivered yet in a partition."""
        lowest = self.discarded.lowest(place)
        if lowest is not None:
            yield lowest
        if self.again is not None and self._of(self.again) == place:
            yield self.again.first, self.again.last

    def _undelivered(self, place: Place, offset: int) -> int:
        return min([offset, *(last for _, last in self._waiting(place))])

    @staticmethod
    def _of(reread: Reread) -> Place:
        place: Place = reread.partition  # type: ignore[assignment]  # as `take` gave it
        return place


class Seeking(Protocol):
    """A consumer of its own, that reads one partition anywhere."""

    def first(self, place: Place) -> int:
        """The lowest offset that is still in the log."""

    def records(self, place: Place, start: int, end: int) -> Iterator[ReadRecord | None]:
        """The records of a range that are still in the log; None where it has waited a moment for more."""

    def close(self) -> None:
        """Closes it."""


_Steps = Generator[None, None, tuple[Assembled | Discarded | None, int | None]]


class Rereads:
    """Reads messages again, in steps that a call can end between. Belongs to one thread.

    Args:
        polled: the incomplete messages.
        opened: opens the consumer that reads, when the first message is to be read again.
    """

    def __init__(self, polled: Polled, opened: Callable[[], Seeking]) -> None:
        self._polled = polled
        self._opened = opened
        self._log: Seeking | None = None
        self._steps: tuple[Reread, _Steps] | None = None

    def read(self, reread: Reread, until_s: float) -> tuple[Assembled | Discarded | None, int | None] | None:
        """Reads on, at least one step, until the time of `time.monotonic` is over.

        Returns:
            `Rereading.outcome` and `Rereading.beginning`; None if it is not done. After an error the next call begins
            anew.
        """
        if self._steps is None or self._steps[0] is not reread:
            self._steps = (reread, self._read(reread))
        try:
            while True:
                next(self._steps[1])
                if time.monotonic() >= until_s:
                    return None
        except StopIteration as end:
            self._steps = None
            found: tuple[Assembled | Discarded | None, int | None] = end.value
            return found
        except BaseException:
            self._steps = None
            raise

    def forget(self, place: Place) -> None:
        """Ends the reading of a message of this partition."""
        if self._steps is not None and self._steps[0].partition == place:
            self._steps = None

    def close(self) -> None:
        """Closes the consumer."""
        log, self._log, self._steps = self._log, None, None
        if log is not None:
            log.close()

    def _read(self, reread: Reread) -> _Steps:
        if self._log is None:
            self._log = self._opened()
        log, polled = self._log, self._polled
        place: Place = reread.partition  # type: ignore[assignment]  # as `Polled` gave it
        start = reread.first
        if reread.below is not None and reread.reason is None:
            known = polled.beginnings(place, reread.below, log.first)
            while (range_ := known.missing(reread.uuid)) is not None:
                yield from _in_steps(log.records(place, *range_), known.take)
                known.searched(range_[0])
            found = known.of(reread.uuid)
            start = start if found is None else found
        rereading = Rereading(polled.limits, reread)
        yield from _in_steps(log.records(place, start, reread.last + 1), rereading.take)
        return rereading.outcome(), rereading.beginning


def _in_steps(records: Iterable[ReadRecord | None], take: Callable[[ReadRecord], object]) -> Iterator[None]:
    """Takes each record; yields where there was none for a moment, and after many."""
    for number, record in enumerate(records, 1):
        if record is not None:
            take(record)
        if record is None or number % _STEP_RECORDS == 0:
            yield
