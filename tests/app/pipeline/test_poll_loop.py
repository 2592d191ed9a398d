"""The poll loop: what is read next, what a rebalance overtakes, and which partitions are paused until when."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from app.kafka.source_batch import ReadRecord, SourceBatch
from app.pipeline.lane import Lane, Working
from app.pipeline.poll_loop import PollLoop
from app.pipeline.runtime import monotonic
from tests.app.pipeline.outputs import parts_of
from tests.app.pipeline.test_admission import OVERHEAD, Let
from tests.app.pipeline.test_termination import Read

PARTITION = TopicPartition("raw", 0)
BATCH = SourceBatch(PARTITION, 0, None, [Read()])


class Bench:
    """A loop with one lane, and all that it asks; `read` has whether messages were let to age."""

    def __init__(self, *, known: bool = True, look_ms: int = 1_000_000) -> None:
        self.offsets = SimpleNamespace(known=known, known_within=asyncio.sleep)
        self.added: list[SourceBatch] = []
        self.unread: list[Any] = []
        self.read: list[bool] = []
        self.paused: list[bool] = []
        self.dues = self.commits = 0
        self.position: int | None = 9
        self.polled = asyncio.Event()
        self.error: Exception | None = None
        self.found: list[Exception] = []
        self.consumer = SimpleNamespace(
            poll=self._poll,
            unread=self.unread.append,
            position=lambda _: self.position,
            rebalancing=False,
            keep_membership=lambda: asyncio.sleep(0),
            pause=lambda *_: self.paused.append(True),
            resume=lambda _: self.paused.append(False),
        )
        keys: dict[str, Any] = {"offset.flush.interval.ms": look_ms}
        self.parts = parts_of(self.consumer, partitions=[0], limit=100, **keys)
        (self.lane,) = self.parts.lanes
        cast(Any, self.parts.offset_reset).find = self._find
        admission = SimpleNamespace(in_turn=False, admit=self._admit, expire=self._expire)
        delivery = SimpleNamespace(
            offsets=self.offsets, flush=lambda: None, due=self._due, press=lambda: None, commit=self._commit
        )
        self.loop = PollLoop(self.parts, cast(Any, admission), cast(Any, delivery), clock=monotonic)

    def _due(self) -> None:
        self.dues += 1

    async def _commit(self) -> None:
        self.commits += 1

    async def _find(self, error: Exception) -> None:
        self.found.append(error)

    async def _poll(self, *_: object) -> dict[TopicPartition, list[SourceBatch]]:
        await self.polled.wait()
        if self.error is not None:
            raise self.error
        return {PARTITION: [BATCH]}

    def _admit(self) -> None:
        self.added += self.lane.read.batches
        self.lane.read.batches.clear()

    def _expire(self, *, reading: bool) -> bool:
        self.read.append(reading)
        return False

    async def turn(self) -> None:
        """A turn whose poll has an answer."""
        self.polled.set()
        await asyncio.wait_for(self.loop.turn(), 10)

    async def polling(self) -> asyncio.Task[None]:
        """A turn that waits for the answer of its poll."""
        self.polled.clear()
        turn = asyncio.create_task(self.loop.turn())
        await asyncio.sleep(0)
        return turn


async def test_nothing_is_read_again_during_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that waits for memory is not let to read when its turn comes, until the pause ends."""
    bounded: list[bool] = []
    bench = Bench(known=False)
    monkeypatch.setattr(PollLoop, "_bound", lambda loop: bounded.append(loop.pause_asked))
    for bench.loop.pause_asked in (True, False):
        await bench.turn()
    assert bounded == [False]


async def test_a_pause_that_is_asked_for_commits_and_ends() -> None:
    """Nothing is read meanwhile, what was done is committed, and then the partition is read again."""
    bench = Bench()
    for bench.loop.pause_asked in (True, False):
        await bench.turn()
    assert (bench.paused, bench.commits, bench.added) == ([True, False], 1, [BATCH])


@pytest.mark.parametrize("overtaken", [False, True])
async def test_poll_that_a_rebalance_overtakes(*, overtaken: bool) -> None:
    """Records that were read before it is known from where on are read again; others are added at once."""
    bench = Bench()
    turn = await bench.polling()
    bench.offsets.known = not overtaken
    bench.polled.set()
    await asyncio.wait_for(turn, 10)
    assert (bench.unread, bench.added) == (([{PARTITION: [BATCH]}], []) if overtaken else ([], [BATCH]))
    assert (bench.read, bench.dues, bench.lane.read_to) == ([True], 0, 0 if overtaken else 9)


async def test_position_is_found_once_the_committed_offsets_are_known() -> None:
    """They would bring back what was delivered of a log that is lost, if they came behind the new beginning."""
    bench = Bench()
    bench.error = OffsetOutOfRangeError({PARTITION: 30})
    for known in (False, True):
        bench.offsets.known = True
        turn = await bench.polling()
        bench.offsets.known = known
        bench.polled.set()
        await asyncio.wait_for(turn, 10)
        assert bench.found == ([bench.error] if known else [])


@pytest.mark.parametrize("paused", [0, 1])
async def test_time_of_messages_stands_still_while_a_partition_is_paused(
    paused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that were let go are to be read again before their message is given up."""
    bench = Bench()
    monkeypatch.setattr(bench.loop, "_bound", lambda: None)
    bench.loop._pauses = cast(Any, dict.fromkeys(range(paused)))
    await bench.turn()
    assert bench.read == [not paused]


async def test_nothing_is_admitted_after_the_flow_has_failed() -> None:
    """A record that passes would go by one that could not be written, and the commit with it."""
    bench = Bench()
    turn = await bench.polling()
    bench.parts.termination.fail(ValueError("not written"))
    bench.polled.set()
    with pytest.raises(ValueError, match="not written"):
        await turn
    assert bench.added == []


@pytest.mark.parametrize(
    ("known", "rebalancing", "position", "read_to"),
    [(True, False, 9, 9), (True, False, None, 0), (True, True, 9, 5), (False, False, 9, 5)],
)
def test_look_at_what_was_read_behind_the_last_record(
    *, known: bool, rebalancing: bool, position: int | None, read_to: int
) -> None:
    """The position of the client counts, unless what was polled before it is forgotten, or it may be set back."""
    bench = Bench(known=known)
    bench.lane.read_to = 5
    bench.consumer.rebalancing, bench.position = rebalancing, position
    bench.loop.look()
    assert bench.lane.read_to == read_to
    bench.position = 20
    bench.lane.read.batches.append(BATCH)
    bench.loop.look()
    assert bench.lane.read_to == read_to  # a record of it waits


async def test_a_look_is_due_when_it_is_time() -> None:
    """Marks that stand alone are committed, too."""
    bench = Bench(look_ms=1)
    bench.loop._looked_s -= 1
    await bench.turn()
    assert bench.dues == 1


# --- what was read ahead ---------------------------------------------------------------------------------------------

LIMIT = 32_000
KEPT = LIMIT // 4
SIZE = 1_000


class Memory:
    """Some partitions, of which each response has two records with work; and the consumer, which pauses them."""

    def __init__(self, partitions: int = 60) -> None:
        self.let = Let(LIMIT, partitions=partitions)
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.fetched = 0
        parts = replace(self.let.parts, source=cast(Any, self))
        self.loop = PollLoop(parts, self.let.admission, cast(Any, None), clock=lambda: self.let.now_s)

    # --- the consumer ---

    def position(self, partition: TopicPartition) -> int:
        return self.positions.get(partition, 0)

    def pause(self, partition: TopicPartition, offset: int | None) -> None:
        self.paused.add(partition)
        if offset is not None:
            self.positions[partition] = offset

    def resume(self, partition: TopicPartition) -> None:
        self.paused.remove(partition)

    def fetch(self, lane: Lane, key: bytes = b"work") -> None:
        """Reads two records; those with the key `work` have work."""
        at = lane.partition
        if at in self.paused or lane.read:
            return
        first, value = self.position(at), bytes(SIZE - OVERHEAD - len(key))
        records = [ReadRecord(at.topic, at.partition, first + n, 0, key, value, ()) for n in range(2)]
        self.let.read(at.partition, records)
        self.positions[at] = first + 2
        self.fetched += 2

    # --- turns ---

    def turn(self, seconds: float = 0.01) -> None:
        """What the poll loop does in a turn."""
        for lane in self.let.lanes:
            self.fetch(lane)
        self.admit(seconds)

    def admit(self, seconds: float = 0.01) -> None:
        self.let.admission.admit()
        self.loop._bound()
        self.let.now_s += seconds

    def stall(self) -> None:
        """The store has not answered for long."""
        for lane in self.let.lanes:
            lane.stalled = int(any(number == lane.partition.partition for number, _ in self.let.worked))

    def stuck(self) -> Memory:
        """While the store does not answer for some turns, partitions are paused."""
        for _ in range(4):
            self.turn(1.0)
            self.stall()
        assert self.out
        return self

    def done(self, lane: Lane) -> list[int]:
        """The offsets of a partition that had their turn."""
        return [offset for number, offset in self.let.worked if number == lane.partition.partition]

    @property
    def out(self) -> list[Lane]:
        """The lanes that are paused."""
        return [lane for lane in self.let.lanes if lane in self.loop._pauses]


def test_stuck_partitions_are_paused() -> None:
    """If the store stalls one, no more than a quarter of the budget is kept beside it, and none is read again."""
    bench = Memory()
    bench.turn()
    assert bench.let.share.ahead > 2 * KEPT
    assert not bench.out
    bench.stall()
    bench.turn()
    assert 0 < bench.let.share.ahead <= KEPT // 2
    assert {lane.partition for lane in bench.out} == bench.paused
    fetched = bench.fetched
    for _ in range(10):
        bench.turn(1.0)
    assert bench.fetched <= fetched + 2, "there was room for one"


def test_nothing_is_lost_or_repeated() -> None:
    """When the store answers again, each record of each partition has its turn, once and in order."""
    bench = Memory().stuck()
    for lane in bench.let.lanes:
        lane.stalled = 0
    for _ in range(200):
        bench.let.share.give_work(bench.let.share.work)
        bench.turn()
    assert not bench.out
    for lane in bench.let.lanes:
        offsets = bench.done(lane)
        assert offsets == list(range(len(offsets)))
        assert len(offsets) > 20


def test_what_pauses_nothing() -> None:
    """What was read and fits beside the budget; and far more while the store answers."""
    few, busy = Memory(16), Memory()
    few.turn()
    few.stall()
    for _ in range(4):
        few.admit(1.0)
    for _ in range(10):
        busy.turn(0.5)
        busy.let.share.give_work(SIZE)
        busy.let.admission.admit()
    assert few.let.share.ahead > 0
    assert busy.let.share.ahead > 2 * KEPT
    assert few.out == busy.out == []


def test_partitions_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """If more waits than may while the store takes values, each partition has its turn after some time."""
    monkeypatch.setattr("app.pipeline.poll_loop._LEAST_BYTES", 0)
    bench, chance = Memory(30), random.Random(1)
    for _ in range(4_000):
        bench.turn(chance.uniform(0.01, 0.03))
        bench.let.share.give_work(SIZE)
    done = [len(bench.done(lane)) for lane in bench.let.lanes]
    assert bench.let.share.ahead <= KEPT + 4 * SIZE
    assert min(done) > 0.5 * max(done)
    assert bench.fetched < 1.5 * sum(done)


def test_others_go_on() -> None:
    """A partition whose records pass is never paused."""
    bench = Memory()
    passing = [*bench.let.lanes][7]
    for _ in range(10):
        bench.stall()
        for lane in bench.let.lanes:
            bench.fetch(lane, b"pass" if lane is passing else b"work")
        bench.admit(1.0)
        bench.let.share.give(bench.let.share.used - bench.let.share.work)
    assert len(bench.out) > 10
    assert passing not in bench.out
    assert len(bench.let.passed) >= 18


def test_partition_behind_its_own_record_goes_on() -> None:
    """Once the record before it is done, what may pass is read again, though others are stuck and fill the memory."""
    bench = Memory()
    slow = next(iter(bench.let.lanes))
    slow.items.append(Working(cast(Any, None), 0))
    bench.stuck()
    assert slow in bench.out
    slow.items.clear()
    slow.stalled = 0
    bench.admit()
    assert slow not in bench.out
    assert len(bench.out) > 5


def test_partition_that_is_lost() -> None:
    """What was paused is forgotten with the partition; the same one, when it comes back, is read."""
    bench = Memory().stuck()
    lost = bench.out[0]
    bench.let.lanes.discard([lost.partition])
    bench.paused.remove(lost.partition)  # as a new assignment does
    bench.let.lanes.open(lost.partition, 0)
    bench.admit()
    assert lost not in bench.loop._pauses
    assert lost.partition not in bench.paused
