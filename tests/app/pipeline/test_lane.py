"""A lane: what is held of one partition."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

from app.pipeline.budget import Budget, Share
from app.pipeline.lane import Lane, Skipped, Working, held_bytes
from tests.app.pipeline.lanes import lane_of
from transforms.record import Header, Record


@dataclass(frozen=True)
class Source:
    """A record as it was read."""

    offset: int
    topic: str = "raw"
    partition: int = 3
    key: bytes | None = None
    value: bytes | None = b"v"
    headers: tuple[Header, ...] = ()
    timestamp: int = 0


def lane() -> Lane:
    """A lane from one partition to the same partition of the sink."""
    return lane_of(3, 3)


def test_lane_is_tracked_from_its_first_record() -> None:
    """The first offset begins the tracker; later ones find it."""
    partition = lane()
    tracker = partition.tracked(7)
    assert (tracker.safe(), partition.tracked(9) is tracker) == (7, True)


def test_a_gap_before_the_first_record_may_be_committed() -> None:
    """Though that record may end the flow: what is before it was deleted, and is not to be looked for again."""
    partition = lane()
    partition.committed = 0
    partition.append(Working(Source(13), held=1))
    assert partition.to_commit() == (13, "")
    partition.mark_committed(13, "")
    assert partition.to_commit() is None


def test_lane_is_busy_until_everything_is_durable() -> None:
    """A record is held in a slot first, then in a batch; the lane is idle when it is in neither."""
    partition = lane()
    assert not partition.busy
    tracker = partition.tracked(0)
    busy = []
    partition.items.append(Working(Source(0), held=1))
    busy.append(partition.busy)
    partition.items.clear()
    busy.append(partition.busy)
    span = tracker.span(0)
    tracker.released = 1
    busy.append(partition.busy)
    span.durable = True
    busy.append(partition.busy)
    assert busy == [True, False, True, False]


def test_what_is_read_behind_the_last_record_may_be_committed() -> None:
    """Marks of transactions are: but not past a record that waits, is worked on, or is not durable."""
    partition = lane()
    partition.committed, partition.read_to = 4, 9
    tried = []
    for waiting in (partition.read.batches, partition.items):
        waiting.append(cast(Any, Working(Source(4), held=1)))
        partition.to_commit()
        tried.append(partition.tracker)
        waiting.clear()
    assert tried == [None, None]
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


def test_nothing_is_committed_where_nobody_knows_what_was() -> None:
    """It could be below what another worker has committed."""
    partition = lane()
    partition.read_to = 9
    partition.to_commit()
    assert partition.tracker is None


async def test_lane_that_is_discarded_stops_its_work() -> None:
    """Work on a partition that was lost is cancelled, and nothing of it is held."""
    partition = lane()
    task = asyncio.create_task(asyncio.sleep(60))
    partition.keep(task)
    partition.items.append(Working(Source(0), held=1))
    partition.discard()
    await asyncio.wait([task], timeout=2)
    assert (task.cancelled(), list(partition.items)) == (True, [])


def test_lane_keeps_little_of_records_of_which_nothing_is_written() -> None:
    """Behind a record that takes its time they wait as one offset: their values are nowhere counted."""
    partition = lane()
    first = Source(3)
    partition.items.append(Working(first, held=1))
    for offset in range(4, 1_000):
        partition.skip(Source(offset, value=bytes(100)))
    partition.items.append(Working(Source(1_000), held=1))
    partition.skip(Source(1_001))
    assert [(item.source.offset, item.source.value, type(item)) for item in partition.items] == [
        (3, b"v", Working),
        (999, None, Skipped),
        (1_000, b"v", Working),
        (1_001, None, Skipped),
    ]
    assert partition.tracked(0).safe() == 4


def test_item_that_is_finished_holds_its_result() -> None:
    """What comes free is what the record held beyond its result; a result that is larger takes more."""
    partition, share = lane_of(3, 3), Share(Budget(100_000))
    partition._share = share
    small, large = Source(0, key=b"kk", value=b"v" * 10), Source(0, value=b"v" * 1_000)
    item = Working(large, held=5_000)
    partition.append(item)
    used = [share.work]
    for result in ((small, small), (large,), ()):
        partition.finish(item, result)
        assert (item.held, item.result, share.used) == (share.work, result, share.work)
        used.append(share.work)
    assert (used, partition.work) == ([5_000, 2 * 412, 1_400, 0], 5_000), "the lane goes by what was admitted"
    partition.pop()
    assert partition.work == 0


def test_item_that_is_finished_lets_go_of_its_record() -> None:
    """It may wait for hours behind another; what the budget counts no more must not be there any more either."""
    partition, item = lane(), Working(Source(7, key=b"k", value=b"v" * 1_000), held=1_400)
    partition.append(item)
    partition.finish(item, (Source(7, value=b"reference"),))
    place = item.source
    assert (place.topic, place.partition, place.offset, place.key, place.value) == ("raw", 3, 7, None, None)


def test_held_bytes_count_headers() -> None:
    """Key, value, headers, and what Python needs for the record and for each header."""
    assert held_bytes(Record(None, None)) == 400
    assert held_bytes(Record(b"key", b"value", (("name", b"12345"), ("n", None)))) == 400 + 8 + 160 + 9 + 160 + 1


def test_lane_is_busy_while_records_wait_for_a_transaction() -> None:
    """Whoever waits until a lane holds nothing waits for those that have left for the next transaction too."""
    partition = lane()
    assert not partition.busy
    partition.waiting = 1
    assert partition.busy


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
    given_up.discard()
    await asyncio.wait(tasks)
    assert cancelled == [*range(100)]
    assert not given_up._tasks
