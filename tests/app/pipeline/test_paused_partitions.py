"""Partitions that are paused: which ones, until when, and what is held of them meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from aiokafka import TopicPartition

from app.kafka.source_batch import ReadRecord
from app.pipeline.lane import Lane, Working
from app.pipeline.paused_partitions import PausedPartitions
from tests.app.pipeline.test_admission import OVERHEAD, Let

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
        if at in self.paused or self.let.admission.holds(lane):
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


class Bench:
    """Some partitions, of which each response has two records with work."""

    def __init__(self, partitions: int, limit: int = LIMIT) -> None:
        self.now_s = 100.0
        self.let = Let(limit)
        for partition in range(partitions):
            self.let.lanes.open(TopicPartition("raw", partition), 0)
        self.reader = Reader(self.let)
        self.paused = PausedPartitions(
            cast(Any, self.reader), self.let.lanes, self.let.share, self.let.admission, lambda: self.now_s
        )

    @property
    def lanes(self) -> Sequence[Lane]:
        return list(self.let.lanes)

    def turn(self, seconds: float = 0.01) -> None:
        """What the poll loop does in a turn."""
        for lane in self.lanes:
            self.reader.fetch(lane, b"work", b"work")
        self.admit(seconds)

    def admit(self, seconds: float = 0.01) -> None:
        self.let.admission.admit()
        self.paused.adjust()
        self.now_s += seconds

    def finish(self) -> None:
        """The store has taken all values that it was given."""
        while self.let.share.work:
            self.let.share.give_work(SIZE)

    def out(self) -> list[Lane]:
        return [lane for lane in self.lanes if lane in self.paused]


def test_stuck_partitions_are_paused() -> None:
    """If nothing moves for a second, no more than a quarter of the budget is kept beside it, and none is read again."""
    bench = Bench(60)
    bench.turn()
    assert bench.let.share.ahead > 2 * KEPT
    assert not bench.out()
    bench.turn(1.0)
    bench.turn()
    assert 0 < bench.let.share.ahead <= KEPT // 2
    assert {lane.partition for lane in bench.out()} == bench.reader.paused
    fetched = bench.reader.fetched
    for _ in range(10):
        bench.turn(1.0)
    assert bench.reader.fetched == fetched


def test_nothing_is_lost_or_repeated() -> None:
    """When the store answers again, each record of each partition has its turn, once and in order."""
    bench = Bench(60)
    for _ in range(4):
        bench.turn(1.0)
    assert bench.out()
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
    bench = Bench(16)
    bench.turn()
    for _ in range(4):
        bench.admit(1.0)
    assert bench.let.share.ahead > 0
    assert not bench.out()


def test_busy_partitions_are_not_paused() -> None:
    """While values come to the end of their work, far more may wait."""
    bench = Bench(60)
    for _ in range(10):
        bench.turn(0.5)
        bench.let.share.give_work(SIZE)
        bench.let.admission.admit()
    assert bench.let.share.ahead > 2 * KEPT
    assert not bench.out()


def test_partitions_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """If more waits than may while the store takes values, each partition has its turn after some time."""
    monkeypatch.setattr("app.pipeline.paused_partitions._LEAST_BYTES", 0)
    bench = Bench(30)
    for _ in range(4_000):
        bench.turn(0.02)
        bench.let.share.give_work(SIZE)
    done = [sum(number == lane.partition.partition for number, _ in bench.let.worked) for lane in bench.lanes]
    assert bench.let.share.ahead <= KEPT + 4 * SIZE
    assert min(done) > 0.5 * max(done)
    assert bench.reader.fetched < 1.5 * sum(done)


def test_others_go_on() -> None:
    """A partition whose records pass is never paused."""
    bench = Bench(60)
    passing = bench.lanes[7]
    for _ in range(10):
        for lane in bench.lanes:
            bench.reader.fetch(lane, *((b"pass",) * 2 if lane is passing else (b"work",) * 2))
        bench.admit(1.0)
        while bench.let.share.used > bench.let.share.work:
            bench.let.share.give(SIZE)
    assert len(bench.out()) > 10
    assert passing not in bench.out()
    assert len(bench.let.passed) >= 18


def test_partition_that_waits_for_others_that_pass() -> None:
    """A partition whose records may pass by now is not paused, though there is no room for them at the moment."""
    bench = Bench(60)
    lane = bench.lanes[0]
    lane.items.append(Working(cast(Any, None), 0))
    for each in bench.lanes:
        bench.reader.fetch(each, *((b"pass",) * 40 if each is lane else (b"work",) * 2))
    bench.admit()
    assert lane in bench.let.admission.waiting_for_work()
    lane.items.clear()
    bench.admit()
    assert bench.let.admission.holds(lane)
    assert lane not in bench.let.admission.waiting_for_work()


def test_partition_behind_its_own_record_goes_on() -> None:
    """Once the record before it is done, what may pass is read again, though others are stuck and fill the memory."""
    bench = Bench(60)
    slow = bench.lanes[0]
    slow.items.append(Working(cast(Any, None), 0))
    slow.stalled = 1
    for _ in range(4):
        bench.turn(1.0)
    assert slow in bench.out()
    slow.items.clear()
    slow.stalled = 0
    bench.admit()
    assert slow not in bench.out()
    assert len(bench.out()) > 5


def test_partition_that_is_lost() -> None:
    """What was paused is forgotten with the partition; the same one, when it comes back, is read."""
    bench = Bench(60)
    for _ in range(4):
        bench.turn(1.0)
    lost = bench.out()[0]
    bench.let.lanes.discard([lost.partition])
    bench.reader.paused.remove(lost.partition)  # as a new assignment does
    bench.let.lanes.open(lost.partition, 0)
    bench.admit()
    assert lost not in bench.paused
    assert lost.partition not in bench.reader.paused
