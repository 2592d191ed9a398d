"""The dead-letter topic as commands read it: partition by partition, with the offsets that were replayed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError
from aiokafka.structs import OffsetAndMetadata

from app.cluster.enforced_limits import RETENTION_KEY, CommitLimits, commit_limits
from app.config.settings import ClientSettings
from app.deadletters.reader import FoundLetter, LetterSummary
from app.deadletters.replay_offsets import ReplayedOffsets, TooManyGapsError
from app.kafka.topic_reader import TopicReader, reading, topic_consumer
from app.kafka.topics import Topic
from transforms.errors import ConfigurationError, WideloadError
from transforms.record import SourceRecord
from transforms.retention import Retention, duration_text

Commit = Mapping[TopicPartition, OffsetAndMetadata]
"""The offset that is committed for a partition, with its metadata."""

# All dead letters that are read exist already. A fetch that waits at the end of a partition delays that of the next.
_FETCH_WAIT_MS = 10


@dataclass(frozen=True, slots=True)
class Filters:
    """The dead letters that a command selects.

    Attributes:
        error: the class of the exception, with or without its module; None for any.
        since_ms: the least timestamp, in milliseconds; None for any.
        topic: the topic of the original records; None for any.
        partition: of the dead-letter topic; None for all.
        start: the least offset in the partition.
        end: the greatest offset; None for the last.
        limit: how many dead letters at most; None for all.
    """

    error: str | None = None
    since_ms: int | None = None
    topic: str | None = None
    partition: int | None = None
    start: int = 0
    end: int | None = None
    limit: int | None = None

    def match(self, found: FoundLetter, summary: LetterSummary) -> bool:
        """Whether they select a dead letter. The caller applies `partition` and `limit`."""
        if not self.start <= found.offset <= (found.offset if self.end is None else self.end):
            return False
        if self.since_ms is not None and found.timestamp < self.since_ms:
            return False
        context: Mapping[str, str] = {} if summary.letter is None else summary.letter.context
        if self.topic is not None and context.get("topic") != self.topic:
            return False
        if self.error is None:
            return True
        name = context.get("exception.class.name", "").lower()
        return self.error.lower() in (name, name.rpartition(".")[2])


class ReplayTakenOverError(WideloadError):
    """Another replay with the same group has begun with the dead letters of a partition."""

    def __init__(self, topic: str, partition: int, group: str) -> None:
        super().__init__(topic, partition, group)
        self.topic = topic
        self.partition = partition
        self.group = group

    def __str__(self) -> str:
        return (
            f"topic {self.topic}, partition {self.partition}: another replay with group {self.group} has "
            "started and continues; this one ends, and nothing is written twice"
        )


class LetterLog:
    """One dead-letter topic. Use `open_log`. Its methods raise aiokafka's errors.

    Args:
        reader: of all partitions.
        topic: as the cluster describes it.
        group: of the consumer; empty if it has none.
        limits: of what is committed.
    """

    def __init__(self, reader: TopicReader, topic: Topic, group: str, limits: CommitLimits) -> None:
        self.topic = topic
        self.group = group
        self._reader = reader
        self._controls = reader.controls
        self._consumer = self._controls.consumer
        self._limits = limits
        self._partitions = {number: TopicPartition(topic.name, number) for number in range(topic.partitions)}

    async def ranges(self, filters: Filters) -> dict[int, tuple[int, int]]:
        """For each selected partition its first offset, and the one behind its last.

        Raises:
            ConfigurationError: there is no such partition.
        """
        self.topic.check_partition(filters.partition)
        wanted = [self._partitions[n] for n in self._partitions if filters.partition in (None, n)]
        first = await self._consumer.beginning_offsets(wanted)
        ends = await self._consumer.end_offsets(wanted)
        return {partition.partition: (first[partition], ends[partition]) for partition in wanted}

    async def records(self, partition: int, start: int, end: int) -> AsyncIterator[Sequence[SourceRecord]]:
        """The records of a partition from `start` on and before `end`, in order, in batches."""
        wanted = self._partitions[partition]
        self._consumer.pause(*self._partitions.values())
        self._consumer.resume(wanted)
        self._consumer.seek(wanted, start)
        while await self._consumer.position(wanted) < end:
            async for _, records in self._reader.poll(wanted):
                within = [record for record in records if record.offset < end]
                if within:
                    yield within

    @property
    def forgotten(self) -> str | None:
        """A warning that brokers may forget which dead letters were replayed while the topic keeps them; or None.

        A group without members loses each commit for its age.
        """
        topic, kept_ms = self.topic, self._limits.retention_ms
        letters = Retention(topic.name, topic.retention_ms, topic.cleanup_policy, topic.segment_ms)
        stay_ms = letters.retention_ms + letters.segment_ms
        if not letters.forever and stay_ms <= kept_ms:
            return None
        stay = "forever" if letters.forever else f"for up to {duration_text(stay_ms)}"
        return (
            f"topic {topic.name} keeps records {stay}, and the brokers forget {duration_text(kept_ms)} after the last "
            f"replay what group {self.group} has replayed ({RETENTION_KEY}): a later replay writes all of them again; "
            "run it more often than that, or lower retention.ms and segment.ms of the topic"
        )

    async def check_group(self) -> None:
        """Refuses a group that has members: they would commit over what a replay commits.

        Raises:
            ConfigurationError: it has some.
        """
        if await self._controls.has_members():
            raise self._has_members()

    def _has_members(self) -> ConfigurationError:
        return ConfigurationError(
            "--group",
            f"group {self.group} has members, such as a worker that runs, and only they may commit; use another",
        )

    async def replayed(self, partition: int, first: int, end: int, *, stable: bool) -> ReplayedOffsets:
        """The offsets of a partition that the group has replayed.

        Args:
            partition: which.
            first: its first offset.
            end: the offset behind its last, as it was a moment ago.
            stable: whether to wait for transactions that may change them.

        Raises:
            ConfigurationError: the commit is of another program, or of a log that had more dead letters.
        """
        wanted = self._partitions[partition]
        commit = (await self._controls.commits([wanted], stable=stable)).get(wanted)
        if commit is None:
            return ReplayedOffsets(first)
        if commit.offset > end:  # dead letters may have come, and another replay may have written them
            end = (await self._consumer.end_offsets([wanted]))[wanted]
        if commit.offset > end:
            raise ConfigurationError(
                "--group",
                f"group {self.group} has replayed topic {self.topic.name}, partition {partition}, up to offset "
                f"{commit.offset:,}, and the partition ends at {end:,}: its log was cut, as by an unclean election, or "
                "it is another topic of this name; it is not known which records were replayed; another --group "
                "begins with nothing replayed",
            )
        found = ReplayedOffsets.parse(commit.offset, commit.metadata)
        if found is None:
            raise ConfigurationError("--group", "is a group whose commits have the metadata of another program")
        found.add(0, first)
        return found

    def commit_of(self, partition: int, replayed: ReplayedOffsets) -> Commit:
        """What is committed for these offsets.

        Raises:
            TooManyGapsError: the metadata of a commit has no room for them.
        """
        metadata = replayed.metadata(self._limits.metadata_bytes)
        if metadata is None:
            raise TooManyGapsError(self.topic.name, partition, self._limits.metadata_bytes)
        return {self._partitions[partition]: OffsetAndMetadata(replayed.offset, metadata)}

    async def commit(self, commit: Commit) -> None:
        """Commits outside of a transaction.

        Raises:
            ConfigurationError: the group has got members.
        """
        try:
            await self._consumer.commit(commit)
        except CommitFailedError as exc:
            raise self._has_members() from exc


@asynccontextmanager
async def open_log(client: ClientSettings, topic: Topic, group: str | None = None) -> AsyncIterator[LetterLog]:
    """The log of the dead-letter topic; it is closed at the end of the block.

    Args:
        client: how to reach the cluster.
        topic: the dead-letter topic.
        group: the group to which replayed offsets are committed.

    Raises:
        ConfigurationError: the brokers refuse the group for its length.
        ClusterError: the cluster failed.
    """
    # Asked before anything is written: a commit that is refused lets nothing be written, or the same again.
    limits = CommitLimits() if group is None else await commit_limits(client)
    consumer = topic_consumer(client, group, fetch_max_wait_ms=_FETCH_WAIT_MS)
    consumer.assign([TopicPartition(topic.name, number) for number in range(topic.partitions)])
    async with reading(consumer, topic.name, group) as reader:
        yield LetterLog(reader, topic, group or "", limits)
