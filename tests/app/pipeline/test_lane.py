"""A lane: what is held of one partition; the lanes of a flow, opened and discarded by rebalances."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from aiokafka import TopicPartition

from app.pipeline.budget import Budget, Share
from app.pipeline.lane import Lane, Skipped, Working, held_bytes
from app.pipeline.lanes import Lanes
from app.pipeline.offset_tracker import OffsetTracker
from tests.app.pipeline.lanes import lane_of
from tests.app.pipeline.test_termination import Read
from transforms.record import Record

FIRST, SECOND = TopicPartition("raw", 0), TopicPartition("raw", 1)


def lane() -> Lane:
    """A lane from one partition to the same partition of the sink."""
    return lane_of(3, 3)


def test_a_gap_before_the_first_record_may_be_committed() -> None:
    """Though that record may end the flow: what is before it was deleted, and is not to be looked for again."""
    partition = lane()
    partition.committed = 0
    partition.append(Working(Read(13), held=1))
    assert partition.to_commit() == (13, "")
    partition.mark_committed(13, "")
    assert partition.to_commit() is None


def test_what_is_read_again_after_the_end() -> None:
    """What was admitted and is not committed, whether it waits in its lane or has left it."""
    lanes = Lanes(Share(Budget(10_000_000)), None)
    for partition in (FIRST, SECOND):
        lanes.open(partition, 0)
    assert lanes.uncommitted() == {}
    first, second = (lane.tracked(10) for lane in lanes)
    assert lanes.uncommitted() == {}
    second.released = 13
    assert lanes.uncommitted() == {SECOND: (10, 3)}
    (waiting, _) = lanes
    waiting.items.extend(Working(Read(offset), held=1) for offset in (11, 14))
    assert lanes.uncommitted() == {FIRST: (10, 5), SECOND: (10, 3)}
    second.committed = 13
    assert lanes.uncommitted() == {FIRST: (10, 5)}
    assert (lanes.partition_of(first), lanes.partition_of(second)) == (FIRST, SECOND)
    assert lanes.partition_of(OffsetTracker(10)) is None


def test_lane_is_busy_until_everything_is_durable() -> None:
    """A record is in a slot first, then in a batch, or waits for a transaction; the lane is idle when it is nowhere."""
    partition = lane()
    tracker = partition.tracked(0)
    busy = [partition.busy]
    partition.items.append(Working(Read(0), held=1))
    busy.append(partition.busy)
    partition.items.clear()
    busy.append(partition.busy)
    span = tracker.span(0)
    tracker.released = 1
    busy.append(partition.busy)
    span.durable = True
    busy.append(partition.busy)
    partition.waiting = 1
    busy.append(partition.busy)
    assert busy == [False, True, False, True, False, True]


def test_what_is_read_behind_the_last_record_may_be_committed() -> None:
    """Marks of transactions are: but not past a record that waits, is worked on, or is not durable."""
    partition = lane()
    partition.read_to = 9
    partition.to_commit()
    assert partition.tracker is None, "it could be below what another worker has committed"
    partition.committed = 4
    for waiting in (partition.read.batches, partition.items):
        waiting.append(cast(Any, Working(Read(4), held=1)))
        partition.to_commit()
        assert partition.tracker is None
        waiting.clear()
    partition.waiting = 1
    partition.to_commit()
    assert partition.tracker is None
    partition.waiting = 0
    partition.to_commit()
    tracker = partition.tracked(99)
    assert (tracker.committed, tracker.safe()) == (4, 9)
    span = tracker.span(9)
    tracker.released, partition.read_to = 10, 12
    partition.to_commit()
    assert tracker.safe() == 9
    span.durable = True
    assert tracker.safe() == 12


def test_lane_keeps_little_of_records_of_which_nothing_is_written() -> None:
    """Behind a record that takes its time they wait as one offset: their values are nowhere counted."""
    partition = lane()
    partition.items.append(Working(Read(3), held=1))
    for offset in range(4, 1_000):
        partition.skip(Read(offset, value=bytes(100)))
    partition.items.append(Working(Read(1_000), held=1))
    partition.skip(Read(1_001))
    assert [(item.source.offset, item.source.value, type(item)) for item in partition.items] == [
        (3, b"v", Working),
        (999, None, Skipped),
        (1_000, b"v", Working),
        (1_001, None, Skipped),
    ]
    assert partition.tracked(0).safe() == 4


def test_item_that_is_finished_holds_its_result() -> None:
    """What comes free is what the record held beyond its result, which takes more if it is larger; the record goes."""
    partition, share = lane_of(3, 3), Share(Budget(100_000))
    partition._share = share
    small, large = Record(b"kk", b"v" * 10), Record(None, b"v" * 1_000)
    item = Working(Read(7, key=b"k", value=b"v" * 1_000), held=5_000)
    partition.append(item)
    used = [share.work]
    for result in ((small, small), (large,), ()):
        partition.finish(item, result)
        assert (item.held, item.result, share.used) == (share.work, result, share.work)
        used.append(share.work)
    assert (used, partition.work) == ([5_000, 2 * 412, 1_400, 0], 5_000), "the lane goes by what was admitted"
    place = item.source
    assert (place.topic, place.partition, place.offset, place.key, place.value) == ("raw", 3, 7, None, None)
    partition.pop()
    assert partition.work == 0


def test_held_bytes_count_headers() -> None:
    """Key, value, headers, and what Python needs for the record and for each header."""
    assert held_bytes(Record(None, None)) == 400
    assert held_bytes(Record(b"key", b"value", (("name", b"12345"), ("n", None)))) == 400 + 8 + 160 + 9 + 160 + 1


async def test_the_tasks_of_a_lane_are_cancelled_in_the_order_in_which_they_began() -> None:
    """However many there are: else two runs of a simulation with one seed would differ. Those that ended are let go."""
    given_up, cancelled = lane(), list[int]()

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    ended = asyncio.create_task(asyncio.sleep(0))
    given_up.keep(ended)
    tasks = [asyncio.create_task(work(number)) for number in range(100)]
    for task in tasks:
        given_up.keep(task)
    await asyncio.wait([ended])
    await asyncio.sleep(0)
    assert list(given_up._tasks) == tasks
    given_up.items.append(Working(Read(0), held=1))
    given_up.discard()
    await asyncio.wait(tasks)
    assert (cancelled, list(given_up.items)) == ([*range(100)], [])
    assert not given_up._tasks


# --- lanes -----------------------------------------------------------------------------------------------------------


def opened(share: Share) -> tuple[Lanes, Lane]:
    """Two lanes, and the first of them."""
    lanes = Lanes(share, None)
    lanes.open(FIRST, 0)
    lanes.open(SECOND, None)
    return lanes, next(iter(lanes))


def test_lanes_discarded_give_back_what_they_hold() -> None:
    """Only the bytes of the lanes that are discarded come back, and a partition without a lane is no error."""
    share = Share(Budget(100))
    lanes, _ = opened(share)
    for lane, held in zip(lanes, ((30, 20), (7,)), strict=True):
        for size in held:
            lane.append(Working(Read(), size))
    lanes.discard([FIRST, TopicPartition("raw", 9)])
    assert (share.used, [lane.partition for lane in lanes], lanes.busy) == (7, [SECOND], True)
    lanes.discard(lane.partition for lane in lanes)
    assert (share.used, len(lanes), lanes.busy) == (0, 0, False)


def test_lanes_do_not_hold_one_that_was_discarded() -> None:
    """A partition that comes back has another lane; work that was begun for the old one must not end in it."""
    lanes, old = opened(Share(Budget(100)))
    had = [lanes.has(old)]
    lanes.discard([FIRST])
    had.append(lanes.has(old))
    lanes.open(FIRST, 0)
    assert [*had, lanes.has(old)] == [True, False, False]


async def test_a_lane_that_begins_again_forgets_what_is_measured() -> None:
    """The log may have another record there; nor is the store asked any longer for the one that was there."""
    _, lane = opened(Share(Budget(100)))
    asking = asyncio.create_task(asyncio.Event().wait())
    lane.measuring = cast(Any, (5, asking))
    lane.restart_at(5)
    assert (lane.measuring, asking.cancelling()) == (None, 1)
    await asyncio.gather(asking, return_exceptions=True)


def test_lanes_may_change_while_they_are_gone_through() -> None:
    """A rebalance between two lanes does not break who goes through them; one that is not read on is enough."""
    lanes, first = opened(Share(Budget(100)))
    stalled = [lanes.stalled]
    first.stalled = 1
    stalled.append(lanes.stalled)
    seen = []
    for lane in lanes:
        seen.append(lane.partition)
        lanes.discard([FIRST, SECOND])
    assert (seen, stalled) == ([FIRST, SECOND], [False, True])


# --- what may be committed -------------------------------------------------------------------------------------------


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


def test_batch_that_is_split_keeps_the_order_of_spans() -> None:
    """Its later records may be behind those of a batch to another partition, which are not durable."""
    tracker = OffsetTracker(0)
    early, between = tracker.span(0), tracker.span(5)
    late = tracker.span_behind(early, 8)
    tracker.released = 10
    found = [tracker.safe()]
    for span in (early, between, late):
        span.durable = True
        found.append(tracker.safe())
    assert found == [0, 5, 8, 10]
