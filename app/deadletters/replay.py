"""Replay: letters of a dead-letter topic are written back to where their records came from, each once.

What was replayed is committed in a group of its own once it is durable: see `app.deadletters.replay_offsets`. So a
replay that is cut short goes on where it was, and repeats at most what was on its way then. Of two replays at once the
one that began last goes on, and the other ends as soon as it sees that.

Whoever may write to the topic may have forged letters. What one says decides about that one alone: no letter keeps the
others from being replayed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.partitioner import murmur2

from app.config.settings import ClientSettings, PipelineSettings
from app.deadletters.log import Filters, LetterLog
from app.deadletters.reader import Found, LetterReader
from app.deadletters.replay_offsets import Replayed
from app.kafka.batches.batch import Builder
from app.kafka.batches.raw import raw_batch
from app.kafka.clients import translated, writing_producer
from app.kafka.sender import BATCH_BYTES, find_topic
from app.kafka.topics import Topic
from stores.store import PayloadStore
from transforms.batch_size import BATCH_OVERHEAD_BYTES, batch_of_one_bytes
from transforms.chunk import Chunking, checksum
from transforms.errors import (
    ConfigurationError,
    KeyMissingError,
    PayloadStoreError,
    RecordTooLargeError,
    RecordUnfitError,
    TransformError,
)
from transforms.letter import Letter
from transforms.record import Record, RecordLike
from transforms.record_format import is_writable, serialize

__all__ = ["Failure", "Replay", "Tally", "Writer", "letter_reader", "open_writer"]

_SLICE = 200  # letters that are written, and committed, together
_SLICE_BYTES = 32 * 1024 * 1024
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Failure:
    """A letter that cannot be replayed.

    Attributes:
        partition: of the dead-letter topic.
        offset: there.
        reason: in words.
    """

    partition: int
    offset: int
    reason: str


@dataclass(slots=True)
class Tally:
    """What a replay did, or would do.

    Attributes:
        targets: letters by the topic and the partition that their records go to.
        errors: the same letters by the class of the exception.
        skipped: letters that the filters take and that are left out, by the reason.
        failed: letters that cannot be replayed, the first of them.
        failures: how many those are.
    """

    targets: Counter[tuple[str, int]] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    failed: list[Failure] = field(default_factory=list)
    failures: int = 0

    @property
    def replayed(self) -> int:
        """How many letters were, or would be, replayed."""
        return self.targets.total()

    def fail(self, found: Found, reason: str) -> None:
        """Counts one that cannot be."""
        self.failures += 1
        if len(self.failed) < _SHOWN:
            self.failed.append(Failure(found.partition, found.offset, reason))


@dataclass(frozen=True, slots=True)
class _Item:
    found: Found
    letter: Letter
    topic: Topic
    partition: int
    records: Sequence[RecordLike]
    size: int


class Writer:
    """Writes records to partitions, in order. Use `open_writer`."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def write(self, records: Sequence[tuple[Topic, int, RecordLike]]) -> None:
        """Writes all, and waits until they are durable.

        Args:
            records: each with the topic and the partition that it goes to.

        Raises:
            ClusterError: some may not be.
        """
        batches: dict[tuple[str, int], Builder] = {}
        futures = []

        async def send(topic: str, partition: int, batch: Builder) -> None:
            futures.append(await self._producer.send_batch(batch, topic, partition=partition))

        try:
            for topic, partition, record in records:
                place = topic.name, partition
                if not is_writable(record):
                    if place in batches:
                        await send(*place, batches.pop(place))
                    await send(*place, raw_batch([record]))
                    continue
                batch = batches.get(place)
                if batch is None or not _append(batch, record):
                    if batch is not None:
                        await send(*place, batch)
                    room = min(BATCH_BYTES, topic.max_message_bytes)
                    batch = batches[place] = Builder(room, 0, transactional=False)
                    _append(batch, record)
            for place, batch in batches.items():
                batch.close()
                await send(*place, batch)
            await asyncio.gather(*futures)
        except KafkaError as exc:
            raise translated(exc, "writing") from exc


def _append(batch: Builder, record: RecordLike) -> bool:
    appended = batch.append(
        timestamp=record.timestamp, key=record.key, value=record.value, headers=list(record.headers)
    )
    return appended is not None


@asynccontextmanager
async def open_writer(client: ClientSettings) -> AsyncIterator[Writer]:
    """A writer for the length of a block.

    Raises:
        ClusterError: the producer cannot start.
    """
    async with writing_producer(client) as producer:
        yield Writer(producer)


def letter_reader(store: PayloadStore | None, settings: PipelineSettings, topic: str) -> LetterReader:
    """A reader for the letters of a pipeline in a topic."""
    topics = {topic, *settings.reference_scope.topics}
    return LetterReader(store, settings.max_bytes, settings.signing, topics=topics)


class Replay:
    """One run.

    Args:
        client: how to reach the cluster.
        settings: of the pipeline.
        log: its dead-letter topic, with a group.
        store: of the pipeline; None where it has none.
        filters: which letters.
        to: a topic for all records; None for those where they came from.
        max_replays: letters of records that were replayed so often are left out.
        done: hears of each letter that was replayed.

    Attributes:
        tally: what it did, or would do.
    """

    def __init__(
        self,
        client: ClientSettings,
        settings: PipelineSettings,
        log: LetterLog,
        store: PayloadStore | None,
        filters: Filters,
        *,
        to: str | None,
        max_replays: int,
        done: Callable[[int], None],
    ) -> None:
        self.tally = Tally()
        self._client = client
        self._settings = settings
        self._log = log
        self._store = store
        self._filters = filters
        self._to = to
        self._max_replays = max_replays
        self._done = done
        self._topics: dict[str, Topic | ConfigurationError] = {}
        self._slice: list[_Item] = []

    async def run(self, writer: Writer | None) -> None:
        """Replays partition by partition; without a writer nothing is written, and nothing committed.

        Raises:
            ConfigurationError: there is no such partition or topic.
            ClusterError: the cluster failed; what was committed stays.
            TooManyGapsError: before anything of a partition is written that could not be committed.
            ReplayTakenOverError: another replay with the same group has begun.
        """
        if self._to is not None:
            await self._check_target(self._to)
        for partition, (first, end) in (await self._log.ranges(self._filters)).items():
            replayed = await self._log.replayed(partition, first, end)
            if self._full:
                return
            await self._partition(writer, partition, replayed, end)

    @property
    def _full(self) -> bool:
        limit = self._filters.limit
        return limit is not None and self.tally.replayed + len(self._slice) >= limit

    async def _partition(self, writer: Writer | None, partition: int, replayed: Replayed, end: int) -> None:
        reader = letter_reader(self._store, self._settings, self._log.topic.name)
        start = max(replayed.offset, self._filters.start)
        last = replayed.offset - 1 if start == replayed.offset else None
        async for records in self._log.records(partition, start, end):
            for record in records:
                if last is not None:
                    replayed.add(last + 1, record.offset)  # what is no record needs no replay
                last = record.offset
                duplicates = reader.duplicates
                for found in reader.add(record):
                    await self._take(reader, found, replayed)
                if reader.duplicates > duplicates:
                    replayed.add(record.offset, record.offset + 1)
                if self._full or self._slice_is_full:
                    await self._flush(writer, partition, replayed)
                if self._full or self._behind(record.offset, reader):
                    return await self._flush(writer, partition, replayed)
        for found in reader.rest():
            await self._take(reader, found, replayed)
        return await self._flush(writer, partition, replayed)

    def _behind(self, offset: int, reader: LetterReader) -> bool:
        end = self._filters.end
        return end is not None and offset >= end and not reader.pending

    async def _take(self, reader: LetterReader, found: Found, replayed: Replayed) -> None:
        summary = await asyncio.to_thread(reader.look, found)
        if self._full or not self._filters.take(found, summary):
            return
        if found.offset in replayed:
            self.tally.skipped["replayed before"] += 1
            return
        if summary.letter is None:
            self.tally.fail(found, summary.error or "it cannot be read")
            return
        try:
            left_out = self._left_out(summary.letter)
            if left_out is None:
                letter = await asyncio.to_thread(reader.open, found)
                left_out = self._left_out(letter)
            if left_out is not None:
                self.tally.skipped[left_out] += 1
                return
            self._slice.append(await self._item(found, letter))
        except (TransformError, PayloadStoreError) as exc:
            self.tally.fail(found, str(exc))
        except ConfigurationError as exc:
            if exc.key != "TOPIC":
                raise
            self.tally.fail(found, exc.reason)

    def _left_out(self, letter: Letter) -> str | None:
        if letter.replays >= self._max_replays:
            return f"replayed {letter.replays} times already, and failed again (--max-replays)"
        topic = self._topic(letter)
        if topic is None:
            return "of no topic that they say (--to)"
        if self._to is None and topic not in self._settings.topics:
            return f"of topic {topic}, which this pipeline does not read (--to)"
        return None

    def _topic(self, letter: Letter) -> str | None:
        if self._to is not None:
            return self._to
        if letter.place is not None:
            return letter.place[0]
        return self._settings.topics[0] if len(self._settings.topics) == 1 else None

    async def _item(self, found: Found, letter: Letter) -> _Item:
        name = self._topic(letter)
        assert name is not None
        topic = await self._found_topic(name)
        record = letter.replayed()
        _check_timestamp(topic, record.timestamp)
        if record.key is None and "compact" in topic.cleanup_policy:
            raise KeyMissingError(topic.name)
        partition = found.partition if letter.place is None else letter.place[1]
        if partition >= topic.partitions:
            partition = partition if record.key is None else murmur2(record.key) & 0x7FFFFFFF
            partition %= topic.partitions
        records: Sequence[RecordLike] = (record,)
        limit = topic.max_message_bytes
        writable = is_writable(record)
        size = batch_of_one_bytes(record) if writable else _raw_batch_of_one_bytes(record)
        if size > limit:
            if self._to is not None or not self._settings.chunks.assembles or not record.value or not writable:
                raise RecordTooLargeError(topic.name, size, limit)
            # It was put together from chunks, and goes as chunks again.
            chunking, digest = Chunking(limit), checksum(record.value)
            origin = ("replay", self._log.topic.name, found.partition, found.offset)
            records = tuple(chunking.split(record, chunking.uuid(record, digest, origin), digest))
        return _Item(found, letter, topic, partition, records, sum(len(each.value or b"") for each in records))

    async def _found_topic(self, name: str) -> Topic:
        """What the cluster says of a topic; asked once, as there may be a letter of it at each offset."""
        if name not in self._topics:
            try:
                self._topics[name] = await find_topic(self._client, name)
            except ConfigurationError as exc:
                self._topics[name] = exc
        topic = self._topics[name]
        if isinstance(topic, ConfigurationError):
            raise topic
        return topic

    async def _check_target(self, name: str) -> None:
        if name == self._log.topic.name:
            raise ConfigurationError("--to", f"found {name}, the topic of the dead letters itself; give another one")
        try:
            await self._found_topic(name)
        except ConfigurationError as exc:
            raise exc if exc.key != "TOPIC" else ConfigurationError("--to", exc.reason) from exc

    @property
    def _slice_is_full(self) -> bool:
        return len(self._slice) >= _SLICE or sum(item.size for item in self._slice) >= _SLICE_BYTES

    async def _flush(self, writer: Writer | None, partition: int, replayed: Replayed) -> None:
        """Writes the slice, and commits it. That it can be committed is known before it is written.

        Where this is cancelled (Ctrl-C), that happens behind the commit, so that nothing is written twice for it.
        """
        items, self._slice = self._slice, []
        if writer is None or not items:
            self._count(items)
            return
        writing = asyncio.ensure_future(self._write(writer, items, partition, replayed))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await writing
            raise

    async def _write(self, writer: Writer, items: Sequence[_Item], partition: int, replayed: Replayed) -> None:
        after = deepcopy(replayed)
        for item in items:
            for offset in item.found.offsets:
                after.add(offset, offset + 1)
        self._log.check_note(partition, after)
        await self._log.claim(partition, replayed)
        await writer.write([(item.topic, item.partition, record) for item in items for record in item.records])
        await self._log.commit(partition, after, len(items))
        for item in items:
            for offset in item.found.offsets:
                replayed.add(offset, offset + 1)
        self._count(items)

    def _count(self, items: Sequence[_Item]) -> None:
        for item in items:
            self.tally.targets[item.topic.name, item.partition] += 1
            self.tally.errors[item.letter.context.get("exception.class.name", "-").rpartition(".")[2]] += 1
        self._done(len(items))


def _raw_batch_of_one_bytes(record: RecordLike) -> int:
    """As `batch_of_one_bytes`, where the name of a header is not UTF-8."""
    return BATCH_OVERHEAD_BYTES + len(serialize(Record(record.key, record.value, record.headers, 0)))


def _check_timestamp(topic: Topic, timestamp_ms: int) -> None:
    """Refuses what brokers would refuse, and the whole batch with it.

    Raises:
        RecordUnfitError: the topic takes no such timestamp.
    """
    if not topic.takes_timestamp(timestamp_ms):
        raise RecordUnfitError(
            topic.name,
            f"its timestamp is {timestamp_ms}, further from now than message.timestamp.before.max.ms or "
            "message.timestamp.after.max.ms of the topic allows",
        )
