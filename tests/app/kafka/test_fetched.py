"""Batches in the place of records, from aiokafka's own fetcher: at a log that needs no broker."""

from __future__ import annotations

import asyncio
import functools
import gzip
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.errors import CorruptRecordException

from app.kafka.fetched import FetchedBatches
from app.kafka.source_batch import SourceBatch, UnreadBatch
from tests.app.kafka.scripted_log import PLACE, Log, Reader
from tests.built_batches import built, changed, message, record, repacked, wrapped
from transforms.record import Record, SourceRecord

zipped = functools.partial(gzip.compress, mtime=0)  # without a clock: the bytes stand in the names of tests
Row = tuple[int, bytes | None, bytes | None, tuple[Any, ...], int]


class Ahead:
    """Counts what is read ahead."""

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0
        self.let = asyncio.Event()
        self.let.set()

    def fetched(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)
        assert self.now >= 0

    async def may_fetch(self) -> None:
        await self.let.wait()


@asynccontextmanager
async def reading(
    log: Log, offset: int = 0, isolation: str = "read_committed", most: int = 1 << 20
) -> AsyncIterator[tuple[Reader, Ahead]]:
    """A reader whose polls give batches."""
    reader, ahead = Reader(log, offset, isolation, most), Ahead()
    FetchedBatches(reader.controls, ahead)
    try:
        yield reader, ahead
    finally:
        await reader.close()


def rows(batches: Sequence[SourceBatch]) -> list[Row]:
    """The records of batches."""
    return [
        (each.offset, each.key, each.value, tuple(each.headers), each.timestamp)
        for batch in batches
        for each in batch.records()
    ]


async def theirs(log: Log, offset: int, isolation: str) -> list[Row]:
    """The records as aiokafka alone reads them."""
    reader = Reader(log, offset, isolation)
    try:
        return [(r.offset, r.key, r.value, r.headers, r.timestamp) for r in await reader.read()]
    finally:
        await reader.close()


def transactions(rng: random.Random, count: int) -> Log:
    """Batches of three transactional producers and others between each other, with all codecs; some are aborted."""
    log, open_since = Log(), dict[int, int]()
    for number in range(count):
        producer = rng.randrange(5)
        records = [record(number * 100 + n, rng.choice((0, 30, 3_000))) for n in range(rng.randrange(1, 4))]
        if producer in open_since and rng.random() < 0.4:
            log.mark(producer, open_since.pop(producer), commit=rng.random() < 0.5)
        elif producer < 3:
            open_since.setdefault(producer, log.end)
            log.append(rng.randrange(5), records, producer, transactional=True)
        else:
            log.append(rng.randrange(5), records, rng.choice((-1, 0, producer)), transactional=False)
    for producer, first in open_since.items():
        log.mark(producer, first, commit=rng.random() < 0.5)
    return log


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("seed", range(6))
async def test_the_records_are_those_that_aiokafka_reads(isolation: str, seed: int) -> None:
    """Of transactions that are committed, aborted and between each other, from any offset on, by any responses."""
    rng = random.Random(seed)
    log = transactions(rng, 60)
    expected = await theirs(log, 0, isolation)
    assert log.aborted
    assert (isolation == "read_uncommitted") == (len(expected) + _marks(log) == log.end)
    for offset in (0, 1, *rng.sample(range(log.end), 8)):
        async with reading(log, offset, isolation, most=rng.choice((1, 900, 5_000, 1 << 20))) as (reader, ahead):
            found = await reader.read()
            assert rows(found) == [row for row in expected if row[0] >= offset]
            assert all(batch.whole == (batch.offset == batch.batch.base_offset) for batch in found if batch.batch)
            assert reader.position == log.end
            assert ahead.now == 0
            assert ahead.peak > 0


def _marks(log: Log) -> int:
    return sum(batch[22] & 0x20 != 0 for batch in log.batches)


async def test_a_poll_may_end_between_two_batches() -> None:
    """With a limit of batches a poll, nothing is lost or given twice, and the position is behind the last one given."""
    log = transactions(random.Random(9), 30)
    expected = await theirs(log, 0, "read_committed")
    async with reading(log) as (reader, _):
        found: list[SourceBatch] = []
        while reader.position < log.end:
            polled = await reader.poll(1)
            assert len(polled) <= 1
            found += polled
            if polled:
                assert polled[0].batch is not None
                assert reader.position == polled[0].batch.last_offset + 1
        assert rows(found) == expected


async def polling(reader: Reader, found: list[SourceBatch]) -> None:
    """Until a poll raises something."""
    while True:
        found += await reader.poll()


Damage = Callable[[bytes], bytes]


def _flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


DAMAGES: list[tuple[Damage, str]] = [
    (_flip, "checksum"),
    (lambda data: changed(data, ">b", 16, 3), "magic of a batch"),
    (lambda data: changed(data, ">b", 16, 1), "message"),
    (lambda data: changed(data, ">q", 0, -5), "offsets of a batch"),
    (lambda data: changed(changed(data, ">i", 57, 99), ">I", 17, 1)[:17] + bytes(4) + data[21:], "checksum"),
    (lambda data: changed(data, ">i", 8, 3), "length of a batch"),
]


@pytest.mark.parametrize(("damage", "why"), DAMAGES)
async def test_what_is_before_a_damaged_batch_comes_first(damage: Damage, why: str) -> None:
    """The batches before it are given once; then each poll fails, and the position stays where the damage is."""
    log = Log()
    for number in range(4):
        log.append(number, [record(10 * number + n) for n in range(3)], transactional=False)
    expected = await theirs(log, 0, "read_committed")
    log.batches[2] = damage(log.batches[2])
    async with reading(log) as (reader, ahead):
        found: list[SourceBatch] = []
        with pytest.raises(CorruptRecordException, match=f"offset 6: .*{why}"):
            await polling(reader, found)
        assert rows(found) == expected[:6]
        assert reader.position == 6
        with pytest.raises(CorruptRecordException, match="offset 6"):
            await polling(reader, found)
        assert len(rows(found)) == reader.position == 6
        reader.fetcher.seek_to(PLACE, 9)
        assert rows(await reader.read()) == expected[9:]
        assert ahead.now == 0


HEADERS: list[tuple[Damage, str, tuple[int, int]]] = [
    (lambda data: changed(data, ">i", 57, 99), "records of a batch", (6, 8)),
    (lambda data: changed(data, ">h", 21, 6), "codec of a batch", (6, 8)),
    (lambda data: changed(data, ">i", 23, -2), "offsets of a batch", (6, 6)),
]


@pytest.mark.parametrize(("damage", "why", "place"), HEADERS)
async def test_a_header_that_a_broker_has_taken(damage: Damage, why: str, place: tuple[int, int]) -> None:
    """With a right checksum it never changes: a failed record is in its place, and the rest comes."""
    log = Log()
    for number in range(4):
        log.append(number, [record(10 * number + n) for n in range(3)], transactional=False)
    log.batches[2] = damage(log.batches[2])
    log.ends[2] = place[1] + 1
    for offset in (0, place[1]):
        async with reading(log, offset) as (reader, ahead):
            found = [each for batch in await reader.read() for each in batch.records()]
            assert [each.offset for each in found if each.offset not in place] == [*range(offset, 6), 9, 10, 11]
            (failed,) = [each for each in found if isinstance(each, UnreadBatch)]
            assert (failed.first, failed.offset) == (max(offset, place[0]), place[1])
            assert failed.value == log.batches[2]
            assert why in str(failed.error)
            assert ahead.now == 0


def old_logs() -> Iterator[tuple[str, Log, list[Row]]]:
    """Logs with batches of all formats, in several orders, and what is in them."""
    for order in ("000", "111", "0011", "1100", "0101", "1122", "0012", "0102", "2101", "2010"):
        log, expected = Log(), list[Row]()
        for number, magic in enumerate(map(int, order)):
            for packer in ("none", "gzip", "snappy", "snappy-raw", "lz4"):
                # Compaction has removed some of those that are compressed together.
                taken = (0,) if packer == "none" else ((0, 1, 2), (0, 3), (2,))[number % 3]
                new = [Record(b"%d" % n, (b"v", b"", None)[number % 3], (), 1_000 + n) for n in taken]
                at = {log.end + n: each for n, each in zip(taken, new, strict=True)}
                if magic == 2:
                    log.put(repacked(built(0, new, base=log.end), packer), len(new))
                    at = dict(enumerate(new, min(at) - taken[0]))
                elif packer == "none":
                    log.put(message(magic, log.end, new[0].key, new[0].value, new[0].timestamp), 1)
                else:
                    log.put(wrapped(magic, packer, at), max(taken) + 1)
                expected += [(n, r.key, r.value, (), r.timestamp if magic else -1) for n, r in at.items()]
        yield order, log, expected


async def read_opened(reader: Reader) -> list[SourceRecord]:
    """All records, as the pipeline and commands open batches."""
    found: list[SourceRecord] = []
    for batch in await reader.read():
        found += batch.opened(1 << 20)
    return found


async def test_formats_in_any_order() -> None:
    """Each record comes once, in order, from any offset on: a partition may begin with old segments, and have all."""
    for order, log, expected in old_logs():
        for offset in range(log.end):
            async with reading(log, offset, most=(1, 200, 1 << 20)[offset % 3]) as (reader, ahead):
                found = await read_opened(reader)
                assert [(each.offset, each.key, each.value, tuple(each.headers), each.timestamp) for each in found] == [
                    row for row in expected if row[0] >= offset
                ], (order, offset)
                assert ahead.now == 0


async def test_old_messages_with_the_time_of_the_broker() -> None:
    """It is that of all records that are compressed together."""
    log = Log()
    log.put(wrapped(1, "gzip", {0: record(0), 1: record(1)}, 4_711, 0x08), 2)
    async with reading(log) as (reader, _):
        assert [each.timestamp for each in await read_opened(reader)] == [4_711, 4_711]


async def test_old_messages_with_distances_for_offsets() -> None:
    """Some clients wrote them in format 0, too: they count to the offset of the last one, as librdkafka reads them."""
    log = Log()
    log.put(message(0, 0, b"first", b"v"), 1)
    inner = b"".join(message(0, n, b"%d" % n, b"v") for n in range(3))
    log.put(message(0, 12, None, gzip.compress(inner), 0, 1), 12)
    async with reading(log) as (reader, _):
        found = await read_opened(reader)
        assert [(each.offset, each.key) for each in found] == [(0, b"first"), (10, b"0"), (11, b"1"), (12, b"2")]


BROKEN: list[tuple[str, bytes]] = [
    ("value of a message", message(1, 2, None, b"no gzip", 5, 1)),
    ("value of a message", message(0, 2, None, None, 5, 1)),
    ("compressed messages", message(1, 2, None, zipped(b""), 5, 1)),
    ("compressed messages", message(1, 2, None, zipped(b"short"), 5, 1)),
    ("compressed messages", message(1, 2, None, zipped(message(0, 0, b"k", b"v")), 5, 1)),
    ("compressed messages", message(1, 2, None, zipped(message(1, 0, b"k", b"v", 5, 1)), 5, 1)),
    ("size of a message", message(1, 2, None, zipped(message(1, 0, b"k", b"v" * 99)[:60]), 5, 1)),
    ("offset of a message", message(0, 2, None, zipped(message(0, 2, b"k", b"v") * 2), 5, 1)),
    ("offset of a message", message(1, 2, None, zipped(message(1, 1, b"k", b"v") * 2), 5, 1)),
    ("codec of a message", message(1, 2, b"k", b"v", 5, 4)),
    ("holds more than", message(1, 2, None, zipped(bytes(1 << 21)), 5, 1)),
]


@pytest.mark.parametrize(("why", "data"), BROKEN)
async def test_old_messages_that_nobody_can_read(why: str, data: bytes) -> None:
    """With a right checksum they are failed records in their place, and what is behind them is read."""
    log = Log()
    log.put(message(1, 0, b"first", b"v"), 1)
    log.put(data, 2)
    log.put(message(0, 3, b"last", b"v"), 1)
    async with reading(log) as (reader, _):
        first, failed, last = await read_opened(reader)
        assert (first.key, last.key, last.offset) == (b"first", b"last", 3)
        assert isinstance(failed, UnreadBatch)
        assert (failed.first, failed.offset, failed.value) == (2 if "codec" in why else 1, 2, data)
        assert why in str(failed.error)


async def test_old_messages_with_a_wrong_checksum() -> None:
    """They are asked for again, as batches are."""
    log = Log()
    log.put(message(1, 0, b"first", b"v"), 1)
    log.put(message(0, 1, b"k", b"v")[:-1] + b"x", 1)
    async with reading(log) as (reader, _):
        found: list[SourceBatch] = []
        with pytest.raises(CorruptRecordException, match=r"offset 1: .*checksum"):
            await polling(reader, found)
        assert [row[0] for row in rows(found)] == [0]


async def test_gaps_that_compaction_has_left_are_passed() -> None:
    """Records that are gone leave no trace: batches without any are skipped, and the position is behind the gap."""
    log = Log()
    log.append(0, [record(0), record(1)], transactional=False)
    log.put(changed(changed(built(0, [record(2)], base=2), ">i", 23, 4), ">i", 57, 1), 5)  # 3 to 6 are gone
    log.put(changed(built(0, [record(9)], base=7), ">i", 57, 0)[:61], 1)
    log.batches[-1] = changed(log.batches[-1], ">i", 8, 49)
    log.append(0, [record(8)], transactional=False)
    async with reading(log) as (reader, _):
        found = await reader.read()
        assert [[row[0] for row in rows([batch])] for batch in found] == [[0, 1], [2], [8]]
        assert [batch.whole for batch in found] == [True, False, True]
        assert [batch.batch.last_offset for batch in found if batch.batch] == [1, 6, 8]
    async with reading(log, 5) as (reader, _):
        assert [row[0] for row in rows(await reader.read())] == [8]


async def test_what_is_let_go_counts_no_more() -> None:
    """Bytes that were fetched count until they are polled, or are let go by a seek, or come a second time."""
    log = Log()
    log.append(0, [Record(b"k", bytes(5_000), (), 5)], transactional=False)
    async with reading(log) as (reader, ahead):
        while not ahead.now:
            await reader.fetcher._create_fetch_waiter()
        size = ahead.now
        assert size == len(log.batches[0])
        result = reader.fetcher._records[PLACE]
        reader.fetcher.seek_to(PLACE, 0)
        assert ahead.now == 0
        for _ in range(2):  # the leader has moved: the old one and the new one answer
            reader.fetcher._records._taken[PLACE] = log.batches[0], ()
            result._partition_records = _Own()
            reader.fetcher._records[PLACE] = result
            assert ahead.now == size
        reader.fetcher._records.clear()
        assert ahead.now == 0


class _Own:
    """What aiokafka's reader of a response has."""

    next_fetch_offset = 0
    _check_crcs = True


async def test_a_fetch_waits_until_it_may() -> None:
    """No request goes out while it is told to wait."""
    log = Log()
    log.append(0, [record(1)], transactional=False)
    async with reading(log) as (reader, ahead):
        ahead.let.clear()
        assert await reader.poll() == []
        assert await reader.poll() == []
        assert reader.sent == 0
        ahead.let.set()
        assert len(await reader.read()) == 1


async def test_what_is_not_taken_up_is_not_kept() -> None:
    """The fetcher throws an answer away if the position has moved meanwhile: its bytes go with the next answer."""
    log = Log()
    log.append(0, [record(1), record(2)], transactional=False)
    async with reading(log) as (reader, ahead):
        own: Any = reader.fetcher._records
        reader.meanwhile = lambda: reader.fetcher.seek_to(PLACE, 1 - reader.position)
        while not own._taken:
            assert await reader.poll() == []
        assert ahead.now == 0
        reader.meanwhile, reader.code = lambda: None, 6  # NOT_LEADER_OR_FOLLOWER
        sent = reader.sent
        while reader.sent < sent + 2:
            assert await reader.poll() == []
        assert own._taken == {}
