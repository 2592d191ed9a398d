"""What commands read, at a log that needs no broker: all records, and one `UnreadBatch` for what holds too much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError

from app.cluster.enforced_limits import CommitLimits
from app.commands.restorer import Restorer
from app.config.settings import ClientSettings
from app.deadletters.log import LetterLog
from app.kafka import topic_reader
from app.kafka.source_batch import UnreadBatch
from app.kafka.topic_reader import Pending, Selection, SelectionReader, TopicReader, topic_consumer
from app.pipeline.stages import InflateStage
from app.pipeline.stats import PipelineStats
from stores.registry import open_store
from tests.app.kafka.scripted_log import PLACE, Log, Reader
from tests.app.pipeline.chains import settings_of
from tests.built_batches import built, changed, record, repacked
from transforms.chunk import Chunking
from transforms.chunked_message import Limits
from transforms.record import Record, SourceRecord
from transforms.record_batch import pack
from transforms.record_format import MAX_HEADERS

LIMIT = 1_000_000
STORE = {"large.message.payload.store.class": "memory"}
STAGE = InflateStage(settings_of(["inflate"], large_message_max_bytes=10_000), open_store(STORE), PipelineStats())


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
        self.assigned = {PLACE}
        self.before: Callable[[str], None] = lambda _: None  # gets `commit` or `position`, and may raise

    async def getmany(self, *partitions: TopicPartition, timeout_ms: int, max_records: int) -> Any:
        """See aiokafka."""
        return await self.reader.fetcher.fetched_records(partitions, timeout_ms / 1000, max_records)

    async def position(self, partition: TopicPartition) -> int:
        """See aiokafka."""
        self.before("position")
        return self.reader.position if partition == PLACE else 0

    async def beginning_offsets(self, _: object) -> dict[TopicPartition, int]:
        """See aiokafka."""
        return {PLACE: 0}

    async def end_offsets(self, _: object) -> dict[TopicPartition, int]:
        """See aiokafka."""
        return {PLACE: self.reader.log.end}

    async def commit(self, offsets: dict[TopicPartition, int]) -> None:
        """See aiokafka."""
        self.before("commit")
        self.committed.append(offsets[PLACE])

    def assignment(self) -> set[TopicPartition]:
        """See aiokafka."""
        return self.assigned

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """See aiokafka."""
        self.reader.subscription.seek(partition, offset)

    def pause(self, *_: TopicPartition) -> None:
        """See aiokafka."""

    resume = pause


def limited(consumer: Consumer) -> TopicReader:
    """A reader with a small limit."""
    return TopicReader(cast(Any, consumer), LIMIT)


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


def offsets(found: Iterable[SourceRecord]) -> list[int]:
    """Their offsets."""
    return [each.offset for each in found]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "snappy-raw", "lz4", "zstd"])
async def test_a_batch_that_holds_too_much_is_told_of_and_the_rest_is_read(codec: str) -> None:
    """One `UnreadBatch` is in the place of its records, with their offsets, and what is found and allowed."""
    async with consuming(bombed(codec)) as consumer:
        records = limited(consumer)
        found: list[SourceRecord] = []
        while consumer.reader.position < consumer.reader.log.end:
            async for _, given in records.poll(PLACE, timeout_ms=50, most=500):
                found += given
    assert offsets(found) == [0, 3, 4, 5, 6]
    bomb, odd = found[1], found[-1]
    assert isinstance(bomb, UnreadBatch)
    assert (bomb.first, bomb.count, len(bomb.value) < LIMIT) == (1, 3, True)
    assert str(bomb.error) == (
        f"the batch of offsets 1 to 3 holds more than {LIMIT:,} bytes before compression; "
        "allowed are 256 MiB where a command or a job reads"
    )
    assert [*odd.headers] == [("\udcff", b"")]


async def test_a_record_of_too_many_headers_is_told_of() -> None:
    """No objects are made of its headers; the records beside it are given."""
    log = Log()
    crowded = Record(b"k", b"v", (("", None),) * (MAX_HEADERS + 1), 0)
    log.append(0, [record(0), crowded, record(2)], transactional=False)
    async with consuming(log) as consumer:
        polled = limited(consumer).poll(PLACE, timeout_ms=5_000, most=500)
        ((_, found),) = [each async for each in polled]
    assert [isinstance(each, UnreadBatch) for each in found] == [False, True, False]


async def test_records_are_given_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than are asked for, whatever their batches, nor more bytes than fit into the memory; nothing is lost."""
    log = Log()
    for _ in range(3):
        log.append(0, [record(n) for n in range(3)], transactional=False)
    async with consuming(log) as consumer:
        polled = limited(consumer).poll(PLACE, timeout_ms=5_000, most=2)
        assert [offsets(found) async for _, found in polled] == [[0, 1], [2, 3], [4, 5]]
        assert consumer.reader.position == 6
    large = Log()
    holding(large, LIMIT - 1_000, 4)
    async with consuming(large) as consumer:
        monkeypatch.setattr(topic_reader, "_GIVEN_BYTES", LIMIT // 3)
        polled = limited(consumer).poll(PLACE, timeout_ms=5_000, most=500)
        assert [offsets(found) async for _, found in polled] == [[0, 1], [2, 3]]


async def test_nothing_is_given_behind_a_rebalance() -> None:
    """What was polled of a partition that is another consumer's now is not given any more."""
    log = Log()
    log.append(0, [record(n) for n in range(9)], transactional=False)
    async with consuming(log) as consumer:
        given = []
        async for _, found in limited(consumer).poll(PLACE, timeout_ms=5_000, most=2):
            given.append(offsets(found))
            if len(given) == 2:
                consumer.reader.subscription.unsubscribe()
                consumer.reader.subscription.assign_from_user({PLACE})
    assert given == [[0, 1], [2, 3]]


async def test_letters_around_a_batch_that_holds_too_much_are_read() -> None:
    """`dlq` gets all letters of a partition, and the batch as one."""
    async with consuming(bombed()) as consumer:
        topic = cast(Any, SimpleNamespace(name=PLACE.topic, partitions=1))
        log = LetterLog(limited(consumer), topic, "", CommitLimits())
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
        reader = SelectionReader(limited(consumer), selection, Pending())
        await reader.begin([PLACE])
        found = [each async for records in reader.batches() for each in records]
    assert (offsets(found), consumer.committed[-1]) == (given, committed)


async def test_a_command_ends_though_a_partition_was_added() -> None:
    """What that has came after the beginning of `consume --group --until-end`."""
    log = Log()
    log.append(0, [record(n) for n in range(3)], transactional=False)
    async with consuming(log) as consumer:
        reader = SelectionReader(limited(consumer), Selection(group="g", until_end=True), Pending())
        await reader.begin([PLACE])
        consumer.assigned.add(TopicPartition(PLACE.topic, 1))
        found = [each async for records in reader.batches() for each in records]
    assert offsets(found) == [0, 1, 2]


async def test_a_command_that_counts_values_stops_in_the_middle_of_a_batch() -> None:
    """`consume --inflate` asks after each record whether to go on."""
    log = Log()
    given: list[int] = []
    log.append(0, [record(n) for n in range(9)], transactional=False)
    async with consuming(log) as consumer:
        reader = SelectionReader(limited(consumer), Selection(group="g"), Pending())
        await reader.begin([PLACE])

        def enough() -> bool:
            return len(given) >= 4

        async for records in reader.batches(enough):
            for each in records:
                given.append(each.offset)  # noqa: PERF401  # `enough` counts them as they come
    assert (given, consumer.committed[-1]) == ([0, 1, 2, 3], 4)


# --- a group ----------------------------------------------------------------------------------------------------------


@dataclass
class Group:
    """The group of a consumer, as aiokafka's coordinator tells it of rebalances."""

    consumer: Consumer
    pending: Restorer = field(default_factory=lambda: Restorer(STAGE, Limits()))

    def __post_init__(self) -> None:
        self._subscription = self.consumer.reader.subscription
        self._listener = self.pending
        self._subscription.unsubscribe()
        self._subscription.subscribe({PLACE.topic}, listener=self._listener)
        self.assign()

    def revoke(self) -> None:
        """Another consumer has come, or goes."""
        self._subscription.begin_reassignment()
        self._listener.on_partitions_revoked({PLACE})

    def assign(self) -> None:
        """The partition is this consumer's, from the last commit on."""
        self._subscription.assign_from_subscribed({PLACE})
        self._subscription.seek(PLACE, self.consumer.committed[-1] if self.consumer.committed else 0)

    def reader(self, **selection: Any) -> SelectionReader:
        """Of a command in this group."""
        return SelectionReader(limited(self.consumer), Selection(group="g", **selection), self.pending)


def of_chunks() -> tuple[Log, int]:
    """A log with a message of chunks, and a record behind it, in one batch; and the last offset of the message."""
    log = Log()
    chunks = [*Chunking(1_000).split(Record(b"k", b"x" * 3_000, (), 5), "message")]
    log.append(0, [*chunks, Record(b"k", b"plain", (), 5)], transactional=False)
    return log, len(chunks) - 1


async def restored(
    reader: SelectionReader, pending: Restorer, meanwhile: Callable[[int], None]
) -> list[tuple[int, bool]]:
    """The offsets of what a command prints, and whether it was given whole; `meanwhile` gets each offset before."""
    await reader.begin([PLACE])
    found = []
    async with asyncio.timeout(10):
        async for records in reader.batches():
            for each in records:
                found += [(one.source.offset, one.error is None) for one in await pending.restore(each)]
                meanwhile(each.offset)
    return found


async def test_a_message_of_chunks_survives_a_rebalance_in_the_middle_of_it() -> None:
    """The rest of the batch is dropped and read again: no error is told, and no commit passes the first chunk."""
    log, last = of_chunks()
    async with consuming(log) as consumer:
        group, committed_then = Group(consumer), []

        def meanwhile(offset: int) -> None:
            committed_then.append([*consumer.committed])
            if offset == 1 and len(committed_then) == 2:
                group.revoke()
                group.assign()

        found = await restored(group.reader(until_end=True), group.pending, meanwhile)
    assert found == [(last, True), (last + 1, True)]
    assert committed_then == [[]] * (2 + last + 2)
    assert consumer.committed == [last + 2]


async def test_nothing_is_given_or_committed_while_the_group_rebalances() -> None:
    """From the revocation on the partition may be anybody's, though the consumer has the assignment of before."""
    log = Log()
    log.append(0, [record(n) for n in range(9)], transactional=False)
    async with consuming(log) as consumer:
        group = Group(consumer)
        reader = group.reader(until_end=True)
        await reader.begin([PLACE])
        batches = reader.batches()
        batch = await anext(batches)
        assert next(batch).offset == 0
        group.revoke()
        assert offsets(batch) == []
        asyncio.get_running_loop().call_soon(group.assign)  # when the command waits for it
        assert offsets(await anext(batches)) == [*range(9)]
        assert [each async for each in batches] == []
    assert consumer.committed == [9]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("commit", CommitFailedError()),
        ("commit", IllegalStateError("Partition is not assigned")),
        ("position", IllegalStateError("Partition is not assigned")),
    ],
)
async def test_another_consumer_does_not_end_the_command(call: str, error: Exception) -> None:
    """A commit, or a look at the position, that fails because a rebalance has begun is no error: it reads again."""
    log, last = of_chunks()
    async with consuming(log) as consumer:
        group = Group(consumer)
        raised: list[str] = []

        def before(what: str) -> None:
            if what == call and not raised:
                raised.append(what)
                group.revoke()
                asyncio.get_running_loop().call_soon(group.assign)
                raise error

        def meanwhile(offset: int) -> None:
            if offset == last + 1:
                consumer.before = before

        found = await restored(group.reader(until_end=True), group.pending, meanwhile)
    whole = [(last, True), (last + 1, True)]
    assert found == (whole * 2 if call == "commit" else whole)
    assert (raised, consumer.committed) == ([call], [last + 2])


async def test_a_commit_that_fails_without_a_rebalance_is_an_error() -> None:
    """Else a consumer that the group has put out would read the same records for ever."""
    log, _ = of_chunks()
    async with consuming(log) as consumer:
        group = Group(consumer)

        def before(what: str) -> None:
            if what == "commit":
                raise CommitFailedError

        consumer.before = before
        with pytest.raises(CommitFailedError):
            await restored(group.reader(), group.pending, lambda _: None)


async def test_a_slow_value_does_not_put_a_command_out_of_its_group() -> None:
    """It would begin again at its last commit, be as slow again, and never go on."""
    consumer = topic_consumer(ClientSettings("localhost:1", "test"), "g")
    await consumer.stop()
    assert consumer._max_poll_interval_ms == 24 * 3_600_000
