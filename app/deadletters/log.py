"""The dead-letter topic as commands read it: partition by partition, with the offsets that were replayed."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from aiokafka.structs import OffsetAndMetadata

from app.cluster.enforced_limits import metadata_limit
from app.config.settings import ClientSettings
from app.deadletters.reader import FoundLetter, LetterSummary
from app.deadletters.replay_offsets import ReplayedOffsets, TooManyGapsError
from app.kafka.clients import translated
from app.kafka.consumer_controls import ConsumerControls
from app.kafka.topic_reader import topic_consumer
from app.kafka.topics import Topic
from app.kafka.undecodable import UndecodableBatches
from transforms.errors import ConfigurationError, WideloadError
from transforms.record import SourceRecord

__all__ = ["Filters", "LetterLog", "ReplayTakenOverError", "open_log"]

_POLL_MS = 200
# All letters that are read are there already. A fetch that waits at the end of a partition holds up that of the next.
_FETCH_WAIT_MS = 10


@dataclass(frozen=True, slots=True)
class Filters:
    """The letters that a command selects.

    Attributes:
        error: the class of the exception, with or without its module; None for any.
        since_ms: the least timestamp, in milliseconds; None for any.
        topic: the topic of the original records; None for any.
        partition: of the dead-letter topic; None for all.
        start: the least offset in the partition.
        end: the greatest offset; None for the last.
        limit: how many letters at most; None for all.
    """

    error: str | None = None
    since_ms: int | None = None
    topic: str | None = None
    partition: int | None = None
    start: int = 0
    end: int | None = None
    limit: int | None = None

    def match(self, found: FoundLetter, summary: LetterSummary) -> bool:
        """Whether they select a letter. The caller heeds `partition` and `limit`."""
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
    """Another replay with the same group has begun, and committed to it."""

    def __init__(self, topic: str, partition: int, group: str, written: int) -> None:
        super().__init__(topic, partition, group, written)
        self.topic = topic
        self.partition = partition
        self.group = group
        self.written = written

    def __str__(self) -> str:
        twice = f"; the last {self.written:,} letters that this one wrote may come twice" if self.written else ""
        return (
            f"topic {self.topic}, partition {self.partition}: another replay with group {self.group} has begun "
            f"meanwhile, and continues; this one ends{twice}"
        )


class LetterLog:
    """One dead-letter topic. Use `open_log`. Its methods raise aiokafka's errors.

    Args:
        consumer: started, with all partitions.
        topic: as the cluster describes it.
        group: of the consumer; None if it has none.
        metadata_bytes: `offset.metadata.max.bytes` of the brokers.
    """

    # State that changes: `_commits`, the last commit of each partition that this run has read or made, and `_claimed`,
    # the partitions whose last commit bears the id of this run. For one caller.

    def __init__(self, consumer: AIOKafkaConsumer, topic: Topic, group: str | None, metadata_bytes: int) -> None:
        self.topic = topic
        self._consumer = consumer
        self._group = group
        self._metadata_bytes = metadata_bytes
        self._run = secrets.token_hex(4)
        self._commits: dict[int, OffsetAndMetadata | None] = {}
        self._claimed: set[int] = set()
        self._controls = ConsumerControls(consumer)
        self._undecodable = UndecodableBatches(self._controls)
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
            polled = await self._undecodable.read((wanted,))
            for records in (polled or await self._consumer.getmany(wanted, timeout_ms=_POLL_MS)).values():
                within = [record for record in records if record.offset < end]
                if within:
                    yield within

    async def replayed(self, partition: int, first: int, end: int) -> ReplayedOffsets:
        """The offsets of a partition that the group has replayed.

        Args:
            partition: which.
            first: its first offset.
            end: the offset behind its last. A commit above it is of a deleted topic of the same name, and is ignored.

        Raises:
            ConfigurationError: the commit is of another program.
        """
        commit = self._commits[partition] = await self._last_commit(partition)
        if commit is None or commit.offset > end:
            return ReplayedOffsets(first)
        found = ReplayedOffsets.parse(commit.offset, commit.metadata)
        if found is None:
            raise ConfigurationError("--group", "is a group whose commits have the metadata of another program")
        found.add(0, first)
        return found

    async def commit(self, partition: int, replayed: ReplayedOffsets, written: int = 0) -> None:
        """Commits the replayed offsets of a partition; `replayed` was called before.

        Args:
            partition: which.
            replayed: its offsets.
            written: how many letters were written that are not committed yet.

        Raises:
            TooManyGapsError: the metadata of a commit has no room for them.
            ReplayTakenOverError: another run has committed since then; this one has not.
            ConfigurationError: the group has members.
        """
        metadata = self.metadata(partition, replayed)
        await self._check(partition, written)
        try:
            await self._consumer.commit({self._partitions[partition]: (replayed.offset, metadata)})
        except CommitFailedError as exc:
            raise ConfigurationError(
                "--group",
                f"group {self._group} has members, such as a worker that runs, and only they may commit; give another",
            ) from exc
        self._commits[partition] = OffsetAndMetadata(replayed.offset, metadata)
        self._claimed.add(partition)

    async def claim(self, partition: int, replayed: ReplayedOffsets) -> None:
        """Commits the id of this run before it writes: another run sees it, and this one knows that it may commit.

        Kafka has no conditional commit: two runs that claim at the same moment both go on until one checks again.

        Raises:
            TooManyGapsError: as `commit`.
            ReplayTakenOverError: as `commit`.
        """
        if partition not in self._claimed:
            await self.commit(partition, replayed)
        await self._check(partition)

    def metadata(self, partition: int, replayed: ReplayedOffsets) -> str:
        """The metadata of a commit of these offsets.

        Raises:
            TooManyGapsError: they do not fit.
        """
        metadata = replayed.metadata(self._run, self._metadata_bytes)
        if metadata is None:
            raise TooManyGapsError(self.topic.name, partition, self._metadata_bytes)
        return metadata

    async def _last_commit(self, partition: int) -> OffsetAndMetadata | None:
        wanted = self._partitions[partition]
        return (await self._controls.commits([wanted])).get(wanted)

    async def _check(self, partition: int, written: int = 0) -> None:
        if await self._last_commit(partition) != self._commits[partition]:
            raise ReplayTakenOverError(self.topic.name, partition, str(self._group), written)


@asynccontextmanager
async def open_log(client: ClientSettings, topic: Topic, group: str | None = None) -> AsyncIterator[LetterLog]:
    """The log of the dead-letter topic; it is closed at the end of the block.

    Args:
        client: how to reach the cluster.
        topic: the dead-letter topic.
        group: the group to which replayed offsets are committed.

    Raises:
        ClusterError: the cluster failed.
    """
    # Asked before anything is written: a commit that is refused would let letters be written twice.
    metadata_bytes = 0 if group is None else await metadata_limit(client)
    consumer = topic_consumer(client, group, fetch_max_wait_ms=_FETCH_WAIT_MS)
    consumer.assign([TopicPartition(topic.name, number) for number in range(topic.partitions)])
    try:
        await consumer.start()
        yield LetterLog(consumer, topic, group, metadata_bytes)
    except (KafkaError, IllegalStateError, OSError, TimeoutError) as exc:
        raise translated(exc, f"topic {topic.name}") from exc
    finally:
        await consumer.stop()
