"""The lanes of a flow: opened and discarded by rebalances, with what they hold."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from aiokafka import TopicPartition

from app.pipeline.budget import Budget, Share
from app.pipeline.lane import Working
from app.pipeline.lanes import Lanes
from tests.app.pipeline.test_termination import Read

FIRST, SECOND = TopicPartition("raw", 0), TopicPartition("raw", 1)


def opened(share: Share) -> Lanes:
    """Two lanes."""
    lanes = Lanes(share, None)
    lanes.open(FIRST, 0)
    lanes.open(SECOND, None)
    return lanes


def test_lanes_discarded_give_back_what_they_hold() -> None:
    """Only the bytes of the lanes that are discarded come back, and a partition without a lane is no error."""
    share = Share(Budget(100))
    lanes = opened(share)
    for partition, held in ((FIRST, 30), (FIRST, 20), (SECOND, 7)):
        lane = lanes.get(partition)
        assert lane is not None
        lane.append(Working(Read(), held))
    lanes.discard([FIRST, TopicPartition("raw", 9)])
    assert (share.used, [lane.partition for lane in lanes], lanes.busy) == (7, [SECOND], True)
    lanes.discard(lane.partition for lane in lanes)
    assert (share.used, len(lanes), lanes.busy) == (0, 0, False)


def test_lanes_do_not_hold_one_that_was_discarded() -> None:
    """A partition that comes back has another lane; work that was begun for the old one must not end in it."""
    lanes = opened(Share(Budget(100)))
    old = lanes.get(FIRST)
    assert old is not None
    assert lanes.has(old)
    lanes.discard([FIRST])
    without = lanes.has(old)
    lanes.open(FIRST, 0)
    assert (without, lanes.has(old)) == (False, False)


async def test_a_lane_that_begins_again_forgets_what_is_measured() -> None:
    """The log may have another record there; nor is the store asked any longer for the one that was there."""
    lanes = opened(Share(Budget(100)))
    lane = lanes.get(FIRST)
    assert lane is not None
    asking = asyncio.create_task(asyncio.Event().wait())
    lane.measuring = cast(Any, (5, asking))
    lane.restart_at(5)
    assert (lane.measuring, asking.cancelling()) == (None, 1)
    await asyncio.gather(asking, return_exceptions=True)


def test_lanes_may_change_while_they_are_gone_through() -> None:
    """A rebalance between two lanes does not break who goes through them."""
    lanes = opened(Share(Budget(100)))
    seen = []
    for lane in lanes:
        seen.append(lane.partition)
        lanes.discard([FIRST, SECOND])
    assert seen == [FIRST, SECOND]


def test_lanes_are_stalled_by_one() -> None:
    """One partition that is not read on is enough."""
    lanes = opened(Share(Budget(100)))
    before = lanes.stalled
    for lane in lanes:
        lane.stalled = 1
        break
    assert (before, lanes.stalled) == (False, True)
