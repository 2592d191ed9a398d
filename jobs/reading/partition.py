"""One partition of a topic, read by a task as the worker reads it: by aiokafka's fetcher, in batches.

A Python data source cannot use Spark's own Kafka source. Calls block; a task has an event loop of its own, which stands
still while Spark takes the records.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator, Sequence
from typing import TypeVar

import aiokafka.errors as kafka_errors
from aiokafka import AIOKafkaConsumer, TopicPartition

from app.kafka.consumer_controls import ConsumerControls
from app.kafka.fetched import FetchedBatches
from app.kafka.source_batch import SourceBatch, UnreadBatch
from app.kafka.topics import identities
from jobs.driver.failures import JobFailedError
from jobs.reading.client import Client, answered
from jobs.reading.messages import TopicRecord as PartitionRecord
from jobs.records.problems import Problem
from transforms.errors import HeaderNameError
from transforms.record_format import check_names, name_bytes

__all__ = ["PartitionReader", "PartitionRecord"]

_POLL_MS = 1_000
_POLL_BATCHES = 500
_SILENCE_S = 60.0
_MOST_BYTES = 268_435_456  # of a batch before compression
_ALLOWED = "256 MiB, where a task reads"

Answer = TypeVar("Answer")


class PartitionReader:
    """Reads one partition in ranges of offsets; a second range may be read before the first is at its end.

    Args:
        client: how to reach the brokers.
        topic: the topic.
        partition: the number of the partition.

    Raises:
        ConfigurationError: no broker answers.
    """

    def __init__(self, client: Client, topic: str, partition: int) -> None:
        self._client = client
        self._place = TopicPartition(topic, partition)
        self._reader: object = None
        self._runner = asyncio.Runner()
        self._consumer: AIOKafkaConsumer | None = None
        self._controls: ConsumerControls | None = None
        try:
            self._run(self._start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the connections."""
        if self._consumer is not None:
            self._runner.run(self._consumer.stop())
        self._runner.close()

    def first(self) -> int:
        """The offset of the first record in the partition."""
        assert self._consumer is not None
        found = self._run(self._consumer.beginning_offsets([self._place]))
        return int(found[self._place])

    def records(self, start: int, end: int, *, fail_on_loss: bool = True) -> Iterator[PartitionRecord]:
        """The records from offset `start` up to `end`, in order.

        Each comes once, and none is passed over: one that cannot be read has a problem.

        Args:
            start: the first offset.
            end: the offset behind the last one.
            fail_on_loss: whether it is a failure if Kafka has deleted records; else they are left out.

        Raises:
            JobFailedError: records are gone, no record comes, or a batch comes with a wrong checksum.
        """
        assert self._consumer is not None
        reader, position, heard = object(), start, time.monotonic()
        while position < end:
            if self._reader is not reader:
                self._reader = reader
                self._consumer.seek(self._place, position)
            before = position
            try:
                polled = self._run(self._poll())
            except kafka_errors.OffsetOutOfRangeError as exc:
                first = self.first()
                if fail_on_loss or first <= position:
                    raise self._lost(position, first) from exc
                position, self._reader = first, None
                continue
            for record in (record for batch in polled for record in _records(batch)):
                if (record.first if isinstance(record, UnreadBatch) else record.offset) >= end:
                    return
                position = min(record.offset, end - 1) + 1
                yield _unread(record, position - 1) if isinstance(record, UnreadBatch) else record
            if self._reader is reader:
                # Offsets without a record: marks of transactions, and records that compaction has removed.
                position = max(position, self._run(self._consumer.position(self._place)))
            # Not at the `yield`: the time that the caller takes with a record is no silence of Kafka.
            heard = time.monotonic() if position > before else heard
            if time.monotonic() - heard > _SILENCE_S:
                raise JobFailedError(f"{self._name} has no record at offset {position} for {_SILENCE_S:g} s")

    def require_topic(self, topic_id: str) -> None:
        """Makes sure that what was read is of the topic with this id; with an empty one, nothing is compared.

        Raises:
            JobFailedError: the topic was deleted and created again; records of both may have been read.
        """
        if not topic_id:
            return
        found = self._run(self._topic_id())
        if found not in (None, topic_id):
            raise JobFailedError(
                f"{self._name}: the topic was deleted and created again while it was read; run the query again"
            )

    @property
    def _name(self) -> str:
        return f"topic {self._place.topic} partition {self._place.partition}"

    def _lost(self, position: int, first: int) -> JobFailedError:
        return JobFailedError(
            f"{self._name}: offset {position} is not there, the first one is {first}: Kafka has deleted records, or "
            "the topic was made anew; failOnDataLoss=false goes on without them"
        )

    def _run(self, work: Awaitable[Answer]) -> Answer:
        return self._runner.run(answered(self._client, work))

    async def _start(self) -> None:
        self._consumer = self._client.open()  # binds to the running loop
        self._consumer.assign([self._place])
        try:
            await self._consumer.start()
        except kafka_errors.UnknownTopicOrPartitionError as exc:
            raise JobFailedError(
                f"topic {self._place.topic} is not on the broker at {self._client.servers} any more"
            ) from exc
        self._controls = ConsumerControls(self._consumer)
        FetchedBatches(self._controls)

    async def _topic_id(self) -> str | None:
        assert self._controls is not None
        topic = (await identities(self._controls.send, [self._place.topic])).get(self._place.topic)
        return None if topic is None else topic.id

    async def _poll(self) -> Sequence[SourceBatch]:
        assert self._consumer is not None
        polled = await self._consumer.getmany(self._place, timeout_ms=_POLL_MS, max_records=_POLL_BATCHES)
        found: Sequence[SourceBatch] = polled.get(self._place, [])
        return found


def _records(batch: SourceBatch) -> Iterator[PartitionRecord | UnreadBatch]:
    kind = batch.timestamp_type
    for record in batch.opened(_MOST_BYTES, _ALLOWED):
        if isinstance(record, UnreadBatch):
            yield record
            continue
        found = PartitionRecord(record.offset, record.timestamp, kind, record.key, record.value, record.headers)
        if all(name.isascii() for name, _ in record.headers):
            yield found
            continue
        try:
            check_names(record)
        except HeaderNameError as exc:
            # As Java reads them: neither Arrow nor a producer can have such a name.
            read = [(name_bytes(name).decode(errors="replace"), content) for name, content in record.headers]
            found = found._replace(headers=read, problem=Problem("value", "malformed", str(exc)))
        yield found


def _unread(unread: UnreadBatch, last: int) -> PartitionRecord:
    """What is not read, up to the end of a range: the rest of it is a record of the next one."""
    problem = Problem("value", "malformed", str(unread.error))
    return PartitionRecord(last, unread.timestamp, 0, None, unread.value, (), problem)
