"""What may be committed; all orders of acknowledgements and splits are in `test_output.py`."""

from __future__ import annotations

from app.pipeline.offset_tracker import OffsetTracker


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
