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
from app.pipeline.lanes import Lanes
from app.pipeline.offset_reset import OffsetReset
from app.pipeline.stats import PipelineStats
from tests.app.pipeline.test_lane_assembler import assembling
from transforms.commit_metadata import note
from transforms.epoch_history import Cut

FIRST, SECOND = TopicPartition("raw", 0), TopicPartition("raw", 1)
OUT_OF_RANGE = OffsetOutOfRangeError({FIRST: 30})
TORN = ("a" * 22,)


class Flow:
    """An offset reset with two partitions, and the member of a group, whose logs were cut.

    Attributes:
        cuts: by partition; `later` those that leaders tell only when they are `waited` for, so often.
        begun: the offsets from which partitions were begun again.
        committed: the offsets that were committed, and `notes` their metadata.
        first: the first offset of each log.
        refuses: whether the group takes no commit.
        meanwhile: called while the brokers are asked.
        unknown: the partitions of which nothing is committed.
    """

    def __init__(
        self,
        *,
        cut: int | None = None,
        policy: str | None = "earliest",
        in_flight: Mapping[TopicPartition, int] | None = None,
        assembles: bool = False,
        renewed: Sequence[str] = (),
    ) -> None:
        self.cuts = {} if cut is None else {FIRST: Cut(cut, 3, 30)}
        self.later: dict[TopicPartition, Cut] = {}
        self.begun: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.notes: dict[TopicPartition, str] = {}
        self.first = self.waited = 0
        self.refuses = False
        self.meanwhile: Callable[[], None] = lambda: None
        self.unknown: set[TopicPartition] = set()
        self.stats = PipelineStats()
        self.lanes = Lanes(Share(Budget(1_000)), assembling(self.stats) if assembles else None)
        for partition in (FIRST, SECOND):
            self.lanes.open(partition, 0)
        self.lane, second = self.lanes
        for lane, partition in ((self.lane, FIRST), (second, SECOND)):
            if partition in (in_flight or {}):
                lane.tracked((in_flight or {})[partition]).released = 30
        settings = SimpleNamespace(name="p", consumer={"consumer.auto.offset.reset": policy})
        self.reset = OffsetReset(cast(Any, self), cast(Any, settings), self.lanes, stats=self.stats, renewed=renewed)

    async def find(self, told: str | None = None, *, retriable: bool = True) -> None:
        """Finds where reading goes on; with an error of this text, that ends the flow."""
        if told is None:
            await self.reset.find(OUT_OF_RANGE)
            return
        with pytest.raises(ClusterError, match=told) as caught:
            await self.reset.find(OUT_OF_RANGE)
        assert caught.value.retriable == retriable

    # --- the consumer ---

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


async def test_topics_that_were_created_again_begin_when_they_are_assigned() -> None:
    """At their first records, which is committed; until then they are not forgotten."""
    flow = Flow(policy=None, renewed=["raw"])
    flow.first = 7
    await flow.reset.renew([])
    assert flow.reset.renewing
    flow.refuses = True
    with pytest.raises(GroupMovedOnError):
        await flow.reset.renew(flow.lanes)
    assert flow.reset.renewing
    flow.refuses = False
    await flow.reset.renew(flow.lanes)
    assert (flow.committed, flow.reset.renewing) == ({FIRST: 7, SECOND: 7}, False)


@pytest.mark.parametrize("policy", ["earliest", "latest"])
@pytest.mark.parametrize(("first", "begins"), [(0, 10), (12, 12)])
async def test_cut_below_a_committed_offset(policy: str, first: int, begins: int) -> None:
    """Nothing was read yet: reading begins where the logs part, or at the first record behind; that is committed."""
    flow = Flow(cut=10, policy=policy)
    flow.first = first
    await flow.find()
    assert flow.begun == flow.committed == {FIRST: begins}
    assert (flow.stats.truncated_records, flow.lane.committed) == (20, begins)


@pytest.mark.parametrize("later", [False, True])
async def test_cut_below_what_is_in_flight(*, later: bool) -> None:
    """The flow ends, and commits nothing of the lost log; it waits for what leaders tell of other partitions, once."""
    flow = Flow(cut=10, in_flight={FIRST: 20, SECOND: 5})
    (flow.later if later else flow.cuts)[SECOND] = Cut(25, 3, 30)
    await flow.find(r"topic raw, partition \d: .* up to offset 30, and parts from what was read at \d+$")
    assert flow.committed == {FIRST: 10}  # of the other one nothing was committed behind the cut
    assert (len(flow.lanes), flow.stats.truncated_records, flow.waited) == (0, 25, 1)


async def test_cut_with_none() -> None:
    """The pipeline stops, for good, and says where the logs part; nothing is committed."""
    flow = Flow(cut=10, policy="none", in_flight={FIRST: 20})
    await flow.find(r"parts from what was read at 10; consumer\.auto\.offset\.reset is none", retriable=False)
    assert (flow.begun, flow.committed) == ({}, {})


@pytest.mark.parametrize("in_flight", [{}, {FIRST: 20}])
async def test_cut_of_a_partition_that_goes_meanwhile(in_flight: dict[TopicPartition, int]) -> None:
    """Its new owner finds out by itself: nothing is committed over what that one commits."""
    flow = Flow(cut=10, in_flight=in_flight)
    flow.meanwhile = lambda: flow.lanes.discard(lane.partition for lane in flow.lanes)
    await flow.find()
    assert (flow.begun, flow.committed) == ({}, {})


async def test_cut_that_the_group_does_not_take() -> None:
    """A commit that is refused ends the flow all the same, whose records in flight are of the lost log."""
    flow = Flow(cut=10, in_flight={FIRST: 20})
    flow.refuses = True
    await flow.find("at 10$")
    assert flow.stats.truncated_records == 0


async def test_cut_of_what_was_delivered_behind_the_commit() -> None:
    """With chunks: reading begins at the commit, and what was delivered below the cut still counts as delivered."""
    flow = Flow(cut=20)
    flow.lane.delivered = 30
    await flow.reset.find(OffsetOutOfRangeError({FIRST: 5}))
    assert (flow.committed, flow.notes) == ({FIRST: 5}, {FIRST: note(5, 20, ())})
    assert flow.stats.truncated_records == 10


@pytest.mark.parametrize(
    ("noted", "committed"), [(note(5, 30, ()), {FIRST: (5, note(5, 20, ()))}), (note(5, 20, TORN), {})]
)
async def test_metadata_of_a_lost_log_is_not_kept(noted: str, committed: Mapping[object, object]) -> None:
    """In flight, with chunks: the next flow takes no new record for a delivered one, and delivers none again.

    The simulation's seed 205 at 11d6f0bd: records came out twice at exactly once. What says nothing of it stays.
    """
    flow = Flow(cut=20, in_flight={FIRST: 5})
    flow.lane.noted = noted
    await flow.find("at 20$")
    assert {partition: (offset, flow.notes[partition]) for partition, offset in flow.committed.items()} == committed


@pytest.mark.parametrize("policy", ["earliest", None])
@pytest.mark.parametrize("refuses", [False, True])
async def test_first_beginning_of_a_group(*, policy: str | None, refuses: bool) -> None:
    """It is committed before a record is read: after a kill, the start need not ask again whether it may begin."""
    flow = Flow(policy=policy)
    flow.first, flow.refuses, flow.unknown = 7, refuses, {FIRST}
    await flow.reset.find(NoOffsetForPartitionError(FIRST))
    assert (flow.begun, flow.committed) == ({FIRST: 7}, {} if refuses else {FIRST: 7})


@pytest.mark.parametrize(("delivered", "kept"), [(40, True), (50, True), (51, False)])
async def test_retention_below_a_message_that_is_not_whole(*, delivered: int, kept: bool) -> None:
    """What was delivered above the commit is not delivered again, unless the log cannot be the one it was read from.

    The simulation's seed 50005 at c6c5f2d3: messages came out twice at exactly once.
    """
    flow = Flow(assembles=True)
    flow.first = 35
    flow.lane.resume(30, note(30, delivered, TORN), "p")
    await flow.find()
    assert (flow.begun, flow.lane.delivered) == ({FIRST: 35}, delivered if kept else 0)
    if kept:
        assert flow.lane.to_commit() == (35, note(35, delivered, TORN))
    else:
        assert (flow.committed, flow.notes, flow.lane.to_commit()) == ({FIRST: 35}, {FIRST: ""}, None)
    assert flow.stats.expired_records == 5
