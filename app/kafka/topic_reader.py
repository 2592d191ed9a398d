"""Reads a topic for a command: within bounds of memory, from an offset up to an end, with a time to wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from app.config.naming import check_name
from app.config.settings import ClientSettings
from app.kafka.clients import security_arguments, translated
from app.kafka.consumer_controls import ConsumerControls
from app.kafka.fetch_errors import follow_leaders
from app.kafka.fetched import FetchedBatches
from app.kafka.gate import create_no_topics
from app.kafka.refusals import Refusals, refused_name
from app.kafka.topics import Topic
from transforms.errors import ConfigurationError
from transforms.record import SourceRecord

_POLL_MS = 200
# A member that does not poll for this time leaves the group and restarts at its last commit. If a batch took longer to
# inflate, this would happen each time, and the command would make no progress.
_POLL_INTERVAL_MS = 86_400_000
_MAX_RECORDS = 500  # of one poll, so that a command shows records and commits often enough
MOST_BYTES = 268_435_456  # of a batch before compression: the default of in.flight.bytes
ALLOWED = "256 MiB where a command or a job reads"
_GIVEN_BYTES = 33_554_432  # so that 500 records of several batches do not fill the memory
_HEADER_BYTES = 100  # the least memory of a header object


class TopicReader:
    """Reads the records of one consumer. Belongs to its event loop.

    Names of headers may be any bytes; see `transforms/record_format.py`. A batch that is too large is returned as one
    `UnreadBatch`, as is a record with more headers than the worker reads.

    Args:
        consumer: started, and not polled yet.
        most_bytes: the maximum size of a batch before compression.
        allowed: a description of this limit for messages.

    Attributes:
        controls: of the consumer.
    """

    # State that changes: `_assignment`, in `poll`; one poll at a time.

    def __init__(self, consumer: AIOKafkaConsumer, most_bytes: int = MOST_BYTES, allowed: str = ALLOWED) -> None:
        self.controls = ConsumerControls(consumer)
        self._most_bytes = most_bytes
        self._allowed = allowed
        self._assignment: Any = None
        FetchedBatches(self.controls)

    @property
    def held(self) -> bool:
        """Whether the records of the last poll still belong to this consumer: no rebalance has started since."""
        return self.controls.assignment is self._assignment and not self.controls.rebalancing

    async def poll(
        self, *partitions: TopicPartition, timeout_ms: int = _POLL_MS, most: int = _MAX_RECORDS
    ) -> AsyncIterator[tuple[TopicPartition, Sequence[SourceRecord]]]:
        """The records of one poll, some of a partition at a time. It ends early at a rebalance.

        The position of the consumer is after all of them from the start. Without `partitions`, all assigned partitions
        are read; `most` is the maximum number of records at a time.
        """
        polled = await self.controls.consumer.getmany(*partitions, timeout_ms=timeout_ms, max_records=most)
        self._assignment = self.controls.assignment
        for partition, batches in polled.items():
            given: list[SourceRecord] = []
            size = 0
            for batch in batches:
                for record in batch.opened(self._most_bytes, self._allowed):
                    given.append(record)
                    size += _size(record)
                    if len(given) >= most or size >= _GIVEN_BYTES:
                        yield partition, given
                        given, size = [], 0
                        if not self.held:
                            return
                await asyncio.sleep(0)  # decoding a batch may have taken long
            if given:
                yield partition, given
                if not self.held:
                    return


def _size(record: SourceRecord) -> int:
    headers = sum(_HEADER_BYTES + len(value or b"") for _, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def topic_consumer(client: ClientSettings, group: str | None = None, **arguments: Any) -> AIOKafkaConsumer:
    """A consumer, not started: it reads committed records, and commits only on request.

    `arguments` are aiokafka's, in place of the defaults used here.
    """
    usual: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    consumer = create_no_topics(
        AIOKafkaConsumer(
            **security_arguments(client),
            client_id=client.client_id,
            group_id=group,
            enable_auto_commit=False,
            max_poll_interval_ms=_POLL_INTERVAL_MS,
            **{**usual, **arguments},
        )
    )
    follow_leaders(consumer)
    return consumer


@asynccontextmanager
async def reading(
    consumer: AIOKafkaConsumer, topic: str, group: str | None = None, **bounds: Any
) -> AsyncIterator[TopicReader]:
    """Starts a consumer of a topic, and stops it at the end of the block; `bounds` are those of the reader.

    Raises:
        ConfigurationError: the brokers refuse the group for its length.
        ClusterError: the cluster failed, at the start or in the block.
    """
    refusals = Refusals(consumer)
    started = False
    try:
        await consumer.start()
        started = True
        yield TopicReader(consumer, **bounds)
    except (KafkaError, IllegalStateError, OSError) as exc:
        if started and isinstance(exc, OSError):  # of the caller, for example of a file that it writes
            raise
        refused = None if group is None else refused_name("group-id", group, "--group", refusals.code)
        raise refused or translated(exc, f"topic {topic}", refusals.code) from exc
    finally:
        await ConsumerControls(consumer).stop()


# --- a selection of the records ---------------------------------------------------------------------------------------


class Pending(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """The records that a caller has received and not finished, such as chunks of incomplete messages; here none."""

    def safe_offset(self, partition: TopicPartition, position: int) -> int:  # noqa: ARG002
        """The offset to commit when all records before a position were returned."""
        return position

    def release(self, partition: TopicPartition) -> None:
        """The partition has moved to another consumer, which reads its pending records again."""

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """See aiokafka."""
        for partition in revoked:
            self.release(partition)

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """See aiokafka."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records of a topic to read.

    Attributes:
        partition: only this one; None for all.
        start: `earliest`, `latest`, an offset, or below 0 the number of records before the end.
        group: the consumer group; its committed offsets take precedence over `start`, and new ones are committed.
        until_end: stop at the current end of the log; partitions that are added later are not considered.
        max_messages: stop after this number.
        timeout_ms: stop if none has arrived for this time.
    """

    partition: int | None = None
    start: int | Literal["earliest", "latest"] = "latest"
    group: str | None = None
    until_end: bool = False
    max_messages: int | None = None
    timeout_ms: int | None = None


class SelectionReader:
    """Reads the selected records, in order by partition. Use `open_reader`. Its methods raise aiokafka's errors."""

    def __init__(self, reader: TopicReader, selection: Selection, pending: Pending) -> None:
        self._reader = reader
        self._consumer = reader.controls.consumer
        self._pending = pending
        self._selection = selection
        self._ends: Mapping[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._count = 0

    async def begin(self, partitions: Sequence[TopicPartition]) -> None:
        """Seeks to the start of the selection; a ConfigurationError refuses an offset that does not exist."""
        first = await self._consumer.beginning_offsets(partitions)
        self._ends = await self._consumer.end_offsets(partitions)
        if self._selection.group is not None:
            return  # the committed offsets apply, which are known after the first rebalance
        for partition in partitions:
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
        """The records as they arrive, some at a time, until the end of the selection.

        With a group, the offsets of a batch are committed before the next one, or at the end. If a rebalance starts,
        a batch ends early and is not committed: the next owner of the partition reads it again. `enough`, if given, is
        called before each record to find out whether to stop, and replaces `max_messages`.
        """
        enough = enough or self._has_enough
        timeout_ms, last_s = self._selection.timeout_ms, time.monotonic()
        while not enough() and not await self._at_end():
            async for partition, found in self._reader.poll():
                given: list[SourceRecord] = []
                yield self._wanted(found, given, enough)
                if given and self._selection.group is not None and self._reader.held:
                    await self._commit(partition, given[-1].offset + 1)
                last_s = time.monotonic()
                if enough():
                    return
            # Also commit transaction markers and gaps of compaction after the last record that was returned. Otherwise
            # retention may delete them, and the next reader would not find its offset in the log.
            for partition, committed in tuple(self._committed.items()):
                position = self._reader.controls.position(partition)
                if self._reader.held and position is not None and position > committed:
                    await self._commit(partition, position)
            if timeout_ms is not None and time.monotonic() - last_s > timeout_ms / 1000:
                return

    def _has_enough(self) -> bool:
        return self._selection.max_messages is not None and self._count >= self._selection.max_messages

    def _wanted(
        self, records: Iterable[SourceRecord], given: list[SourceRecord], enough: Callable[[], bool]
    ) -> Iterator[SourceRecord]:
        """The records, until a rebalance starts: it releases pending ones, so the rest would lack its beginning."""
        for record in records:
            if not self._reader.held or enough():
                return
            given.append(record)
            self._count += 1
            yield record

    async def _commit(self, partition: TopicPartition, position: int) -> None:
        self._committed[partition] = position
        try:
            await self._consumer.commit({partition: self._pending.safe_offset(partition, position)})
        except (CommitFailedError, IllegalStateError):
            if self._reader.held:
                raise
            # Another consumer has joined: the owner of the partition reads the records again.

    async def _at_end(self) -> bool:
        assigned = self._selection.until_end and self._consumer.assignment()
        if not assigned:
            return False
        try:
            reached = all([await self._consumer.position(each) >= self._ends.get(each, 0) for each in assigned])
        except IllegalStateError:
            if self._reader.held:
                raise
            return False  # a partition has gone to another consumer
        return reached and not self._reader.controls.rebalancing  # else the position is after records that were dropped


@asynccontextmanager
async def open_reader(
    client: ClientSettings, topic: Topic, selection: Selection, pending: Pending | None = None
) -> AsyncIterator[SelectionReader]:
    """A reader for the duration of a block.

    Raises:
        ConfigurationError: there is no such partition or offset, or the brokers refuse the group for its length.
        ClusterError: the cluster failed.
    """
    group, pending = selection.group, pending or Pending()
    if group is not None:
        check_name("group-id", group, "--group", enabled=client.limit_names)
    topic.check_partition(selection.partition)
    numbers = range(topic.partitions) if selection.partition is None else (selection.partition,)
    partitions = [TopicPartition(topic.name, number) for number in numbers]
    reset = "earliest" if selection.start == "earliest" else "latest"
    consumer = topic_consumer(client, group, auto_offset_reset=reset)
    if group is None:
        consumer.assign(partitions)
    else:
        consumer.subscribe([topic.name], listener=pending)
    async with reading(consumer, topic.name, group) as reader:
        found = SelectionReader(reader, selection, pending)
        await found.begin(partitions)
        yield found
