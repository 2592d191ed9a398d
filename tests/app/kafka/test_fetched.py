"""Batches in the place of records, from aiokafka's own fetcher: at a log that needs no broker."""

from __future__ import annotations

import asyncio
import functools
import gzip
import random
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
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
        self.now = self.peak = 0
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
    """A reader whose polls give batches; at its end nothing counts as read ahead."""
    reader, ahead = Reader(log, offset, isolation, most), Ahead()
    FetchedBatches(reader.controls, ahead)
    try:
        yield reader, ahead
        assert ahead.now == 0
    finally:
        await reader.close()


def rows(records: Iterable[Any]) -> list[Row]:
    """The records, to be compared."""
    return [(each.offset, each.key, each.value, tuple(each.headers), each.timestamp) for each in records]


def opened(batches: Iterable[SourceBatch]) -> list[SourceRecord]:
    """All records, as the pipeline and commands open batches."""
    return [record for batch in batches for record in batch.opened(1 << 20)]


async def theirs(log: Log, isolation: str = "read_committed") -> list[Row]:
    """The records as aiokafka alone reads them."""
    reader = Reader(log, 0, isolation)
    try:
        return rows(await reader.read())
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
    expected = await theirs(log, isolation)
    assert log.aborted
    marks = sum(batch[22] & 0x20 != 0 for batch in log.batches)
    assert (isolation == "read_uncommitted") == (len(expected) + marks == log.end)
    for offset in (0, 1, *rng.sample(range(log.end), 8)):
        async with reading(log, offset, isolation, most=rng.choice((1, 900, 5_000, 1 << 20))) as (reader, ahead):
            found = await reader.read()
            assert rows(opened(found)) == [row for row in expected if row[0] >= offset]
            assert all(batch.whole == (batch.offset == batch.batch.base_offset) for batch in found if batch.batch)
            assert reader.position == log.end
            assert ahead.peak > 0


async def test_a_poll_may_end_between_two_batches() -> None:
    """With a limit of batches a poll, nothing is lost or given twice, and the position is behind the last one given."""
    log = transactions(random.Random(9), 30)
    async with reading(log) as (reader, _):
        found: list[SourceBatch] = []
        while reader.position < log.end:
            polled = await reader.poll(1)
            assert len(polled) <= 1
            found += polled
            if polled:
                assert reader.position == polled[0].batch.last_offset + 1
        assert rows(opened(found)) == await theirs(log)


async def corrupt(reader: Reader, why: str) -> list[int]:
    """The offsets of what polls give until one is refused."""
    found, error = await reader.until_error()
    assert isinstance(error, CorruptRecordException)
    assert re.search(why, str(error))
    return [each.offset for each in opened(found)]


def twelve() -> Log:
    """Four batches of three records."""
    log = Log()
    for number in range(4):
        log.append(number, [record(10 * number + n) for n in range(3)], transactional=False)
    return log


Damage = Callable[[bytes], bytes]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "checksum"),
        (lambda data: changed(data, ">b", 16, 3), "magic of a batch"),
        (lambda data: changed(data, ">b", 16, 1), "message"),
        (lambda data: changed(data, ">q", 0, -5), "offsets of a batch"),
        (lambda data: changed(changed(data, ">i", 57, 99), ">I", 17, 1)[:17] + bytes(4) + data[21:], "checksum"),
        (lambda data: changed(data, ">i", 8, 3), "length of a batch"),
    ],
)
async def test_what_is_before_a_damaged_batch_comes_first(damage: Damage, why: str) -> None:
    """The batches before it are given once; then each poll fails, and the position stays where the damage is."""
    log = twelve()
    log.batches[2] = damage(log.batches[2])
    async with reading(log) as (reader, _):
        assert await corrupt(reader, f"offset 6: .*{why}") == [*range(6)]
        assert reader.position == 6
        assert await corrupt(reader, "offset 6") == []
        reader.fetcher.seek_to(PLACE, 9)
        assert [each.offset for each in opened(await reader.read())] == [9, 10, 11]


@pytest.mark.parametrize(
    ("damage", "why", "place"),
    [
        (lambda data: changed(data, ">i", 57, 99), "records of a batch", (6, 8)),
        (lambda data: changed(data, ">h", 21, 6), "codec of a batch", (6, 8)),
        (lambda data: changed(data, ">i", 23, -2), "offsets of a batch", (6, 6)),
    ],
)
async def test_a_header_that_a_broker_has_taken(damage: Damage, why: str, place: tuple[int, int]) -> None:
    """With a right checksum it never changes: a failed record is in its place, and the rest comes."""
    log = twelve()
    log.batches[2] = damage(log.batches[2])
    log.ends[2] = place[1] + 1
    for offset in (0, place[1]):
        async with reading(log, offset) as (reader, _):
            found = [each for batch in await reader.read() for each in batch.records()]
        assert [each.offset for each in found if each.offset not in place] == [*range(offset, 6), 9, 10, 11]
        (failed,) = [each for each in found if isinstance(each, UnreadBatch)]
        assert (failed.first, failed.offset) == (max(offset, place[0]), place[1])
        assert failed.value == log.batches[2]
        assert why in str(failed.error)


# --- old formats -----------------------------------------------------------------------------------------------------


def old_logs() -> Iterator[tuple[str, Log, list[Row]]]:
    """Logs with batches of all formats, in several orders, and what is in them."""
    for order in ("0011", "1100", "0101", "1122", "0102", "2101", "2010"):
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


async def test_formats_in_any_order() -> None:
    """Each record comes once, in order, from any offset on: a partition may begin with old segments, and have all."""
    for order, log, expected in old_logs():
        for offset in range(log.end):
            async with reading(log, offset, most=(1, 200, 1 << 20)[offset % 3]) as (reader, _):
                found = rows(opened(await reader.read()))
                assert found == [row for row in expected if row[0] >= offset], (order, offset)


HALF = message(1, 2, None, zipped(message(1, 0, b"k", b"v") + message(1, 1, b"k", b"v", 5, 1)), 5, 1)
DISTANCES = b"".join(message(0, n, b"%d" % n, b"v") for n in range(3))


@pytest.mark.parametrize(
    ("first", "data", "found"),
    [
        # The time of the broker is that of all records that are compressed together.
        (0, wrapped(1, "gzip", {0: record(0), 1: record(1)}, 4_711, 0x08), [(0, b"k0", 4_711), (1, b"k1", 4_711)]),
        # Some clients wrote distances in format 0, too: they count to the last one's offset, as librdkafka reads them.
        (10, message(0, 12, None, zipped(DISTANCES), 0, 1), [(10, b"0", -1), (11, b"1", -1), (12, b"2", -1)]),
    ],
    ids=["broker's time", "distances"],
)
async def test_old_messages_that_are_compressed(first: int, data: bytes, found: list[tuple[int, bytes, int]]) -> None:
    """Times and offsets of what is in them are worked out."""
    log = Log()
    log.put(data, found[-1][0] + 1)
    async with reading(log, first) as (reader, _):
        assert [(each.offset, each.key, each.timestamp) for each in opened(await reader.read())] == found


@pytest.mark.parametrize(
    ("why", "data"),
    [
        ("value of a message", message(1, 2, None, b"no gzip", 5, 1)),
        ("value of a message", message(0, 2, None, None, 5, 1)),
        ("compressed messages", message(1, 2, None, zipped(b""), 5, 1)),
        ("compressed messages", message(1, 2, None, zipped(b"short"), 5, 1)),
        ("compressed messages", message(1, 2, None, zipped(message(0, 0, b"k", b"v")), 5, 1)),
        ("compressed messages", message(1, 2, None, zipped(message(1, 0, b"k", b"v", 5, 1)), 5, 1)),
        ("size of a message", message(1, 2, None, zipped(message(1, 0, b"k", b"v" * 99)[:60]), 5, 1)),
        ("compressed messages", HALF),
        ("offset of a message", message(0, 2, None, zipped(message(0, 2, b"k", b"v") * 2), 5, 1)),
        ("offset of a message", message(1, 2, None, zipped(message(1, 1, b"k", b"v") * 2), 5, 1)),
        ("codec of a message", message(1, 2, b"k", b"v", 5, 4)),
        ("holds more than", message(1, 2, None, zipped(bytes(1 << 21)), 5, 1)),
        ("checksum", message(0, 2, b"k", b"v")[:-1] + b"x"),
    ],
)
async def test_old_messages_that_nobody_can_read(why: str, data: bytes) -> None:
    """They are failed records in their place, and the rest is read; with a wrong checksum they are asked for again."""
    log = Log()
    log.put(message(1, 0, b"first", b"v"), 1)
    log.put(data, 2)
    log.put(message(0, 3, b"last", b"v"), 1)
    async with reading(log) as (reader, _):
        if why == "checksum":
            assert await corrupt(reader, r"offset 1: .*checksum") == [0]
            reader.fetcher.seek_to(PLACE, 3)
            assert [each.offset for each in opened(await reader.read())] == [3]
            return
        first, *good, failed, last = opened(await reader.read())
        assert (first.key, last.key, last.offset) == (b"first", b"last", 3)
        assert isinstance(failed, UnreadBatch)
        assert [each.offset for each in good] == [1] * (data == HALF)
        assert (failed.first, failed.offset, failed.value) == (2 if good or "codec" in why else 1, 2, data)
        assert why in str(failed.error)


async def test_gaps_that_compaction_has_left_are_passed() -> None:
    """Records that are gone leave no trace: batches without any are skipped, and the position is behind the gap."""
    log = Log()
    log.append(0, [record(0), record(1)], transactional=False)
    log.put(changed(changed(built(0, [record(2)], base=2), ">i", 23, 4), ">i", 57, 1), 5)  # 3 to 6 are gone
    log.put(changed(changed(built(0, [record(9)], base=7), ">i", 57, 0)[:61], ">i", 8, 49), 1)
    log.append(0, [record(8)], transactional=False)
    async with reading(log) as (reader, _):
        found = await reader.read()
        assert [[each.offset for each in batch.records()] for batch in found] == [[0, 1], [2], [8]]
        assert [batch.whole for batch in found] == [True, False, True]
        assert [batch.batch.last_offset for batch in found if batch.batch] == [1, 6, 8]
    async with reading(log, 5) as (reader, _):
        assert [each.offset for each in opened(await reader.read())] == [8]


# --- what is read ahead ----------------------------------------------------------------------------------------------


async def test_what_is_let_go_counts_no_more() -> None:
    """Bytes that were fetched count until they are polled, or are let go by a seek, or come a second time."""
    log = twelve()
    async with reading(log) as (reader, ahead):
        while not ahead.now:
            await reader.fetcher._create_fetch_waiter()
        size = ahead.now
        assert size == sum(map(len, log.batches))
        result = reader.fetcher._records[PLACE]
        reader.fetcher.seek_to(PLACE, 0)
        assert ahead.now == 0
        for _ in range(2):  # the leader has moved: the old one and the new one answer
            reader.fetcher._records._taken[PLACE] = b"".join(log.batches), ()
            result._partition_records = SimpleNamespace(next_fetch_offset=0, _check_crcs=True)
            reader.fetcher._records[PLACE] = result
            assert ahead.now == size
        reader.fetcher._records.clear()
        assert ahead.now == 0


async def test_a_fetch_waits_until_it_may() -> None:
    """No request goes out while it is told to wait."""
    async with reading(twelve()) as (reader, ahead):
        ahead.let.clear()
        assert await reader.poll() == await reader.poll() == []
        assert reader.sent == 0
        ahead.let.set()
        assert len(await reader.read()) == 4


async def test_what_is_not_taken_up_is_not_kept() -> None:
    """The fetcher throws an answer away if the position has moved meanwhile: its bytes go with the next answer."""
    async with reading(twelve()) as (reader, ahead):
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
