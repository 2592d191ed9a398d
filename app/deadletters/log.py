"""The dead-letter topic as commands read it: partition by partition, up to its end, beside what was replayed of it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from aiokafka.structs import OffsetAndMetadata

from app.config.settings import ClientSettings
from app.deadletters.reader import Found, Summary
from app.deadletters.replay_offsets import Replayed, TooManyGapsError
from app.kafka.clients import security_arguments, translated
from app.kafka.consumer_controls import ConsumerControls
from app.kafka.topic_reader import TopicRecord
from app.kafka.topics import Topic
from app.kafka.undecodable import UndecodableBatches
from transforms.errors import ConfigurationError, WideloadError

__all__ = ["Filters", "LetterLog", "ReplayTakenOverError", "open_log"]

_POLL_MS = 200


@dataclass(frozen=True, slots=True)
class Filters:
    """Which letters.

    Attributes:
        error: the class of the exception, with or without its module; None for any.
        since_ms: the least timestamp, in milliseconds; None for any.
        topic: where the records came from; None for any topic.
        partition: of the dead-letter topic; None for all.
        start: the least offset there.
        end: the greatest; None for the last.
        limit: how many letters at most; None for all.
    """

    error: str | None = None
    since_ms: int | None = None
    topic: str | None = None
    partition: int | None = None
    start: int = 0
    end: int | None = None
    limit: int | None = None

    def take(self, found: Found, summary: Summary) -> bool:
        """Whether a letter is one of them; `partition` and `limit` are for who reads."""
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
    """Another replay has committed to the group of this one since it began."""

    def __init__(self, topic: str, partition: int, group: str, written: int) -> None:
        super().__init__(topic, partition, group, written)
        self.topic = topic
        self.partition = partition
        self.group = group
        self.written = written

    def __str__(self) -> str:
        twice = f"; {self.written:,} letters that this one wrote last may come twice" if self.written else ""
        return (
            f"topic {self.topic}, partition {self.partition}: another replay with group {self.group} has begun "
            f"meanwhile, and goes on; this one ends{twice}"
        )


class LetterLog:
    """One dead-letter topic. Use `open_log`. Its methods raise aiokafka's errors.

    Args:
        consumer: started, with all partitions.
        topic: what the cluster says of it.
        group: of the consumer; None where it has none.
    """

    # State that changes: `_noted`, what the group was seen to have committed last, or was given, and `_claimed`, the
    # partitions in which that has this run's name. For one caller.

    def __init__(self, consumer: AIOKafkaConsumer, topic: Topic, group: str | None) -> None:
        self.topic = topic
        self._consumer = consumer
        self._controls = ConsumerControls(consumer)
        self._group = group
        self._run = secrets.token_hex(4)
        self._noted: dict[int, OffsetAndMetadata | None] = {}
        self._claimed: set[int] = set()
        self._unreadable = UndecodableBatches(self._controls)
        self._partitions = {number: TopicPartition(topic.name, number) for number in range(topic.partitions)}

    async def ranges(self, filters: Filters) -> dict[int, tuple[int, int]]:
        """Of each partition that is wanted, the first offset that there is, and the one behind the last.

        Raises:
            ConfigurationError: there is no such partition.
        """
        if filters.partition is not None and filters.partition not in self._partitions:
            raise ConfigurationError(
                "--partition",
                f"found {filters.partition}, topic {self.topic.name} has the partitions 0 to "
                f"{self.topic.partitions - 1}",
            )
        wanted = [self._partitions[n] for n in self._partitions if filters.partition in (None, n)]
        first = await self._consumer.beginning_offsets(wanted)
        ends = await self._consumer.end_offsets(wanted)
        return {partition.partition: (first[partition], ends[partition]) for partition in wanted}

    async def records(self, partition: int, start: int, end: int) -> AsyncIterator[Sequence[TopicRecord]]:
        """The records of a partition from `start` on and before `end`, in order, some at a time."""
        wanted = self._partitions[partition]
        self._consumer.pause(*self._partitions.values())
        self._consumer.resume(wanted)
        self._consumer.seek(wanted, start)
        while await self._consumer.position(wanted) < end:
            polled = await self._unreadable.read((wanted,))
            for records in (polled or await self._consumer.getmany(wanted, timeout_ms=_POLL_MS)).values():
                within = [record for record in records if record.offset < end]
                if within:
                    yield within

    async def replayed(self, partition: int, first: int, end: int) -> Replayed:
        """What the group has replayed of a partition.

        Args:
            partition: which.
            first: the first offset that there is.
            end: the one behind the last; where more was committed, the topic was made anew, and nothing counts.

        Raises:
            ConfigurationError: what is committed is another program's.
        """
        commit = self._noted[partition] = await self._committed(partition)
        if commit is None or commit.offset > end:
            return Replayed(first)
        found = Replayed.read(commit.offset, commit.metadata)
        if found is None:
            raise ConfigurationError("--group", "is a group whose commits have the metadata of another program")
        found.add(0, first)
        return found

    async def commit(self, partition: int, replayed: Replayed, written: int = 0) -> None:
        """Commits what was replayed of a partition; `replayed` was called before.

        Args:
            partition: which.
            replayed: of it.
            written: how many letters were written that are not committed yet.

        Raises:
            TooManyGapsError: it cannot be said in a commit.
            ReplayTakenOverError: another run has committed since; nothing is committed here then.
            ConfigurationError: the group is another program's, and in use.
        """
        note = self._note(partition, replayed)
        await self._check(partition, written)
        try:
            await self._consumer.commit({self._partitions[partition]: (replayed.offset, note)})
        except CommitFailedError as exc:
            raise ConfigurationError(
                "--group",
                f"group {self._group} has members, such as a worker that runs, and they alone may commit; give another",
            ) from exc
        self._noted[partition] = OffsetAndMetadata(replayed.offset, note)
        self._claimed.add(partition)

    async def claim(self, partition: int, replayed: Replayed) -> None:
        """Puts this run's name beside what is committed, before it writes: another sees it, and that it may is known.

        Kafka has no commit on a condition: two that look at the same moment both go on, until one looks again.

        Raises:
            TooManyGapsError: as `commit`.
            ReplayTakenOverError: as `commit`.
        """
        if partition not in self._claimed:
            await self.commit(partition, replayed)
        await self._check(partition)

    def check_note(self, partition: int, replayed: Replayed) -> None:
        """Returns where a commit has room for this.

        Raises:
            TooManyGapsError: it has not.
        """
        self._note(partition, replayed)

    def _note(self, partition: int, replayed: Replayed) -> str:
        note = replayed.note(self._run)
        if note is None:
            raise TooManyGapsError(self.topic.name, partition)
        return note

    async def _check(self, partition: int, written: int = 0) -> None:
        if await self._committed(partition) != self._noted[partition]:
            raise ReplayTakenOverError(self.topic.name, partition, str(self._group), written)

    async def _committed(self, partition: int) -> OffsetAndMetadata | None:
        wanted = self._partitions[partition]
        return (await self._controls.commits([wanted])).get(wanted)


@asynccontextmanager
async def open_log(client: ClientSettings, topic: Topic, group: str | None = None) -> AsyncIterator[LetterLog]:
    """The topic for the length of a block.

    Args:
        client: how to reach the cluster.
        topic: the dead-letter topic.
        group: which knows what was replayed.

    Raises:
        ClusterError: the cluster failed.
    """
    consumer = AIOKafkaConsumer(
        **security_arguments(client),
        client_id=client.client_id,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    consumer.assign([TopicPartition(topic.name, number) for number in range(topic.partitions)])
    try:
        await consumer.start()
        yield LetterLog(consumer, topic, group)
    except (KafkaError, IllegalStateError, OSError, TimeoutError) as exc:
        raise translated(exc, f"topic {topic.name}") from exc
    finally:
        await consumer.stop()
