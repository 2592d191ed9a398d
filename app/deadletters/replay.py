"""The replay: it writes the records of dead letters back to the topics and partitions that they came from, each once.

The offsets of replayed dead letters are committed to a separate group together with the records: see
`app.deadletters.record_writer` and `app.deadletters.replay_offsets`. An interrupted replay continues where it was.

Dead letters may be forged. Each decides about itself only: none prevents others from being replayed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from app.config.settings import ClientSettings, PipelineSettings
from app.deadletters.log import Filters, LetterLog
from app.deadletters.owner import Owner, told_context
from app.deadletters.reader import FoundLetter, LetterReader
from app.deadletters.record_writer import OpenWriter, RecordWriter, size_alone
from app.deadletters.replay_offsets import ReplayedOffsets
from app.deadletters.tally import REPLAYED, Tally
from app.kafka.sender import find_topic
from app.kafka.shielded import shielded
from app.kafka.source_batch import UnreadBatch
from app.kafka.structs import partition_of
from app.kafka.topics import Topic
from stores.encryption import open_keyring
from stores.store import PayloadStore
from transforms.chunk import Chunking, checksum
from transforms.errors import (
    BatchTooLargeError,
    ConfigurationError,
    DiscardedChunkError,
    KeyMissingError,
    MalformedError,
    PayloadCorruptError,
    PayloadNotFoundError,
    PayloadStoreError,
    RecordTooLargeError,
    RecordUnfitError,
    ReferenceRefusedError,
    TransformError,
)
from transforms.letter import Letter
from transforms.record import RecordLike
from transforms.record_format import is_writable

_BATCH = 200  # dead letters that are written, and committed, together
_BATCH_VALUE_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Replayable:
    found: FoundLetter
    letter: Letter
    topic: Topic
    partition: int
    records: Sequence[RecordLike]
    size: int


def letter_reader(store: PayloadStore | None, settings: PipelineSettings, topic: str) -> LetterReader:
    """A reader of the dead letters of a pipeline in a topic."""
    topics = {topic, *settings.reference_scope.topics}
    keyring = open_keyring(settings.encryption, settings.store_timeout_ms)
    return LetterReader(store, settings.max_bytes, settings.signing, keyring=keyring, topics=topics)


@dataclass(slots=True)
class Replay:
    """One run.

    Attributes:
        client: how to reach the cluster.
        settings: of the pipeline.
        log: its dead-letter topic, with a group.
        store: of the pipeline; None if it has none.
        filters: select the dead letters.
        to: a topic for all records; None to write each to the topic that it came from.
        max_replays: a record that was replayed so often is skipped.
        done: called with the number of dead letters after each batch.
        owner: replay only dead letters of this pipeline; None to replay all that the pipeline may.
        skip_unreadable: whether unreadable dead letters are marked as replayed, so that they leave no gaps.
        warn: called before anything is written with what the user should know.
        tally: counts the dead letters.
    """

    client: ClientSettings
    settings: PipelineSettings
    log: LetterLog
    store: PayloadStore | None
    filters: Filters
    to: str | None
    max_replays: int
    done: Callable[[int], None]
    owner: Owner | None = None
    skip_unreadable: bool = False
    warn: Callable[[str], None] = field(default=lambda _: None)
    tally: Tally = field(default_factory=Tally, init=False)
    _topics: dict[str, Topic | ConfigurationError] = field(default_factory=dict, init=False)
    _batch: list[_Replayable] = field(default_factory=list, init=False)  # the dead letters that are written next
    _unreadable: list[range] = field(default_factory=list, init=False)  # offsets that are committed with them
    _committed: bool = field(default=False, init=False)  # whether anything was, of the partition

    async def run(self, open_writer: OpenWriter | None) -> None:
        """Replays partition by partition; without a writer it writes and commits nothing.

        Raises:
            ConfigurationError: there is no such partition or topic, the group has members, its commits do not fit the
                dead letters, or the user may not write.
            ClusterError: the cluster failed; the commits stay.
            TooManyGapsError: the offsets of a batch could not be committed; none of it was written.
            ReplayTakenOverError: another replay with the same group has begun.
        """
        if self.to is not None:
            await self._check_target(self.to)
        if open_writer is not None:
            await self.log.check_group()
        ranges = await self.log.ranges(self.filters)
        before = {
            partition: await self.log.replayed(partition, first, end, stable=False)
            for partition, (first, end) in ranges.items()
        }
        forgotten = told = self.log.forgotten
        for partition, (first, end) in ranges.items():
            if self._limit_reached:
                return
            replayed = before[partition]
            if open_writer is None:
                await self._replay_partition(None, partition, replayed, end)
            elif replayed.offset < end or (forgotten is not None and replayed.offset > first):
                async with open_writer(partition) as writer:  # before the offsets are read: nothing changes them then
                    if told is not None:
                        self.warn(told)
                        told = None
                    replayed = await self.log.replayed(partition, first, end, stable=True)
                    found, self._committed = deepcopy(replayed), False
                    await self._replay_partition(writer, partition, replayed, end)
                    if forgotten is not None and not self._committed:
                        await writer.write([], self.log.commit_of(partition, found))  # so that it lives on

    @property
    def _limit_reached(self) -> bool:
        limit = self.filters.limit
        return limit is not None and self.tally.replayed + len(self._batch) >= limit

    async def _replay_partition(
        self, writer: RecordWriter | None, partition: int, replayed: ReplayedOffsets, end: int
    ) -> None:
        reader = letter_reader(self.store, self.settings, self.log.topic.name)
        start = max(replayed.offset, self.filters.start)
        last = replayed.offset - 1 if start == replayed.offset else None
        async for records in self.log.records(partition, start, end):
            for record in records:
                if last is not None:
                    first = record.first if isinstance(record, UnreadBatch) else record.offset
                    replayed.add(last + 1, first)  # an offset without a record needs no replay
                last = record.offset
                duplicates = reader.duplicates
                for found in reader.add(record):
                    await self._take(reader, found, replayed)
                if reader.duplicates > duplicates:
                    replayed.add(record.offset, record.offset + 1)
                if self._limit_reached or self._batch_is_full:
                    await self._flush(writer, partition, replayed)
                if self._limit_reached or self._past_end(record.offset, reader):
                    return await self._flush(writer, partition, replayed)
        for found in reader.incomplete():
            await self._take(reader, found, replayed)
        if last is not None:
            replayed.add(last + 1, end)  # if records come in transactions, the markers are the last
        return await self._flush(writer, partition, replayed)

    def _past_end(self, offset: int, reader: LetterReader) -> bool:
        end = self.filters.end
        return end is not None and offset >= end and not reader.pending

    async def _take(self, reader: LetterReader, found: FoundLetter, replayed: ReplayedOffsets) -> None:
        summary = await asyncio.to_thread(reader.summarize, found)
        if self._limit_reached or not self.filters.match(found, summary):
            return
        context = told_context(found.record) if summary.letter is None else summary.letter.context
        if self.owner is not None and self.owner.leaves(context):
            return
        if found.offset in replayed:
            self.tally.skipped[f"{REPLAYED}before"] += 1
            return
        if summary.letter is None:
            self.tally.fail(found, summary.error or "it cannot be read")
            await self._skip_unreadable(reader, found)
            return
        try:
            skipped = self._skip_reason(summary.letter)
            if skipped is None:
                letter = await asyncio.to_thread(reader.open, found)
                skipped = self._skip_reason(letter)
            if skipped is not None:
                self.tally.skipped[skipped] += 1
                return
            self._batch.append(await self._replayable(found, letter))
        except (TransformError, PayloadStoreError) as exc:
            self.tally.fail(found, str(exc))
            await self._skip_unreadable(reader, found)
        except ConfigurationError as exc:
            if exc.key != "TOPIC":
                raise
            self.tally.fail(found, exc.reason)

    async def _skip_unreadable(self, reader: LetterReader, found: FoundLetter) -> None:
        """Marks a dead letter that cannot be replayed as replayed, if that is due to itself."""
        if not self.skip_unreadable:
            return
        try:
            await asyncio.to_thread(reader.open, found)
        except DiscardedChunkError as exc:
            unreadable = exc.reason != "expired"  # its other chunks may be on their way
        except (BatchTooLargeError, MalformedError, PayloadCorruptError, PayloadNotFoundError, ReferenceRefusedError):
            unreadable = True
        except (TransformError, PayloadStoreError):
            unreadable = False  # with another key, limit or right it can be read
        else:
            unreadable = False
        if unreadable:
            self._unreadable += found.spans

    def _skip_reason(self, letter: Letter) -> str | None:
        if self.owner is not None and not self.owner.owns(letter.context):
            whose = f"of pipeline {letter.context.get('connector.name', '-')}"
            return (
                f"{whose} (--pipeline)" if self.owner.rivals is None else f"{whose}, whose it is not known (--pipeline)"
            )
        if letter.replays >= self.max_replays:
            return f"{REPLAYED}{letter.replays} times already, and failed again (--max-replays)"
        topic = self._target(letter)
        if topic is None:
            return "the dead-letter record does not name the topic of its record (--to)"
        if self.to is None and topic not in self.settings.topics:
            return f"of topic {topic}, which this pipeline does not read (--to)"
        return None

    def _target(self, letter: Letter) -> str | None:
        if self.to is not None:
            return self.to
        if letter.origin is not None:
            return letter.origin[0]
        return self.settings.topics[0] if len(self.settings.topics) == 1 else None

    async def _replayable(self, found: FoundLetter, letter: Letter) -> _Replayable:
        name = self._target(letter)
        assert name is not None
        topic = await self._describe(name)
        record = letter.replayed()
        if not topic.takes_timestamp(record.timestamp, time.time()):  # brokers would refuse the whole batch
            raise RecordUnfitError(
                topic.name,
                f"its timestamp is {record.timestamp}, further from now than message.timestamp.before.max.ms or "
                "message.timestamp.after.max.ms of the topic allows",
            )
        if record.key is None and "compact" in topic.cleanup_policy:
            raise KeyMissingError(topic.name)
        partition = found.partition if letter.origin is None else letter.origin[1]
        if partition >= topic.partitions:
            count = topic.partitions
            partition = partition % count if record.key is None else partition_of(record.key, count)
        records: Sequence[RecordLike] = (record,)
        limit = topic.max_message_bytes
        size = size_alone(record)
        if size > limit:
            splits = self.to is None and self.settings.chunks.assembles and "compact" not in topic.cleanup_policy
            if not splits or not record.value or not is_writable(record):
                raise RecordTooLargeError(topic.name, size, limit)
            # It was assembled from chunks: split it into chunks again.
            chunking, digest = Chunking(limit), checksum(record.value)
            origin = ("replay", self.log.topic.name, found.partition, found.offset)
            records = tuple(chunking.split(record, chunking.uuid(record, digest, origin), digest))
        return _Replayable(found, letter, topic, partition, records, sum(len(each.value or b"") for each in records))

    async def _describe(self, name: str) -> Topic:
        """The topic as the cluster describes it; asked for once, not for each dead letter."""
        if name not in self._topics:
            try:
                found = self._topics[name] = await find_topic(self.client, name)
                if found.shortage is not None:
                    self.warn(found.shortage)
            except ConfigurationError as exc:
                self._topics[name] = exc
        topic = self._topics[name]
        if isinstance(topic, ConfigurationError):
            raise topic
        return topic

    async def _check_target(self, name: str) -> None:
        if name == self.log.topic.name:
            raise ConfigurationError("--to", f"found {name}, the topic of the dead letters itself; use another topic")
        try:
            await self._describe(name)
        except ConfigurationError as exc:
            raise exc if exc.key != "TOPIC" else ConfigurationError("--to", exc.reason) from exc

    @property
    def _batch_is_full(self) -> bool:
        return len(self._batch) >= _BATCH or sum(each.size for each in self._batch) >= _BATCH_VALUE_BYTES

    async def _flush(self, writer: RecordWriter | None, partition: int, replayed: ReplayedOffsets) -> None:
        """Writes the batch, and commits its offsets. A batch whose offsets cannot be committed is not written.

        It is cancelled (Ctrl-C) only after the commit, or the next replay would write the batch again.
        """
        letters, self._batch = self._batch, []
        unreadable, self._unreadable = self._unreadable, []
        if writer is None or not (letters or unreadable):
            self._count(letters)
            return
        writing = asyncio.ensure_future(self._write(writer, letters, unreadable, partition, replayed))
        try:
            await shielded(writing)
        except asyncio.CancelledError:
            await writing
            raise

    async def _write(
        self,
        writer: RecordWriter,
        letters: Sequence[_Replayable],
        unreadable: Sequence[range],
        partition: int,
        replayed: ReplayedOffsets,
    ) -> None:
        spans = [*(span for each in letters for span in each.found.spans), *unreadable]
        after = deepcopy(replayed)
        for span in spans:
            after.add(span.start, span.stop)
        commit = self.log.commit_of(partition, after)
        records = [(each.topic, each.partition, record) for each in letters for record in each.records]
        await writer.write(records, commit)
        self._committed = True
        for span in spans:
            replayed.add(span.start, span.stop)
        self._count(letters)

    def _count(self, letters: Sequence[_Replayable]) -> None:
        for each in letters:
            self.tally.targets[each.topic.name, each.partition] += 1
            self.tally.errors[each.letter.context.get("exception.class.name", "-").rpartition(".")[2]] += 1
        self.done(len(letters))
