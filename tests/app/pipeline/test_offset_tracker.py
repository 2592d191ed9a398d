"""What may be committed, against a model that knows of every record."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from app.pipeline.offset_tracker import OffsetTracker, Span


@dataclass
class Batch:
    """A batch of the model, with the spans as the sink opens them, and every record in it."""

    spans: dict[OffsetTracker, Span] = field(default_factory=dict)
    offsets: list[tuple[OffsetTracker, int]] = field(default_factory=list)


class Model:
    """Several source partitions whose records go to several sinks in batches, and a set of all durable records."""

    def __init__(self, starts: list[int], sinks: int) -> None:
        self.trackers = [OffsetTracker(start) for start in starts]
        self.next = dict(zip(self.trackers, starts, strict=True))
        self.left: dict[OffsetTracker, list[int]] = {tracker: [] for tracker in self.trackers}
        self.durable: dict[OffsetTracker, set[int]] = {tracker: set() for tracker in self.trackers}
        self.filling = [Batch() for _ in range(sinks)]
        self.sent: list[Batch] = []

    def append(self, source: int, sink: int, gap: int) -> None:
        """The next record of a source leaves for a sink; offsets may have gaps, as in a compacted topic."""
        tracker, batch = self.trackers[source], self.filling[sink]
        offset = self.next[tracker] + gap
        self.next[tracker] = offset + 1
        if tracker not in batch.spans:
            batch.spans[tracker] = tracker.span(offset)
        tracker.released = offset + 1
        batch.offsets.append((tracker, offset))
        self.left[tracker].append(offset)

    def drop(self, source: int) -> None:
        """The next record of a source is dropped by a rule."""
        tracker = self.trackers[source]
        self.next[tracker] += 1
        tracker.released = self.next[tracker]

    def send(self, sink: int) -> None:
        """The batch of a sink is closed."""
        if self.filling[sink].offsets:
            self.sent.append(self.filling[sink])
            self.filling[sink] = Batch()

    def acknowledge(self, which: int) -> None:
        """Some batch that was sent becomes durable, the older ones perhaps not yet."""
        if self.sent:
            batch = self.sent.pop(which % len(self.sent))
            for span in batch.spans.values():
                span.durable = True
            for tracker, offset in batch.offsets:
                self.durable[tracker].add(offset)

    def lost_by_commit(self, tracker: OffsetTracker) -> list[int]:
        """Records before the safe offset that are not durable: each would be lost."""
        safe = tracker.safe()
        return [offset for offset in self.left[tracker] if offset < safe and offset not in self.durable[tracker]]


SOURCES, SINKS = 2, 3
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"), st.integers(0, SOURCES - 1), st.integers(0, SINKS - 1), st.sampled_from([0, 0, 0, 1, 5])
        ),
        st.tuples(st.just("drop"), st.integers(0, SOURCES - 1)),
        st.tuples(st.just("send"), st.integers(0, SINKS - 1)),
        st.tuples(st.just("acknowledge"), st.integers(0, 50)),
    ),
    max_size=60,
)


@given(steps, st.lists(st.integers(0, 2**40), min_size=SOURCES, max_size=SOURCES), st.randoms(use_true_random=False))
def test_safe_never_passes_a_record_that_is_not_durable(
    steps: list[tuple[str, int]], starts: list[int], rng: Random
) -> None:
    """Whatever the order of acknowledgements, a commit loses nothing, never goes back, and ends at the end."""
    model = Model(starts, SINKS)
    safe = dict(zip(model.trackers, starts, strict=True))

    def check() -> None:
        for tracker in model.trackers:
            assert model.lost_by_commit(tracker) == []
            assert tracker.safe() >= safe[tracker]
            safe[tracker] = tracker.safe()
            waiting = set(model.left[tracker]) - model.durable[tracker]
            assert tracker.in_flight == bool(waiting)
            if waiting:
                assert tracker.safe() <= min(waiting)

    for name, *arguments in steps:
        getattr(model, name)(*arguments)
        check()
    for sink in range(SINKS):
        model.send(sink)
    while model.sent:
        model.acknowledge(rng.randrange(len(model.sent)))
        check()
    assert {tracker: tracker.safe() for tracker in model.trackers} == model.next


def test_tracker_begins_where_it_was_told() -> None:
    """Before the first record nothing but the start may be committed."""
    tracker = OffsetTracker(42)
    assert (tracker.safe(), tracker.released, tracker.committed, tracker.in_flight) == (42, 42, 42, False)


def test_safe_is_the_first_record_of_the_oldest_open_batch() -> None:
    """Batches that are durable count only when all before them are."""
    tracker = OffsetTracker(10)
    older, newer = tracker.span(10), tracker.span(13)
    tracker.released = 20
    newer.durable = True
    assert (tracker.safe(), tracker.in_flight) == (10, True)
    older.durable = True
    assert (tracker.safe(), tracker.in_flight) == (20, False)


def test_record_that_is_dropped_needs_no_batch() -> None:
    """A rule that drops a record moves the safe offset, unless an older record is still on its way."""
    tracker = OffsetTracker(0)
    tracker.released = 1
    assert tracker.safe() == 1
    span = tracker.span(1)
    tracker.released = 5
    assert tracker.safe() == 1
    span.durable = True
    assert tracker.safe() == 5


def test_tracker_holds_batches_not_records() -> None:
    """What is kept grows with the batches in flight, not with their records, and shrinks when they are durable."""
    tracker = OffsetTracker(0)
    spans = [tracker.span(first) for first in range(0, 1_000_000, 10_000)]
    assert len(tracker._open) == 100
    for span in spans:
        span.durable = True
    tracker.released = 1_000_000
    assert (tracker.safe(), len(tracker._open)) == (1_000_000, 0)
