"""Admission: what is let in, by what it takes."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from aiokafka import TopicPartition

from app.kafka.source_batch import ReadRecord, SourceBatch
from app.pipeline.admission import Admission
from app.pipeline.budget import Budget, Share
from app.pipeline.chain import Work
from app.pipeline.lane import Lane
from app.pipeline.lanes import Lanes
from app.pipeline.stats import PipelineStats
from transforms.record import SourceRecord

PARTITION = TopicPartition("raw", 0)
OVERHEAD = 400


class Let:
    """An admission with two partitions; what it lets in is noted, and stays until the test gives its bytes back."""

    def __init__(self, limit: int, turn: int = 2_000) -> None:
        self.share = Share(Budget(limit))
        self.lanes = Lanes(self.share, None)
        for partition in (0, 1):
            self.lanes.open(TopicPartition("raw", partition), 0)
        self.passed: list[tuple[int, int]] = []
        self.worked: list[tuple[int, int]] = []
        self.held: list[int] = []
        self.admission = Admission(
            cast(Any, SimpleNamespace(passes=lambda record: record.key != b"work", begin=lambda record: None)),
            self.lanes,
            self.share,
            assembler=None,
            delivery=cast(Any, SimpleNamespace(append=self._append)),
            dispatcher=cast(Any, SimpleNamespace(enter=self._enter)),
            stats=PipelineStats(),
            turn=turn,
            limit_bytes=1_000_000,
        )

    def add(self, partition: int, *records: tuple[int, bytes, int]) -> None:
        """Adds records of (offset, key, bytes in all) of a partition, and admits."""
        read = [
            ReadRecord("raw", partition, offset, 0, key, b"v" * (size - OVERHEAD - len(key)), ())
            for offset, key, size in records
        ]
        self.read(partition, read)
        self.admission.admit()

    def read(self, partition: int, records: Sequence[SourceRecord]) -> None:
        """Adds records of a partition, in a batch that is taken apart."""
        place = TopicPartition("raw", partition)
        self.admission.add({place: [SourceBatch(place, records[0].offset, None, records)]})

    def holds(self, partition: int) -> bool:
        """Whether records of a partition wait."""
        lane = self.lanes.get(TopicPartition("raw", partition))
        assert lane is not None
        return self.admission.holds(lane)

    def _append(self, lane: Lane, record: SourceRecord, offset: int, held: int, codec: int) -> None:
        self.passed.append((lane.partition.partition, offset))
        self.held.append(held)

    def _enter(self, lane: Lane, record: SourceRecord, work: Work | None, held: int) -> None:
        self.share.take_work(held)
        self.worked.append((lane.partition.partition, record.offset))


async def test_admit_counts_headers() -> None:
    """Records whose bytes are in their headers fill the budget as others do; the last that is let in fits."""
    let = Let(10_000)
    headers = (("name", b"v" * 4_000),)
    let.read(0, [ReadRecord("raw", 0, n, 0, b"k", b"v", headers) for n in range(5)])
    let.admission.admit()
    assert let.held == [OVERHEAD + 2 + 160 + 4_004] * 2
    assert (let.share.used, let.admission.waits) == (sum(let.held), True)


async def test_admit_lets_others_pass_where_work_waits() -> None:
    """A partition whose record waits for room waits alone: records of another pass, in what is kept for them."""
    let = Let(8_000)
    let.add(0, *((n, b"work", 2_000) for n in range(5)), (5, b"small", 500))
    assert (let.worked, let.holds(0), let.holds(1)) == ([(0, 0), (0, 1), (0, 2)], True, False)
    let.add(1, (0, b"small", 500), (1, b"small", 500), (2, b"small", 500))
    assert (let.passed, let.holds(1)) == ([(1, 0), (1, 1)], True)
    let.share.give(500)
    let.admission.admit()
    assert let.passed == [(1, 0), (1, 1), (1, 2)]
    assert (let.holds(0), let.holds(1)) == (True, False)


async def test_admit_lets_no_work_overtake_work() -> None:
    """A large record that waits is the next that is let in, or those of other partitions would always be before it."""
    let = Let(8_000)
    let.add(0, (0, b"work", 4_000), (1, b"work", 6_000))
    let.add(1, (0, b"work", 500))
    assert let.worked == [(0, 0)]
    let.share.give_work(4_000)
    let.admission.admit()
    assert let.worked == [(0, 0), (0, 1), (1, 0)]
    assert not let.admission.waits


async def test_admit_keeps_order_in_a_partition() -> None:
    """Behind a record that waits nothing of its partition passes; what is read of it then comes behind it."""
    let = Let(8_000)
    let.add(0, (0, b"work", 7_000), (1, b"work", 7_000), (2, b"small", 500))
    let.add(0, (3, b"small", 500))
    assert (let.worked, let.passed) == ([(0, 0)], [])
    let.share.give_work(7_000)
    let.admission.admit()
    assert (let.worked, let.passed, let.admission.waits) == ([(0, 0), (0, 1)], [(0, 2), (0, 3)], False)


async def test_admit_leaves_room_beside_a_partition_that_is_stuck() -> None:
    """A partition with much that waits waits alone: work of others, and records that pass, go on as before."""
    let = Let(8_000)
    lane = let.lanes.get(PARTITION)
    assert lane is not None
    lane.work = 4_000
    let.share.take_work(4_000)
    let.add(0, (0, b"work", 1_000))
    assert (let.worked, let.holds(0), let.share.work_waits) == ([], True, False)
    let.add(1, (0, b"work", 1_000), (1, b"small", 500))
    assert (let.worked, let.passed, let.holds(1)) == ([(1, 0)], [(1, 1)], False)
    lane.work = 0
    let.admission.admit()
    assert let.worked == [(1, 0), (0, 0)], "what has left it makes room"
