"""Where reading goes on in a log that was cut; brokers that cut one are in `tests/integration/cut_log.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError

from app.kafka.clients import ClusterError
from app.kafka.errors import GroupMovedOnError
from app.pipeline.budget import Budget, Share
from app.pipeline.lane_assembler import LaneAssembler
from app.pipeline.lanes import Lanes
from app.pipeline.offset_reset import OffsetReset
from app.pipeline.runtime import monotonic
from app.pipeline.stats import PipelineStats
from tests.app.pipeline.test_lane_assembler import SETTINGS as ASSEMBLING
from transforms.commit_metadata import note
from transforms.epoch_history import Cut

FIRST, SECOND = TopicPartition("raw", 0), TopicPartition("raw", 1)
OUT_OF_RANGE = OffsetOutOfRangeError({FIRST: 30})


class Consumer:
    """A member of a group, whose logs were cut.

    Attributes:
        cuts: by partition.
        begun: the offsets from which partitions were begun again.
        committed: the offsets that were committed.
        notes: their metadata.
        first: the first offset of each log.
        refuses: whether the group takes no commit.
        meanwhile: called while the brokers are asked.
        later: the cuts that leaders tell only when they are waited for.
        waited: how often they were.
        unknown: the partitions of which nothing is committed.
    """

    def __init__(self, **cuts: int) -> None:
        self.cuts = {TopicPartition("raw", int(name[1:])): Cut(offset, 3, 30) for name, offset in cuts.items()}
        self.begun: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.notes: dict[TopicPartition, str] = {}
        self.first = 0
        self.refuses = False
        self.meanwhile: Callable[[], None] = lambda: None
        self.later: dict[TopicPartition, Cut] = {}
        self.waited = 0
        self.unknown: set[TopicPartition] = set()

    def cut(self, partition: TopicPartition) -> Cut | None:
        return self.cuts.get(partition)

    def position(self, partition: TopicPartition) -> int | None:
        return 30 if partition not in self.unknown else None

    async def commits(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {each: 30 for each in partitions if each not in self.unknown}

    async def compare(self, offsets: Mapping[TopicPartition, int], within_s: float) -> None:
        assert within_s > 0
        self.waited += 1
        self.cuts |= {partition: self.later[partition] for partition in offsets if partition in self.later}

    async def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        self.meanwhile()
        return self.first, 50

    def begin(self, partition: TopicPartition, offset: int) -> bool:
        self.begun[partition] = offset
        return True

    async def commit(self, offsets: dict[TopicPartition, tuple[int, str]]) -> None:
        if self.refuses:
            raise GroupMovedOnError("the group has moved on")
        self.committed |= {partition: offset for partition, (offset, _) in offsets.items()}
        self.notes |= {partition: note for partition, (_, note) in offsets.items()}


class Flow:
    """The parts of a flow with two partitions, and its offset reset."""

    def __init__(
        self,
        consumer: Consumer,
        policy: str | None = "earliest",
        committed: Mapping[TopicPartition, int] | None = None,
        *,
        assembles: bool = False,
    ) -> None:
        self.consumer = consumer
        self.stats = PipelineStats()
        assembler = LaneAssembler(ASSEMBLING, self.stats, clock=monotonic) if assembles else None
        self.lanes = Lanes(Share(Budget(1_000)), assembler)
        for partition in (FIRST, SECOND):
            self.lanes.open(partition, 0)
        for partition, offset in (committed or {}).items():
            lane = self.lanes.get(partition)
            assert lane is not None
            lane.tracked(offset).released = 30
        settings = SimpleNamespace(name="p", consumer={"consumer.auto.offset.reset": policy})
        self.reset = OffsetReset(cast(Any, consumer), cast(Any, settings), self.lanes, stats=self.stats, renewed=())


async def test_topics_that_were_created_again_begin_when_they_are_assigned() -> None:
    """At their first records, which is committed; until then they are not forgotten."""
    consumer = Consumer()
    consumer.first = 7
    flow = Flow(consumer)
    flow.reset = OffsetReset(
        cast(Any, consumer),
        cast(Any, SimpleNamespace(name="p", consumer={"consumer.auto.offset.reset": None})),
        flow.lanes,
        stats=flow.stats,
        renewed=["raw"],
    )
    await flow.reset.renew([])
    assert flow.reset.renewing
    consumer.refuses = True
    with pytest.raises(GroupMovedOnError):
        await flow.reset.renew(flow.lanes)
    assert flow.reset.renewing
    consumer.refuses = False
    await flow.reset.renew(flow.lanes)
    assert (consumer.committed, flow.reset.renewing) == ({FIRST: 7, SECOND: 7}, False)


@pytest.mark.parametrize("policy", ["earliest", "latest"])
@pytest.mark.parametrize(("first", "begins"), [(0, 10), (12, 12)])
async def test_cut_below_a_committed_offset(policy: str, first: int, begins: int) -> None:
    """Nothing was read yet: reading begins where the logs part, or at the first record behind; that is committed."""
    consumer = Consumer(p0=10)
    consumer.first = first
    flow = Flow(consumer, policy)
    await flow.reset.find(OUT_OF_RANGE)
    assert consumer.begun == consumer.committed == {FIRST: begins}
    assert flow.stats.truncated_records == 20
    lane = flow.lanes.get(FIRST)
    assert lane is not None
    assert lane.committed == begins


async def test_cut_below_what_is_in_flight() -> None:
    """The flow ends, and commits nothing of the lost log; all partitions that are known to be cut are told."""
    consumer = Consumer(p0=10, p1=25)
    flow = Flow(consumer, committed={FIRST: 20, SECOND: 5})
    with pytest.raises(
        ClusterError, match=r"topic raw, partition \d: .* up to offset 30, and parts .* at \d+$"
    ) as caught:
        await flow.reset.find(OUT_OF_RANGE)
    assert caught.value.retriable
    assert consumer.committed == {FIRST: 10}  # of the other one nothing was committed behind the cut
    assert not len(flow.lanes)
    assert flow.stats.truncated_records == 25


async def test_cut_that_another_leader_has_not_told_yet() -> None:
    """The flow waits for the leaders of the other partitions, since the next flow is not told what it has lost."""
    consumer = Consumer(p0=10)
    consumer.later = {SECOND: Cut(25, 3, 30)}
    flow = Flow(consumer, committed={FIRST: 20, SECOND: 5})
    with pytest.raises(ClusterError, match=r"parts from what was read at \d+$"):
        await flow.reset.find(OUT_OF_RANGE)
    assert flow.stats.truncated_records == 25
    assert consumer.waited == 1  # not once more for each log that was cut


async def test_cut_with_none() -> None:
    """The pipeline stops, for good, and says where the logs part; nothing is committed."""
    consumer = Consumer(p0=10)
    flow = Flow(consumer, "none", {FIRST: 20})
    with pytest.raises(
        ClusterError, match=r"parts from what was read at 10; consumer\.auto\.offset\.reset is none"
    ) as caught:
        await flow.reset.find(OUT_OF_RANGE)
    assert not caught.value.retriable
    assert consumer.begun == {}


@pytest.mark.parametrize("tracked", [{}, {FIRST: 20}])
async def test_cut_of_a_partition_that_goes_meanwhile(tracked: dict[TopicPartition, int]) -> None:
    """Its new owner finds out by itself: nothing is committed over what that one commits."""
    consumer = Consumer(p0=10)
    flow = Flow(consumer, committed=tracked)
    consumer.meanwhile = lambda: flow.lanes.discard(lane.partition for lane in flow.lanes)
    await flow.reset.find(OUT_OF_RANGE)
    assert consumer.begun == {}


async def test_cut_that_the_group_does_not_take() -> None:
    """A commit that is refused ends the flow all the same, whose records in flight are of the lost log."""
    consumer = Consumer(p0=10)
    consumer.refuses = True
    flow = Flow(consumer, committed={FIRST: 20})
    with pytest.raises(ClusterError):
        await flow.reset.find(OUT_OF_RANGE)
    assert flow.stats.truncated_records == 0


async def test_cut_of_what_was_delivered_behind_the_commit() -> None:
    """With chunks: reading begins at the commit, and what was delivered below the cut still counts as delivered."""
    consumer = Consumer(p0=20)
    flow = Flow(consumer)
    lane = flow.lanes.get(FIRST)
    assert lane is not None
    lane.delivered = 30
    await flow.reset.find(OffsetOutOfRangeError({FIRST: 5}))
    assert consumer.committed == {FIRST: 5}
    assert consumer.notes == {FIRST: note(5, 20, ())}
    assert flow.stats.truncated_records == 10


async def test_metadata_of_a_lost_log_is_not_kept() -> None:
    """In flight, with chunks: the next flow takes no new record for a delivered one, and delivers none again.

    The simulation's seed 205 at 11d6f0bd: records came out twice at exactly once.
    """
    consumer = Consumer(p0=20)
    flow = Flow(consumer, committed={FIRST: 5})
    lane = flow.lanes.get(FIRST)
    assert lane is not None
    lane.noted = note(5, 30, ())
    with pytest.raises(ClusterError):
        await flow.reset.find(OUT_OF_RANGE)
    assert consumer.committed == {FIRST: 5}
    assert consumer.notes == {FIRST: note(5, 20, ())}


async def test_metadata_that_says_nothing_of_a_lost_log_stays() -> None:
    """What is committed with it is right as it is."""
    consumer = Consumer(p0=20)
    flow = Flow(consumer, committed={FIRST: 5})
    lane = flow.lanes.get(FIRST)
    assert lane is not None
    lane.noted = note(5, 20, ("a" * 22,))
    with pytest.raises(ClusterError):
        await flow.reset.find(OUT_OF_RANGE)
    assert consumer.committed == {}


@pytest.mark.parametrize("policy", ["earliest", None])
@pytest.mark.parametrize("refuses", [False, True])
async def test_first_beginning_of_a_group(policy: str | None, refuses: bool) -> None:  # noqa: FBT001
    """It is committed before a record is read: after a kill, the start need not ask again whether it may begin."""
    consumer = Consumer()
    consumer.first, consumer.refuses = 7, refuses
    consumer.unknown = {FIRST}
    flow = Flow(consumer, policy)
    await flow.reset.find(NoOffsetForPartitionError(FIRST))
    assert (consumer.begun, consumer.committed) == ({FIRST: 7}, {} if refuses else {FIRST: 7})


@pytest.mark.parametrize(("delivered", "kept"), [(40, True), (50, True), (51, False)])
async def test_retention_below_a_message_that_is_not_whole(delivered: int, kept: bool) -> None:  # noqa: FBT001
    """What was delivered above the commit is not delivered again, unless the log cannot be the one it was read from.

    The simulation's seed 50005 at c6c5f2d3: messages came out twice at exactly once.
    """
    consumer = Consumer()
    consumer.first = 35
    flow = Flow(consumer, assembles=True)
    lane = flow.lanes.get(FIRST)
    assert lane is not None
    torn = ("a" * 22,)
    lane.resume(30, note(30, delivered, torn), "p")
    await flow.reset.find(OUT_OF_RANGE)
    assert consumer.begun == {FIRST: 35}
    assert lane.delivered == (delivered if kept else 0)
    if kept:
        assert lane.to_commit() == (35, note(35, delivered, torn))
    else:
        assert consumer.committed == {FIRST: 35}
        assert (consumer.notes, lane.to_commit()) == ({FIRST: ""}, None)
    assert flow.stats.expired_records == 5
