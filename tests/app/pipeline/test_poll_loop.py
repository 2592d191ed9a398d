"""The poll loop: what is read next, what a rebalance overtakes, and which partitions are paused until when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from app.kafka.source_batch import ReadRecord, SourceBatch
from app.pipeline.budget import Budget, Share
from app.pipeline.lane import Lane, Working
from app.pipeline.lanes import Lanes
from app.pipeline.poll_loop import PollLoop
from app.pipeline.runtime import monotonic
from app.pipeline.termination import Termination
from tests.app.pipeline.test_admission import OVERHEAD, Let
from tests.app.pipeline.test_termination import Read

PARTITION = TopicPartition("raw", 0)
BATCH = SourceBatch(PARTITION, 0, None, [Read()])


class Bench:
    """A loop with one lane; the flags are those of the parts that it asks."""

    def __init__(
        self,
        *,
        known: bool = True,
        look_s: float = 1_000,
    ) -> None:
        self.offsets = SimpleNamespace(known=known, known_within=asyncio.sleep)
        self.added: list[SourceBatch] = []
        self.unread: list[Any] = []
        self.read: list[bool] = []
        self.consumer = SimpleNamespace(
            poll=self._poll,
            unread=self.unread.append,
            position=lambda _: self.position,
            rebalancing=False,
            keep_membership=lambda: asyncio.sleep(0),
        )
        self.position: int | None = 9
        share = Share(Budget(100))
        self.lanes = lanes = Lanes(share, None)
        lanes.open(PARTITION, 0)
        parts = SimpleNamespace(
            source=self.consumer,
            lanes=lanes,
            share=share,
            offset_reset=SimpleNamespace(find=self._find),
            termination=Termination("p", lambda: None),
            settings=SimpleNamespace(flush_interval_ms=look_s * 1000),
        )
        self.loop = PollLoop(
            cast(Any, parts),
            cast(Any, SimpleNamespace(in_turn=False, admit=self._admit, expire=self._expire)),
            cast(Any, SimpleNamespace(offsets=self.offsets, flush=lambda: None)),
            clock=monotonic,
        )
        self.polled = asyncio.Event()
        self.error: Exception | None = None
        self.found: list[Exception] = []

    async def _find(self, error: Exception) -> None:
        self.found.append(error)

    async def _poll(self, *_: object) -> dict[TopicPartition, list[SourceBatch]]:
        await self.polled.wait()
        if self.error is not None:
            raise self.error
        return {PARTITION: [BATCH]}

    def _admit(self) -> None:
        for lane in self.lanes:
            self.added += lane.read.batches
            lane.read.batches.clear()

    def _expire(self, *, reading: bool) -> bool:
        self.read.append(reading)
        return False


async def test_nothing_is_read_again_during_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that waits for memory is not let to read when its turn comes, until the pause ends."""
    bounded: list[bool] = []
    bench = Bench(known=False)
    monkeypatch.setattr(PollLoop, "_bound", lambda loop: bounded.append(loop.pause_asked))
    for held in (True, False):
        bench.loop.pause_asked = held
        await asyncio.wait_for(bench.loop.turn(), 10)
    assert bounded == [False]


@pytest.mark.parametrize("overtaken", [False, True])
async def test_poll_that_a_rebalance_overtakes(overtaken: bool) -> None:  # noqa: FBT001
    """Records that were read before it is known from where on are read again; others are added at once."""
    bench = Bench()
    turn = asyncio.create_task(bench.loop.turn())
    await asyncio.sleep(0)
    bench.offsets.known = not overtaken
    bench.polled.set()
    await asyncio.wait_for(turn, 10)
    assert (bench.unread, bench.added) == (([{PARTITION: [BATCH]}], []) if overtaken else ([], [BATCH]))
    assert bench.read == [True]


async def test_position_is_found_once_the_committed_offsets_are_known() -> None:
    """They would bring back what was delivered of a log that is lost, if they came behind the new beginning."""
    bench = Bench()
    bench.error = OffsetOutOfRangeError({PARTITION: 30})
    turn = asyncio.create_task(bench.loop.turn())
    await asyncio.sleep(0)
    for known in (False, True):
        bench.offsets.known = known
        bench.polled.set()
        await asyncio.wait_for(turn, 10)
        assert bench.found == ([bench.error] if known else [])
        turn = asyncio.create_task(bench.loop.turn())
    turn.cancel()


@pytest.mark.parametrize("paused", [0, 1])
async def test_time_of_messages_stands_still_while_a_partition_is_paused(
    paused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that were let go are to be read again before their message is given up."""
    bench = Bench()
    monkeypatch.setattr(bench.loop, "_bound", lambda: None)
    bench.loop._pauses = cast(Any, dict.fromkeys(range(paused)))
    bench.polled.set()
    await asyncio.wait_for(bench.loop.turn(), 10)
    assert bench.read == [not paused]


async def test_nothing_is_admitted_after_the_flow_has_failed() -> None:
    """A record that passes would go by one that could not be written, and the commit with it."""
    bench = Bench()
    bench.polled.set()
    await bench.loop.turn()
    assert bench.added == [BATCH]
    error = ValueError("not written")
    bench.polled.clear()
    turn = asyncio.create_task(bench.loop.turn())
    await asyncio.sleep(0)
    bench.loop._termination.fail(error)
    bench.polled.set()
    with pytest.raises(ValueError, match="not written"):
        await turn
    assert bench.added == [BATCH]


@pytest.mark.parametrize(
    ("flags", "rebalancing", "position", "read_to"),
    [
        ({}, False, 9, 9),
        ({}, False, None, 0),
        ({}, True, 9, 5),
        ({"known": False}, False, 9, 5),
    ],
)
def test_look_at_what_was_read_behind_the_last_record(
    flags: dict[str, bool],
    rebalancing: bool,  # noqa: FBT001
    position: int | None,
    read_to: int,
) -> None:
    """The position of the client counts, unless what was polled before it is forgotten, or it may be set back."""
    bench = Bench(**flags)
    (lane,) = bench.lanes
    lane.read_to = 5
    bench.consumer.rebalancing, bench.position = rebalancing, position
    bench.loop.look()
    assert lane.read_to == read_to
    bench.position = 20
    lane.read.batches.append(BATCH)
    bench.loop.look()
    assert lane.read_to == read_to  # a record of it waits


async def test_a_poll_tells_how_far_it_was_read() -> None:
    """The marks behind the records of a poll are committed with them; those alone when it is time to look."""
    bench = Bench(look_s=0)
    due: list[bool] = []
    bench.loop._delivery.due = lambda: due.append(True)  # type: ignore[method-assign]
    (lane,) = bench.lanes
    bench.polled.set()
    await asyncio.wait_for(bench.loop.turn(), 10)
    assert (lane.read_to, due) == (9, [True])


# --- what was read ahead ---------------------------------------------------------------------------------------------

LIMIT = 32_000
KEPT = LIMIT // 4
SIZE = 1_000


class Reader:
    """Where a consumer reads; `fetch` gives the records from there, as long as the partition is not paused."""

    def __init__(self, let: Let) -> None:
        self.let = let
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.fetched = 0

    def position(self, partition: TopicPartition) -> int:
        return self.positions.get(partition, 0)

    def pause(self, partition: TopicPartition, offset: int | None) -> None:
        self.paused.add(partition)
        if offset is not None:
            self.positions[partition] = offset

    def resume(self, partition: TopicPartition) -> None:
        self.paused.remove(partition)

    def fetch(self, lane: Lane, *keys: bytes) -> None:
        """Reads so many records; those with the key `work` have work."""
        at = lane.partition
        if at in self.paused or lane.read:
            return
        first = self.position(at)
        self.let.read(
            at.partition,
            [
                ReadRecord(at.topic, at.partition, first + n, 0, key, bytes(SIZE - OVERHEAD - len(key)), ())
                for n, key in enumerate(keys)
            ],
        )
        self.positions[at] = first + len(keys)
        self.fetched += len(keys)


class Memory:
    """Some partitions, of which each response has two records with work."""

    def __init__(self, partitions: int, limit: int = LIMIT) -> None:
        self.let = Let(limit)
        for partition in range(partitions):
            self.let.lanes.open(TopicPartition("raw", partition), 0)
        self.reader = Reader(self.let)
        parts = SimpleNamespace(
            source=self.reader,
            lanes=self.let.lanes,
            share=self.let.share,
            offset_reset=None,
            termination=None,
            settings=SimpleNamespace(flush_interval_ms=1_000),
        )
        self.loop = PollLoop(cast(Any, parts), self.let.admission, cast(Any, None), clock=lambda: self.let.now_s)

    @property
    def lanes(self) -> Sequence[Lane]:
        return list(self.let.lanes)

    def turn(self, seconds: float = 0.01) -> None:
        """What the poll loop does in a turn."""
        for lane in self.lanes:
            self.reader.fetch(lane, b"work", b"work")
        self.admit(seconds)

    def stall(self) -> None:
        """The store has not answered for long."""
        for lane in self.lanes:
            lane.stalled = int(any(number == lane.partition.partition for number, _ in self.let.worked))

    def admit(self, seconds: float = 0.01) -> None:
        self.let.admission.admit()
        self.loop._bound()
        self.let.now_s += seconds

    def finish(self) -> None:
        """The store has taken all values that it was given."""
        while self.let.share.work:
            self.let.share.give_work(SIZE)

    def out(self) -> list[Lane]:
        return [lane for lane in self.lanes if lane in self.loop._pauses]


def test_stuck_partitions_are_paused() -> None:
    """If the store stalls one, no more than a quarter of the budget is kept beside it, and none is read again."""
    bench = Memory(60)
    bench.turn()
    assert bench.let.share.ahead > 2 * KEPT
    assert not bench.out()
    bench.stall()
    bench.turn()
    assert 0 < bench.let.share.ahead <= KEPT // 2
    assert {lane.partition for lane in bench.out()} == bench.reader.paused
    fetched = bench.reader.fetched
    for _ in range(10):
        bench.turn(1.0)
    assert bench.reader.fetched <= fetched + 2, "there was room for one"


def test_nothing_is_lost_or_repeated() -> None:
    """When the store answers again, each record of each partition has its turn, once and in order."""
    bench = Memory(60)
    for _ in range(4):
        bench.turn(1.0)
        bench.stall()
    assert bench.out()
    for lane in bench.lanes:
        lane.stalled = 0
    for _ in range(200):
        bench.finish()
        bench.turn()
    assert not bench.out()
    for lane in bench.lanes:
        offsets = [offset for number, offset in bench.let.worked if number == lane.partition.partition]
        assert offsets == list(range(len(offsets)))
        assert len(offsets) > 20


def test_few_bytes_pause_nothing() -> None:
    """A partition whose values wait is not read a second time while what was read fits beside the budget."""
    bench = Memory(16)
    bench.turn()
    bench.stall()
    for _ in range(4):
        bench.admit(1.0)
    assert bench.let.share.ahead > 0
    assert not bench.out()


def test_busy_partitions_are_not_paused() -> None:
    """While the store answers, far more may wait."""
    bench = Memory(60)
    for _ in range(10):
        bench.turn(0.5)
        bench.let.share.give_work(SIZE)
        bench.let.admission.admit()
    assert bench.let.share.ahead > 2 * KEPT
    assert not bench.out()


def test_partitions_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """If more waits than may while the store takes values, each partition has its turn after some time."""
    monkeypatch.setattr("app.pipeline.poll_loop._LEAST_BYTES", 0)
    bench, chance = Memory(30), random.Random(1)
    for _ in range(4_000):
        bench.turn(chance.uniform(0.01, 0.03))
        bench.let.share.give_work(SIZE)
    done = [sum(number == lane.partition.partition for number, _ in bench.let.worked) for lane in bench.lanes]
    assert bench.let.share.ahead <= KEPT + 4 * SIZE
    assert min(done) > 0.5 * max(done)
    assert bench.reader.fetched < 1.5 * sum(done)


def test_others_go_on() -> None:
    """A partition whose records pass is never paused."""
    bench = Memory(60)
    passing = bench.lanes[7]
    for _ in range(10):
        bench.stall()
        for lane in bench.lanes:
            bench.reader.fetch(lane, *((b"pass",) * 2 if lane is passing else (b"work",) * 2))
        bench.admit(1.0)
        while bench.let.share.used > bench.let.share.work:
            bench.let.share.give(SIZE)
    assert len(bench.out()) > 10
    assert passing not in bench.out()
    assert len(bench.let.passed) >= 18


def test_partition_behind_its_own_record_goes_on() -> None:
    """Once the record before it is done, what may pass is read again, though others are stuck and fill the memory."""
    bench = Memory(60)
    slow = bench.lanes[0]
    slow.items.append(Working(cast(Any, None), 0))
    for _ in range(4):
        bench.turn(1.0)
        bench.stall()
        slow.stalled = 1
    assert slow in bench.out()
    slow.items.clear()
    slow.stalled = 0
    bench.admit()
    assert slow not in bench.out()
    assert len(bench.out()) > 5


def test_partition_that_is_lost() -> None:
    """What was paused is forgotten with the partition; the same one, when it comes back, is read."""
    bench = Memory(60)
    for _ in range(4):
        bench.turn(1.0)
        bench.stall()
    lost = bench.out()[0]
    bench.let.lanes.discard([lost.partition])
    bench.reader.paused.remove(lost.partition)  # as a new assignment does
    bench.let.lanes.open(lost.partition, 0)
    bench.admit()
    assert lost not in bench.loop._pauses
    assert lost.partition not in bench.reader.paused
