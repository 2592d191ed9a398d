"""Admission: what is let in, by what it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import TopicPartition

from app.kafka.source_batch import ReadRecord, SourceBatch, UnreadBatch
from app.pipeline.admission import Admission
from app.pipeline.lane import Lane, Letter, Passing, Skipped, Working
from app.pipeline.output import Output
from app.pipeline.work import Store, Work
from tests.app.pipeline.chains import chain_of, memory
from tests.app.pipeline.lanes import lane_of
from tests.app.pipeline.outputs import parts_of
from tests.built_batches import built, changed, record, repacked
from transforms.errors import PayloadTooLargeError, ReferenceRefusedError
from transforms.record import Record, RecordLike, SourceRecord
from transforms.record_batch import RecordBatch
from transforms.record_format import MAX_HEADERS

PARTITION = TopicPartition("raw", 0)
OVERHEAD = 400


class Let:
    """An admission with some partitions; what it lets in is noted, and stays until the test gives its bytes back."""

    def __init__(self, limit: int, turn: int = 2_000, partitions: int = 2) -> None:
        self.now_s = 100.0
        keys: dict[str, Any] = {"consumer.max.poll.records": turn}
        self.parts = parts_of(partitions=range(partitions), limit=limit, **keys)
        self.share, self.stats, self.lanes = self.parts.share, self.parts.stats, self.parts.lanes
        self.forwarded: list[SourceBatch] = []
        self.passed: list[tuple[int, int]] = []
        self.worked: list[tuple[int, int]] = []
        self.held: list[int] = []
        self.refused: list[UnreadBatch] = []
        self.works: dict[bytes, Work | Exception] = {}
        self.failed: list[tuple[int, BaseException]] = []
        self.answer: Work | Exception | None = None
        output = SimpleNamespace(append=self._append, forward=self._forward)
        chain = SimpleNamespace(
            passes_whole=lambda batch, whole: not batch.may_hold(b"work"),
            passes=lambda record: record.key != b"work" and record.key not in self.works,
            begin=lambda record, codec: self._begun(record),
        )
        dispatcher = SimpleNamespace(
            enter=self._enter, measured=self._measured, fail=self._fail, release=lambda _: None
        )
        delivery: Any = SimpleNamespace(output_of=lambda _: output)
        self.admission = Admission(self.parts, cast(Any, chain), None, delivery, cast(Any, dispatcher))

    def _begun(self, record: RecordLike) -> Work | None:
        work = self.works.get(record.key or b"")
        if isinstance(work, Exception):
            raise work
        return work

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
        lane = self.lane(partition)
        lane.add([SourceBatch(lane.partition, records[0].offset, None, records)], 0)

    def batch(self, data: bytes, offset: int = 0) -> None:
        """Adds a batch of partition 0, and admits."""
        self.fetched((data, offset))
        self.admission.admit()

    def fetched(self, *batches: tuple[bytes, int], partition: int = 0) -> None:
        """Adds batches of a partition, each with the offset from which it is wanted."""
        lane = self.lane(partition)
        read = [SourceBatch(lane.partition, offset, RecordBatch.read(memoryview(data))) for data, offset in batches]
        lane.add(read, 0)

    def holds(self, partition: int) -> bool:
        """Whether records of a partition wait."""
        return bool(self.lane(partition).read)

    def lane(self, partition: int) -> Lane:
        """The lane of a partition."""
        lane = self.lanes.get(TopicPartition("raw", partition))
        assert lane is not None
        return lane

    def _measured(self, lane: Lane, record: SourceRecord, work: Work) -> Work | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def _append(self, lane: Lane, record: SourceRecord, offset: int, held: int, codec: int) -> None:
        self.passed.append((lane.partition.partition, offset))
        self.held.append(held)

    def _forward(self, lane: Lane, batch: SourceBatch, held: int) -> None:
        assert lane.partition == PARTITION
        assert len(batch.rows()) > 0
        self.forwarded.append(batch)
        self.held.append(held)

    def _enter(self, lane: Lane, record: SourceRecord, work: Work | None, held: int) -> None:
        self.share.take_work(held)
        self.worked.append((lane.partition.partition, record.offset))
        lane.had_turn = True

    def _fail(self, lane: Lane, record: SourceRecord, error: BaseException, held: int) -> None:
        self.share.take_work(held)
        if isinstance(record, UnreadBatch):
            self.refused.append(record)
        else:
            self.failed.append((record.offset, error))


async def test_admit_refuses_what_would_fill_the_memory() -> None:
    """A record of too many headers, a batch that holds too much: each takes the room of its bytes, in its order."""
    let = Let(200_000)
    crowded = Record(b"k", b"v", (("", None),) * (MAX_HEADERS + 1), 0)
    let.batch(repacked(built(0, [record(0), crowded, record(2)]), "zstd"))
    assert (let.passed, [each.offset for each in let.refused]) == ([(0, 0), (0, 2)], [1])
    assert let.share.used == len(let.refused[0].value) + OVERHEAD + sum(let.held)
    let.batch(built(0, [replace(crowded, value=bytes(100_000))]))
    assert (len(let.refused), let.lanes.waits) == (1, True)  # larger than what is left
    let.share.give_work(let.share.used)
    let.admission.admit()
    assert (len(let.refused), let.lanes.waits) == (2, False)
    let.share.give_work(let.share.used)
    bomb = repacked(built(0, [record(n, 16_000_000) for n in range(5)], base=10), "zstd")
    let.batch(bomb, 11)
    batch = let.refused[2]
    assert (batch.first, batch.offset, batch.value) == (11, 14, bomb)
    assert (let.stats.records_in, let.lanes.waits) == (3 + 1 + 5, False)


async def test_admit_opens_no_more_batches_than_the_budget_has_room_for() -> None:
    """What is taken apart is in memory, whatever waits for room: the batches of many partitions are not all opened."""
    let = Let(1_000)
    large = repacked(built(0, [record(n, 10_000_000) for n in range(4)]), "zstd")
    small = repacked(built(0, [record(n, 50_000) for n in range(4)]), "zstd")
    for partition in (0, 1):
        let.fetched((large, 1), partition=partition)
    let.admission.admit()
    assert let.passed == [(0, 1)]
    opened = [lane.read.opened for lane in let.lanes]
    assert [size > 0 for size in opened] == [True, False]
    for _ in range(6):
        let.share.give(let.share.used)
        let.admission.admit()
    assert let.passed == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]
    both = Let(1_000)
    for partition in (0, 1):
        both.fetched((small, 1), partition=partition)
    both.admission.admit()
    assert all(lane.read.opened for lane in both.lanes)


async def test_admit_buries_nothing_twice() -> None:
    """What was delivered before the partition was assigned is no letter again."""
    let = Let(200_000)
    lane = let.lane(0)
    lane.delivered = 2
    crowded = Record(b"k", b"v", (("", None),) * (MAX_HEADERS + 1), 0)
    let.batch(built(0, [crowded, crowded, crowded]))
    assert [each.offset for each in let.refused] == [2]
    assert [(item.source.offset, type(item)) for item in lane.items] == [(1, Skipped)]


async def test_admit_buries_a_broken_message_before_its_last_chunk_is_done() -> None:
    """Else a commit notes that all up to this chunk was delivered, and after a restart no letter is written."""
    let = Let(10_000)
    lane = let.lane(0)
    before: list[tuple[int, int]] = []
    chunks = {"reserve_bytes": lambda _: 0, "add": lambda *_: (None, ["a discarded message"])}
    let.admission._assembler = cast(Any, SimpleNamespace(**chunks))
    dispatcher = cast(Any, let.admission._dispatcher)
    dispatcher.give_up = lambda _: before.append((len(lane.items), lane.tracked(9).released))
    dispatcher.release = lambda _: None
    let.read(0, [ReadRecord("raw", 0, 3, 0, b"k", b"v", (("large-message.chunk.uuid", b"u"),))])
    let.admission.admit()
    assert before == [(0, 3)]
    assert [item.source.offset for item in lane.items] == [3]


def test_output_commits_nothing_before_a_letter_of_several() -> None:
    """The span of a letter begins at the first record that it is for; all of them are done with it."""
    lane = lane_of(0, 0)
    tracker = lane.tracked(10)
    spans: list[int] = []
    output = SimpleNamespace(
        append=lambda _l, _r, offset, *_: spans.append(tracker.span(offset).first),
        _open=lambda *_: None,
        _parts=SimpleNamespace(plan=SimpleNamespace(dead_letters=SimpleNamespace(partitions=1))),
    )
    place = ReadRecord("raw", 0, 20, 0)
    letter = Letter(place, 1, result=(Record(b"a", b"1"), Record(b"b", b"2")), first=12)
    Output.write(cast(Any, output), lane, letter)
    assert (spans, tracker.released, tracker.safe()) == ([12, 12], 21, 12)


async def test_admit_counts_headers() -> None:
    """Records whose bytes are in their headers fill the budget as others do; the last that is let in fits."""
    let = Let(10_000)
    headers = (("name", b"v" * 4_000),)
    let.read(0, [ReadRecord("raw", 0, n, 0, b"k", b"v", headers) for n in range(5)])
    let.admission.admit()
    assert let.held == [OVERHEAD + 2 + 160 + 4_004] * 2
    assert (let.share.used, let.lanes.waits) == (sum(let.held), True)


async def test_admit_lets_others_pass_where_work_waits() -> None:
    """A partition whose record waits for room waits alone: records of another pass, in what is kept for them."""
    let = Let(8_000)
    let.add(0, *((n, b"work", 2_000) for n in range(5)), (5, b"small", 500))
    assert (let.worked, let.holds(0), let.holds(1)) == ([(0, 0), (0, 1), (0, 2)], True, False)
    let.add(1, (0, b"small", 500), (1, b"small", 500), (2, b"small", 500))
    assert (let.passed, let.holds(1)) == ([(1, 0), (1, 1)], True)
    let.share.give(500)
    let.admission.admit()
    assert (let.passed, let.holds(0), let.holds(1)) == ([(1, 0), (1, 1), (1, 2)], True, False)


async def test_admit_lets_nothing_overtake() -> None:
    """A large record that waits is the next one with work; behind it nothing of its partition passes."""
    let = Let(8_000)
    let.add(0, (0, b"work", 4_000), (1, b"work", 6_000), (2, b"small", 500))
    let.add(1, (0, b"work", 500))
    let.add(0, (3, b"small", 500))
    assert (let.worked, let.passed) == ([(0, 0)], [])
    let.share.give_work(4_000)
    let.admission.admit()
    assert (let.worked, let.passed, let.lanes.waits) == ([(0, 0), (0, 1), (1, 0)], [(0, 2), (0, 3)], False)


async def test_admit_leaves_room_beside_a_partition_that_is_stuck() -> None:
    """A partition with much that waits waits alone: work of others, and records that pass, go on as before."""
    let = Let(8_000)
    lane = let.lane(0)
    lane.work = 4_000
    let.share.take_work(4_000)
    let.add(0, (0, b"work", 1_000))
    assert (let.worked, let.holds(0), let.share.work_waits) == ([], True, False)
    let.add(1, (0, b"work", 1_000), (1, b"small", 500))
    assert (let.worked, let.passed, let.holds(1)) == ([(1, 0)], [(1, 1)], False)
    lane.work = 0
    let.admission.admit()
    assert let.worked == [(1, 0), (0, 0)], "what has left it makes room"


def batch_of(*keys: bytes, base: int = 0, packer: str = "none") -> bytes:
    """A batch of records with these keys."""
    records = [Record(key, b"v" * 50, (), 5) for key in keys]
    return repacked(built(0, records, base=base), packer)


async def test_admit_lets_batches_go_whole() -> None:
    """A batch of which no record is wanted goes as it is; of another one each record goes its way, in order."""
    let = Let(1_000_000)
    whole, mixed = batch_of(b"a", b"b"), batch_of(b"c", b"work", b"d", base=2, packer="zstd")
    last = batch_of(b"e", base=5)
    let.fetched((whole, 0), (mixed, 2), (last, 5))
    assert let.share.ahead == len(whole) + len(mixed) + len(last)
    let.admission.admit()
    assert [batch.offset for batch in let.forwarded] == [0, 5]
    assert (let.passed, let.worked) == ([(0, 2), (0, 4)], [(0, 3)])
    lane = let.lane(0)
    assert lane.codec == 4
    assert let.stats.records_in == 6
    assert let.stats.batches_taken_apart == 1
    assert let.share.ahead == 0


async def test_admit_lets_a_batch_follow_what_is_before_it() -> None:
    """Behind a record with work a batch that goes whole waits, and is not taken apart."""
    let = Let(1_000_000)
    lane = let.lane(0)
    lane.items.append(Working(ReadRecord("raw", 0, 0, 0, b"k", b"v", ())))
    let.batch(batch_of(b"a", b"b", base=1), 1)
    _, following = lane.items
    assert isinstance(following, Passing)
    assert following.batch.offset == 1
    assert let.forwarded == []
    assert let.share.work == let.share.used == len(batch_of(b"a", b"b")) + OVERHEAD


async def test_admit_keeps_a_batch_until_there_is_room() -> None:
    """Batches that do not fit wait, in order, and count as read ahead; `let_go` forgets them and their bytes."""
    data = batch_of(*(b"%d" % n for n in range(10)))
    let = Let(3 * (len(data) + OVERHEAD))
    let.fetched(*((changed(data, ">q", 0, 10 * n), 10 * n) for n in range(5)))
    let.admission.admit()
    assert [batch.offset for batch in let.forwarded] == [0, 10, 20]
    assert let.share.ahead == 2 * len(data)
    let.share.give(let.held[0])
    let.admission.admit()
    assert [batch.offset for batch in let.forwarded] == [0, 10, 20, 30]
    assert let.holds(0)
    lane = let.lane(0)
    lane.read_to = 50
    let.lanes.let_go()
    assert (let.share.ahead, lane.read_to) == (0, 0)  # what is forgotten is not committed as read
    assert not let.holds(0)


async def test_admit_from_the_middle_of_a_batch() -> None:
    """Only the records from the position on are taken and counted; if compaction has left none of them, nothing is."""
    let = Let(1_000_000)
    let.batch(batch_of(b"a", b"b", b"c", base=7), 8)
    assert let.passed == [(0, 8), (0, 9)]
    assert let.stats.records_in == 2
    let.batch(changed(batch_of(b"a", b"b", base=10), ">i", 23, 9), 12)  # 12 to 19 are gone
    assert (let.forwarded, let.passed[2:], let.share.ahead) == ([], [], 0)
    assert not let.holds(0)
    let.batch(changed(batch_of(b"a", b"b", base=20), ">i", 23, 9), 20)
    assert [batch.offset for batch in let.forwarded] == [20]


async def test_admit_ends_its_turn() -> None:
    """Records of a batch that was taken apart are looked at up to the turn; the rest goes on in the next one."""
    let = Let(1_000_000, turn=3)
    let.fetched((batch_of(b"a", b"b", b"c", b"d", b"work"), 0), (batch_of(b"e", base=5), 5))
    let.admission.admit()
    assert (let.passed, let.admission.in_turn) == ([(0, 0), (0, 1), (0, 2)], True)
    assert let.share.ahead > 0
    let.admission.admit()
    assert (let.passed[3:], let.worked) == ([(0, 3)], [(0, 4)])
    assert [batch.offset for batch in let.forwarded] == [5]
    assert let.share.ahead == 0


@pytest.mark.parametrize(
    ("how", "size", "gone"),
    [("whole", 1_000_000, [1, 2, 3]), ("apart", 1_000_000, [0, 1, 2, 3]), ("refused", 68_000_000, [0, 1, 2, 3])],
)
async def test_admit_ends_its_turn_by_what_it_decompresses(how: str, size: int, gone: Sequence[int]) -> None:
    """Of batches with a few KB that hold much, one is decompressed in a turn: so other tasks have theirs between."""
    let = Let(200_000, turn=10)
    let.admission._chain = cast(Any, SimpleNamespace(passes_whole=lambda *_, **__: True, passes=bool))
    let.admission._limit_bytes = 1_000_000
    data = repacked(built(0, [Record(b"a", bytes(size // 2), (), 5)] * 2), "zstd")
    skipped = 0 if how == "whole" else 1
    for base in (0, 2, 4):
        let.fetched((changed(data, ">q", 0, base), base + skipped))
    seen: list[int] = []
    while let.lanes.waits:
        let.admission.admit()
        let.share.give(let.share.used)
        assert let.admission.in_turn == let.lanes.waits
        seen.append(len(let.forwarded) + len(let.passed) + len(let.refused))
    assert seen == gone
    assert [each.first for each in let.refused] == ([1, 3, 5] if how == "refused" else [])
    assert let.passed == ([(0, 1), (0, 3), (0, 5)] if how == "apart" else [])
    assert [batch.offset for batch in let.forwarded] == ([0, 2, 4] if how == "whole" else [])


async def test_admit_looks_at_no_more_where_there_is_no_room() -> None:
    """Batches of other partitions that hold much, and find no room, are looked at in other turns, and not kept open."""
    let = Let(200_000, turn=15)
    data = repacked(built(0, [Record(b"a", bytes(1_000_000), (), 5)]), "zstd")
    let.share.take(200_000)
    for partition in (0, 1):
        let.fetched(*((changed(data, ">q", 0, base), base) for base in (0, 1)), partition=partition)
    looked: list[int] = []
    for _ in range(3):
        let.admission.admit()
        assert let.lanes.waits
        waiting = [batch for lane in let.lanes for batch in lane.read.batches]
        looked.append(sum(batch.passes is not None for batch in waiting))
        assert [batch.batch.looked_at_bytes for batch in waiting if batch.batch is not None] == [0] * 4
    assert (looked, let.admission.in_turn) == ([2, 4, 4], False)


def _waits_for_store(reserve_bytes: int, *, lacks_size: bool = False) -> Work:
    record = Record(b"k", b"v")
    step = Store(lambda: (record,), None if lacks_size else reserve_bytes)
    return Work(record, 0, (record,), step=step, reserve_bytes=0 if lacks_size else reserve_bytes)


async def test_a_record_whose_size_nobody_knows_waits_alone() -> None:
    """It reserves nothing until the store has said how long its payload is, and then no more than that."""
    let = Let(100_000)
    let.works = {b"large": _waits_for_store(100_000, lacks_size=True), b"sized": _waits_for_store(20_000)}
    let.add(0, (0, b"large", 500))
    let.add(1, (0, b"sized", 500), (1, b"sized", 500))
    assert (let.worked, let.holds(0)) == ([(1, 0), (1, 1)], True), "those of the other partition have gone on"
    let.answer = _waits_for_store(5_000)
    let.admission.admit()
    assert let.worked[2:] == [(0, 0)]
    assert let.share.work == 500 + 5_000 + 2 * (500 + 20_000)


async def test_a_record_that_is_too_large_fails_before_anything_is_reserved() -> None:
    """What the store says of its payload is over the limit: it fails, though other work takes all the room."""
    let = Let(100_000)
    let.works = {b"large": _waits_for_store(100_000, lacks_size=True), b"sized": _waits_for_store(85_000)}
    let.add(0, (0, b"large", 500))
    let.add(1, (0, b"sized", 500), (1, b"sized", 500))
    assert (let.worked, let.share.work_waits) == ([(1, 0)], True)
    let.answer = PayloadTooLargeError("memory://x", 9, 8)
    let.admission.admit()
    assert (let.failed, let.holds(0)) == ([(0, let.answer)], False)


async def test_a_reference_that_is_refused_does_not_wait_behind_a_store() -> None:
    """It needs no store, and goes on while records of other partitions take all the room."""
    let = Let(100_000)
    forged = Record(b"forged", b"file:///etc/passwd", (("large-message", b"true"), ("large-message.size", b"90000")))
    with pytest.raises(ReferenceRefusedError) as refused:
        chain_of(["inflate"], memory()).begin(forged)
    let.works = {b"sized": _waits_for_store(85_000), b"forged": refused.value}
    let.add(0, (0, b"sized", 500), (1, b"sized", 500))
    let.add(1, (0, b"forged", 500))
    assert (let.worked, let.failed) == ([(0, 0)], [(0, refused.value)])


async def test_each_partition_has_its_part_while_another_is_stuck() -> None:
    """While the store stalls one partition, a small record of another does not wait behind a large one of a third."""
    let = Let(100_000, partitions=3)
    let.works = {b"half": _waits_for_store(50_000), b"small": _waits_for_store(5_000)}
    let.add(0, (0, b"half", 500))
    let.add(1, (0, b"half", 500))
    let.add(2, (0, b"small", 500))
    assert let.worked == [(0, 0)], "in order, while the store answers"
    stuck = let.lane(0)
    stuck.stalled, stuck.work = 1, 50_500
    let.admission.admit()
    assert let.worked == [(0, 0), (2, 0)]
