"""Reads a topic for a command: from which offset, to which end, and how long it waits."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from app.config.naming import check_name
from app.config.settings import ClientSettings
from app.kafka.clients import security_arguments, translated
from app.kafka.consumer_controls import ConsumerControls
from app.kafka.metadata_requests import create_no_topics
from app.kafka.offset_lookups import follow_leaders
from app.kafka.record_reader import RecordReader
from app.kafka.refusals import Refusals, refused_name
from app.kafka.stopping import stop_in_time
from app.kafka.topics import Topic
from transforms.errors import ConfigurationError
from transforms.record import SourceRecord

__all__ = ["Pending", "Reader", "Selection", "open_reader", "topic_consumer"]

_POLL_MS = 200
# A member that does not poll for so long leaves the group, and begins again at its last commit. A batch that takes
# longer to inflate would do so each time, and the command never go on.
_POLL_INTERVAL_MS = 86_400_000
_MAX_RECORDS = 500  # of one poll, so that a command shows records and commits often enough


class Pending(Protocol):
    """What a caller holds of the records that it was given, as with chunks of messages that are not whole."""

    def safe_offset(self, partition: TopicPartition, position: int) -> int:
        """The offset to commit when all records before a position were given."""

    def release(self, partition: TopicPartition) -> None:
        """The partition is another consumer's now."""


class _Releasing(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, pending: Pending) -> None:
        self._pending = pending

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Lets go of what is read again by whoever gets the partitions."""
        for partition in revoked:
            self._pending.release(partition)

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Nothing to do."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records of a topic to read.

    Attributes:
        partition: only this one; None for all.
        start: `earliest`, `latest`, an offset, or how many records before the end (below 0).
        group: the consumer group; its committed offsets go before `start`, and new ones are committed.
        until_end: stop at the end that the log has now; what a partition has that is added later does not count.
        max_messages: stop after so many.
        timeout_ms: stop if none has come for so long.
    """

    partition: int | None = None
    start: int | Literal["earliest", "latest"] = "latest"
    group: str | None = None
    until_end: bool = False
    max_messages: int | None = None
    timeout_ms: int | None = None


def topic_consumer(
    client: ClientSettings,
    group: str | None,
    reset: Literal["earliest", "latest"] = "earliest",
    *,
    fetch_max_wait_ms: int = 500,
) -> AIOKafkaConsumer:
    """A consumer of a command, not started: it reads committed records, and commits only what it is told to.

    Args:
        client: how to reach the cluster.
        group: its id; None for no group.
        reset: where to begin without a committed offset.
        fetch_max_wait_ms: how long a broker waits for records before it answers a fetch.
    """
    made = AIOKafkaConsumer(
        **security_arguments(client),
        client_id=client.client_id,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset=reset,
        isolation_level="read_committed",
        max_poll_interval_ms=_POLL_INTERVAL_MS,
        fetch_max_wait_ms=fetch_max_wait_ms,
    )
    follow_leaders(made._client)
    return create_no_topics(made)


class Reader:
    """Reads the selected records, in order by partition. Use `open_reader`."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        selection: Selection,
        partitions: Sequence[TopicPartition],
        pending: Pending | None,
    ) -> None:
        self._consumer = consumer
        self._pending = pending
        self._selection = selection
        self._partitions = partitions
        self._ends: Mapping[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._controls = ConsumerControls(consumer)
        self._reader = RecordReader(self._controls)

    async def begin(self) -> None:
        """Seeks to the start of the selection.

        Raises:
            ConfigurationError: there is no such offset.
        """
        first = await self._consumer.beginning_offsets(self._partitions)
        self._ends = await self._consumer.end_offsets(self._partitions)
        if self._selection.group is not None:
            return  # the committed offsets count, which are known after the first rebalance
        for partition in self._partitions:
            self._consumer.seek(partition, self._offset(partition, first[partition], self._ends[partition]))

    def _offset(self, partition: TopicPartition, first: int, end: int) -> int:
        start = self._selection.start
        if start == "earliest":
            return first
        if start == "latest":
            return end
        if start < 0:
            return max(first, end + start)
        if not first <= start <= end:
            raise ConfigurationError(
                "--offset", f"found {start}, partition {partition.partition} of {partition.topic} has {first} to {end}"
            )
        return start

    async def batches(self, enough: Callable[[], bool] | None = None) -> AsyncIterator[Iterator[SourceRecord]]:
        """The records as they come, some at a time, until the end of the selection.

        With a group, the offsets of a batch are committed before the next one, or at the end. A batch ends early where
        a rebalance begins, and is not committed: whoever gets the partition then reads it again.

        Args:
            enough: asked before each record, which comes alone, whether to stop; then `max_messages` does not count.

        Raises:
            ClusterError: the cluster failed.
        """
        left = self._selection.max_messages if enough is None else None
        heard = time.monotonic()
        try:
            while (left is None or left > 0) and not (enough and enough()) and not await self._at_end():
                limit = 1 if enough else _MAX_RECORDS if left is None else min(left, _MAX_RECORDS)
                async for partition, found in self._reader.poll(timeout_ms=_POLL_MS, most=limit):
                    given: list[SourceRecord] = []
                    yield self._while_held(found[:left], given)
                    if self._selection.group is not None and self._reader.held:
                        await self._commit(partition, given[-1].offset + 1)
                    if left is not None:
                        left -= len(given)
                    heard = time.monotonic()
                    if left == 0 or (enough and enough()):
                        return
                await self._commit_read()
                if self._too_long(heard):
                    return
        except (KafkaError, IllegalStateError) as exc:
            raise translated(exc, "reading") from exc

    def _while_held(self, records: Iterable[SourceRecord], given: list[SourceRecord]) -> Iterator[SourceRecord]:
        """The records, until a rebalance begins: it releases what is pending, and the rest has no beginning then."""
        for record in records:
            if not self._reader.held:
                return
            given.append(record)
            yield record

    async def _commit_read(self) -> None:
        """Commits what was read behind the last record that was given: marks of transactions, gaps of compaction.

        Else retention may take it, and the next reader would not find its offset in the log.
        """
        for partition, committed in tuple(self._committed.items()):
            position = self._controls.position(partition)
            if self._reader.held and position is not None and position > committed:
                await self._commit(partition, position)

    async def _commit(self, partition: TopicPartition, position: int) -> None:
        self._committed[partition] = position
        safe = position if self._pending is None else self._pending.safe_offset(partition, position)
        try:
            await self._consumer.commit({partition: safe})
        except (CommitFailedError, IllegalStateError):
            if self._reader.held:
                raise
            # Another consumer has come: whoever has the partition now reads the records again.

    async def _at_end(self) -> bool:
        assigned = self._selection.until_end and self._consumer.assignment()
        if not assigned:
            return False
        try:
            reached = all([await self._consumer.position(each) >= self._ends.get(each, 0) for each in assigned])
        except IllegalStateError:
            if self._reader.held:
                raise
            return False  # a partition went to another consumer meanwhile
        return reached and not self._controls.rebalancing  # else the position is behind what was dropped

    def _too_long(self, heard: float) -> bool:
        timeout = self._selection.timeout_ms
        return timeout is not None and time.monotonic() - heard > timeout / 1000


@asynccontextmanager
async def open_reader(
    client: ClientSettings, topic: Topic, selection: Selection, pending: Pending | None = None
) -> AsyncIterator[Reader]:
    """A reader for the length of a block.

    Args:
        client: how to reach the cluster.
        topic: to read.
        selection: of its records.
        pending: what the caller still holds of the records; None if it holds nothing.

    Raises:
        ConfigurationError: there is no such partition or offset, or the brokers refuse the group for its length.
        ClusterError: the cluster failed.
    """
    if selection.group is not None:
        check_name("group-id", selection.group, "--group", enabled=client.limit_names)
    topic.check_partition(selection.partition)
    numbers = range(topic.partitions) if selection.partition is None else (selection.partition,)
    partitions = [TopicPartition(topic.name, number) for number in numbers]
    consumer = topic_consumer(client, selection.group, "earliest" if selection.start == "earliest" else "latest")
    refusals = Refusals(consumer)
    if selection.group is None:
        consumer.assign(partitions)
    else:
        consumer.subscribe([topic.name], listener=None if pending is None else _Releasing(pending))
    try:
        try:
            await consumer.start()
            reader = Reader(consumer, selection, partitions, pending)
            await reader.begin()
        except (KafkaError, OSError, TimeoutError) as exc:
            group, code = selection.group, refusals.code
            refused = None if group is None else refused_name("group-id", group, "--group", code)
            raise refused or translated(exc, f"topic {topic.name}", code) from exc
        yield reader
    finally:
        await stop_in_time(consumer)
