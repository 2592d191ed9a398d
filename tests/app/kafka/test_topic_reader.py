"""What commands read, at a log that needs no broker: all records, and one `UnreadBatch` for what holds too much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError

from app.commands.restorer import Restorer
from app.config.settings import ClientSettings
from app.kafka import topic_reader
from app.kafka.source_batch import UnreadBatch
from app.kafka.topic_reader import Pending, Selection, SelectionReader, TopicReader, topic_consumer
from app.pipeline.stages import InflateStage
from app.pipeline.stats import PipelineStats
from tests.app.kafka.scripted_log import PLACE, Log, Reader
from tests.app.pipeline.chains import memory, settings_of
from tests.built_batches import built, changed, record, repacked
from transforms.chunk import Chunking
from transforms.chunked_message import Limits
from transforms.record import Record, SourceRecord
from transforms.record_batch import pack
from transforms.record_format import MAX_HEADERS

LIMIT = 1_000_000
STAGE = InflateStage(settings_of(["inflate"], large_message_max_bytes=10_000), memory(), PipelineStats())


def holding(log: Log, size: int, count: int, codec: str = "zstd") -> None:
    """Appends a batch whose records hold so many bytes together."""
    records = [Record(b"k", bytes(size // count), (), 5)] * count
    log.put(repacked(built(0, records, base=log.end), codec), count)


class Consumer:
    """What readers use of aiokafka's consumer, at a log; `before` gets `commit` or `position`, and may raise."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._client = reader.client
        self._fetcher = reader.fetcher
        self._subscription = reader.subscription
        self.committed: list[int] = []
        self.assigned = {PLACE}
        self.before: Callable[[str], None] = lambda _: None
        self.pause = self.resume = lambda *_: None

    async def getmany(self, *partitions: TopicPartition, timeout_ms: int, max_records: int) -> Any:
        """See aiokafka, as of all of these."""
        return await self.reader.fetcher.fetched_records(partitions, timeout_ms / 1000, max_records)

    async def position(self, partition: TopicPartition) -> int:
        self.before("position")
        return self.reader.position if partition == PLACE else 0

    async def beginning_offsets(self, _: object) -> dict[TopicPartition, int]:
        return {PLACE: 0}

    async def end_offsets(self, _: object) -> dict[TopicPartition, int]:
        return {PLACE: self.reader.log.end}

    async def commit(self, offsets: dict[TopicPartition, int]) -> None:
        self.before("commit")
        self.committed.append(offsets[PLACE])

    def assignment(self) -> set[TopicPartition]:
        return self.assigned

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.reader.subscription.seek(partition, offset)

    @property
    def limited(self) -> TopicReader:
        """A reader with a small limit."""
        consumer: Any = self
        return TopicReader(consumer, LIMIT)

    def poll(self, most: int = 500, timeout_ms: int = 5_000) -> AsyncIterator[tuple[object, Any]]:
        """What one poll of that gives."""
        return self.limited.poll(PLACE, timeout_ms=timeout_ms, most=most)


@asynccontextmanager
async def consuming(log: Log) -> AsyncIterator[Consumer]:
    """A consumer at the beginning of a log."""
    reader = Reader(log, 0, "read_committed")
    consumer: Any = Consumer(reader)
    reader.controls.consumer = consumer
    try:
        yield consumer
    finally:
        await reader.close()


def plain(*counts: int) -> Log:
    """A log with batches of so many records."""
    log = Log()
    for count in counts:
        log.append(0, [record(n) for n in range(count)], transactional=False)
    return log


def bombed(codec: str = "zstd") -> Log:
    """A log with one batch that holds too much, between others: one record, three that hold too much, two, one."""
    log = plain(1)
    holding(log, 3 * LIMIT, 3, codec)
    holding(log, LIMIT // 2, 2, codec)
    log.put(changed(bytes(pack([Record(b"odd", b"v", (("\udcff", b""),))])), ">q", 0, log.end), 1)
    return log


def offsets(found: Iterable[SourceRecord]) -> list[int]:
    return [each.offset for each in found]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "snappy-raw", "lz4", "zstd"])
async def test_a_batch_that_holds_too_much_is_told_of_and_the_rest_is_read(codec: str) -> None:
    """One `UnreadBatch` is in the place of its records, with their offsets, and what is found and allowed."""
    async with consuming(bombed(codec)) as consumer:
        records = consumer.limited
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
        ((_, found),) = [each async for each in consumer.poll()]
    assert [isinstance(each, UnreadBatch) for each in found] == [False, True, False]


async def test_records_are_given_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than are asked for, whatever their batches, nor more bytes than fit into the memory; nothing is lost."""
    async with consuming(plain(3, 3, 3)) as consumer:
        assert [offsets(found) async for _, found in consumer.poll(2)] == [[0, 1], [2, 3], [4, 5]]
        assert consumer.reader.position == 6
    large = Log()
    holding(large, LIMIT - 1_000, 4)
    async with consuming(large) as consumer:
        monkeypatch.setattr(topic_reader, "_GIVEN_BYTES", LIMIT // 3)
        assert [offsets(found) async for _, found in consumer.poll()] == [[0, 1], [2, 3]]


async def test_nothing_is_given_behind_a_rebalance() -> None:
    """What was polled of a partition that is another consumer's now is not given any more."""
    async with consuming(plain(9)) as consumer:
        given = []
        async for _, found in consumer.poll(2):
            given.append(offsets(found))
            if len(given) == 2:
                consumer.reader.subscription.unsubscribe()
                consumer.reader.subscription.assign_from_user({PLACE})
    assert given == [[0, 1], [2, 3]]


async def selected(consumer: Consumer, enough: Callable[[list[int]], bool] | None = None, **more: Any) -> list[int]:
    """What a command reads of a selection, as a member of a group."""
    reader = SelectionReader(consumer.limited, Selection(start="earliest", group="g", **more), Pending())
    await reader.begin([PLACE])
    found: list[int] = []
    async for records in reader.batches(None if enough is None else lambda: enough(found)):
        for each in records:
            found.append(each.offset)  # noqa: PERF401  # `enough` counts them as they come
    return found


@pytest.mark.parametrize(
    ("most", "given", "committed"), [(None, [0, 3, 4, 5, 6], 7), (3, [0, 3, 4], 5), (2, [0, 3], 4)]
)
async def test_a_command_reads_around_a_batch_that_holds_too_much(
    most: int | None, given: list[int], committed: int
) -> None:
    """`consume` and `inspect` go on behind it, stop after as many as they are asked for, and commit no further."""
    async with consuming(bombed()) as consumer:
        assert await selected(consumer, until_end=True, max_messages=most) == given
        assert consumer.committed[-1] == committed


async def test_a_command_ends() -> None:
    """Though a partition was added, whose records came after the beginning; or in a batch, as `consume --inflate`."""
    async with consuming(plain(3)) as consumer:
        consumer.assigned.add(TopicPartition(PLACE.topic, 1))
        assert await selected(consumer, until_end=True) == [0, 1, 2]
    async with consuming(plain(9)) as consumer:
        assert await selected(consumer, lambda found: len(found) >= 4) == [0, 1, 2, 3]
        assert consumer.committed[-1] == 4


# --- a group ----------------------------------------------------------------------------------------------------------


class Group:
    """The group of a consumer, as aiokafka's coordinator tells it of rebalances."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.pending = Restorer(STAGE, Limits())
        self._subscription = consumer.reader.subscription
        self._subscription.unsubscribe()
        self._subscription.subscribe({PLACE.topic}, listener=self.pending)
        self.assign()

    def revoke(self) -> None:
        """Another consumer has come, or goes."""
        self._subscription.begin_reassignment()
        self.pending.on_partitions_revoked({PLACE})

    def assign(self) -> None:
        """The partition is this consumer's, from the last commit on."""
        self._subscription.assign_from_subscribed({PLACE})
        self._subscription.seek(PLACE, self.consumer.committed[-1] if self.consumer.committed else 0)

    async def reader(self, **selection: Any) -> SelectionReader:
        """Of a command in this group."""
        reader = SelectionReader(self.consumer.limited, Selection(group="g", **selection), self.pending)
        await reader.begin([PLACE])
        return reader

    async def restored(self, meanwhile: Callable[[int], None] = lambda _: None) -> list[tuple[int, bool]]:
        """Offsets of what a command prints, and whether it was given whole; `meanwhile` gets each offset before."""
        found = []
        async with asyncio.timeout(10):
            async for records in (await self.reader(until_end=True)).batches():
                for each in records:
                    found += [(one.source.offset, one.error is None) for one in await self.pending.restore(each)]
                    meanwhile(each.offset)
        return found


def of_chunks() -> tuple[Log, int]:
    """A log with a message of chunks, and a record behind it, in one batch; and the last offset of the message."""
    log = Log()
    chunks = [*Chunking(1_000).split(Record(b"k", b"x" * 3_000, (), 5), "message")]
    log.append(0, [*chunks, Record(b"k", b"plain", (), 5)], transactional=False)
    return log, len(chunks) - 1


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

        assert await group.restored(meanwhile) == [(last, True), (last + 1, True)]
    assert committed_then == [[]] * (2 + last + 2)
    assert consumer.committed == [last + 2]


async def test_nothing_is_given_or_committed_while_the_group_rebalances() -> None:
    """From the revocation on the partition may be anybody's, though the consumer has the assignment of before."""
    async with consuming(plain(9)) as consumer:
        group = Group(consumer)
        batches = (await group.reader(until_end=True)).batches()
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

        found = await group.restored(meanwhile)
    whole = [(last, True), (last + 1, True)]
    assert found == (whole * 2 if call == "commit" else whole)
    assert (raised, consumer.committed) == ([call], [last + 2])


@pytest.mark.parametrize(("call", "error"), [("commit", CommitFailedError), ("position", IllegalStateError)])
async def test_a_call_that_fails_without_a_rebalance_is_an_error(call: str, error: type[Exception]) -> None:
    """Else a consumer that the group has put out would read the same records for ever."""
    async with consuming(of_chunks()[0]) as consumer:

        def before(what: str) -> None:
            if what == call and consumer.reader.position:
                raise error

        group = Group(consumer)
        consumer.before = before
        with pytest.raises(error):
            await group.restored()


async def test_a_slow_value_does_not_put_a_command_out_of_its_group() -> None:
    """It would begin again at its last commit, be as slow again, and never go on."""
    consumer = topic_consumer(ClientSettings("localhost:1", "test"), "g")
    await consumer.stop()
    assert consumer._max_poll_interval_ms == 24 * 3_600_000
