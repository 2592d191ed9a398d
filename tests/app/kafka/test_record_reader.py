"""What commands read, at a log that needs no broker: all records, and one `Unopened` for what holds too much."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import TopicPartition

from app.deadletters.log import LetterLog
from app.kafka import record_reader
from app.kafka.record_reader import RecordReader
from app.kafka.source_batch import Unopened
from app.kafka.topic_reader import Reader as TopicReader
from app.kafka.topic_reader import Selection
from tests.app.kafka.scripted_log import PLACE, Log, Reader
from tests.built_batches import built, changed, record, repacked
from transforms.record import Record, SourceRecord
from transforms.record_batch import pack
from transforms.record_format import MAX_HEADERS

LIMIT = 1_000_000


@pytest.fixture(autouse=True)
def _small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_reader, "_MOST_BYTES", LIMIT)


def holding(log: Log, size: int, count: int, codec: str = "zstd") -> None:
    """Appends a batch whose records hold so many bytes together."""
    records = [Record(b"k", bytes(size // count), (), 5)] * count
    log.put(repacked(built(0, records, base=log.end), codec), count)


@dataclass
class Consumer:
    """What readers use of aiokafka's consumer, at a log."""

    reader: Reader

    def __post_init__(self) -> None:
        self._client = self.reader.client
        self._fetcher = self.reader.fetcher
        self._subscription = self.reader.subscription
        self.committed: list[int] = []

    async def getmany(self, *partitions: TopicPartition, timeout_ms: int, max_records: int) -> Any:
        """See aiokafka."""
        return await self.reader.fetcher.fetched_records(partitions, timeout_ms / 1000, max_records)

    async def position(self, partition: TopicPartition) -> int:
        """See aiokafka."""
        assert partition == PLACE
        return self.reader.position

    async def beginning_offsets(self, _: object) -> dict[TopicPartition, int]:
        """See aiokafka."""
        return {PLACE: 0}

    async def end_offsets(self, _: object) -> dict[TopicPartition, int]:
        """See aiokafka."""
        return {PLACE: self.reader.log.end}

    async def commit(self, offsets: dict[TopicPartition, int]) -> None:
        """See aiokafka."""
        self.committed.append(offsets[PLACE])

    def assignment(self) -> set[TopicPartition]:
        """See aiokafka."""
        return {PLACE}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """See aiokafka."""
        self.reader.subscription.seek(partition, offset)

    def pause(self, *_: TopicPartition) -> None:
        """See aiokafka."""

    resume = pause


@asynccontextmanager
async def consuming(log: Log) -> AsyncIterator[Consumer]:
    """A consumer at the beginning of a log."""
    reader = Reader(log, 0, "read_committed")
    consumer = Consumer(reader)
    reader.controls.consumer = cast(Any, consumer)
    try:
        yield consumer
    finally:
        await reader.close()


def bombed(codec: str = "zstd") -> Log:
    """A log with one batch that holds too much, between others: one record, three that hold too much, two, one."""
    log = Log()
    log.append(0, [record(0)], transactional=False)
    holding(log, 3 * LIMIT, 3, codec)
    holding(log, LIMIT // 2, 2, codec)
    log.put(changed(bytes(pack([Record(b"odd", b"v", (("\udcff", b""),))])), ">q", 0, log.end), 1)
    return log


def offsets(found: Sequence[SourceRecord]) -> list[int]:
    """Their offsets."""
    return [each.offset for each in found]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "snappy-raw", "lz4", "zstd"])
async def test_a_batch_that_holds_too_much_is_told_of_and_the_rest_is_read(codec: str) -> None:
    """One `Unopened` is in the place of its records, with their offsets, and what is found and allowed."""
    async with consuming(bombed(codec)) as consumer:
        records = RecordReader(consumer.reader.controls)
        found: list[SourceRecord] = []
        while consumer.reader.position < consumer.reader.log.end:
            async for _, given in records.poll(PLACE, timeout_ms=50, most=500):
                found += given
    assert offsets(found) == [0, 3, 4, 5, 6]
    bomb, odd = found[1], found[-1]
    assert isinstance(bomb, Unopened)
    assert (bomb.first, bomb.count, len(bomb.value) < LIMIT) == (1, 3, True)
    assert str(bomb.error) == (
        f"the batch of offsets 1 to 3 holds more than {LIMIT:,} bytes before compression; "
        "allowed are 256 MiB, where a command reads"
    )
    assert [*odd.headers] == [("\udcff", b"")]


async def test_a_record_of_too_many_headers_is_told_of() -> None:
    """No objects are made of its headers; the records beside it are given."""
    log = Log()
    crowded = Record(b"k", b"v", (("", None),) * (MAX_HEADERS + 1), 0)
    log.append(0, [record(0), crowded, record(2)], transactional=False)
    async with consuming(log) as consumer:
        polled = RecordReader(consumer.reader.controls).poll(PLACE, timeout_ms=5_000, most=500)
        ((_, found),) = [each async for each in polled]
    assert [isinstance(each, Unopened) for each in found] == [False, True, False]


async def test_records_are_given_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than are asked for, whatever their batches, nor more bytes than fit into the memory; nothing is lost."""
    log = Log()
    for _ in range(3):
        log.append(0, [record(n) for n in range(3)], transactional=False)
    async with consuming(log) as consumer:
        polled = RecordReader(consumer.reader.controls).poll(PLACE, timeout_ms=5_000, most=2)
        assert [offsets(found) async for _, found in polled] == [[0, 1], [2, 3], [4, 5]]
        assert consumer.reader.position == 6
    large = Log()
    holding(large, LIMIT - 1_000, 4)
    async with consuming(large) as consumer:
        monkeypatch.setattr(record_reader, "_GIVEN_BYTES", LIMIT // 3)
        polled = RecordReader(consumer.reader.controls).poll(PLACE, timeout_ms=5_000, most=500)
        assert [offsets(found) async for _, found in polled] == [[0, 1], [2, 3]]


async def test_nothing_is_given_behind_a_rebalance() -> None:
    """What was polled of a partition that is another consumer's now is not given any more."""
    log = Log()
    log.append(0, [record(n) for n in range(9)], transactional=False)
    async with consuming(log) as consumer:
        given = []
        async for _, found in RecordReader(consumer.reader.controls).poll(PLACE, timeout_ms=5_000, most=2):
            given.append(offsets(found))
            if len(given) == 2:
                consumer.reader.subscription.unsubscribe()
                consumer.reader.subscription.assign_from_user({PLACE})
    assert given == [[0, 1], [2, 3]]


async def test_letters_around_a_batch_that_holds_too_much_are_read() -> None:
    """`dlq` gets all letters of a partition, and the batch as one."""
    async with consuming(bombed()) as consumer:
        topic = cast(Any, SimpleNamespace(name=PLACE.topic, partitions=1))
        log = LetterLog(cast(Any, consumer), topic, "", 0)
        found = [each async for records in log.records(0, 0, 7) for each in records]
    assert offsets(found) == [0, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("most", "given", "committed"), [(None, [0, 3, 4, 5, 6], 7), (3, [0, 3, 4], 5), (2, [0, 3], 4)]
)
async def test_a_command_reads_around_a_batch_that_holds_too_much(
    most: int | None, given: list[int], committed: int
) -> None:
    """`consume` and `inspect` go on behind it, stop after as many as they are asked for, and commit no further."""
    async with consuming(bombed()) as consumer:
        selection = Selection(start="earliest", group="g", until_end=True, max_messages=most)
        reader = TopicReader(cast(Any, consumer), selection, [PLACE], None)
        await reader.begin()
        found = [each async for records in reader.batches() for each in records]
    assert (offsets(found), consumer.committed[-1]) == (given, committed)


async def test_a_command_that_counts_values_stops_in_the_middle_of_a_batch() -> None:
    """`consume --inflate` asks after each record whether to go on."""
    log = Log()
    given: list[int] = []
    log.append(0, [record(n) for n in range(9)], transactional=False)
    async with consuming(log) as consumer:
        reader = TopicReader(cast(Any, consumer), Selection(group="g"), [PLACE], None)
        await reader.begin()

        def enough() -> bool:
            return len(given) >= 4

        async for records in reader.batches(enough):
            given += offsets(records)
    assert (given, consumer.committed[-1]) == ([0, 1, 2, 3], 4)
