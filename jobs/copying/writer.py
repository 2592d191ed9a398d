"""The topic that a backfill writes: how the cluster describes it, and the writer of a task.

Spark's own Kafka sink keeps no timestamps, and does not limit how much of a partition a restart repeats. Tasks
therefore write with aiokafka, as the worker does, with one transaction for a range.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any, TypeVar

import aiokafka.errors as kafka_errors
from aiokafka import TopicPartition

from app.config.settings import ClientSettings
from app.kafka.admin import configs
from app.kafka.batches.outbox import BatchSettings, RecordRefusedError
from app.kafka.clients import describe, idempotent_producer
from app.kafka.consumer_controls import ConsumerControls
from app.kafka.errors import FENCED
from app.kafka.topic_reader import topic_consumer
from app.kafka.topics import MAX_MESSAGE_BYTES, NEWEST, OLDEST, TIMESTAMPS, identities, timestamp_bound_ms
from app.kafka.writer import Writer
from jobs.copying.receipt import Receipt, committed
from jobs.driver.failures import JobFailedError
from transforms.errors import ConfigurationError, RecordUnfitError
from transforms.record import RecordLike

_BATCH_BYTES = 2**20
_RECORD_BYTES = 64  # of memory, in addition to what is sent
_ANSWER_S = 120.0  # Kafka's own `delivery.timeout.ms`; a batch that waits for its transaction would wait forever
_NO_TIMESTAMP = -1
_CLOCKS_MS = 60_000  # by so much the clocks of brokers and tasks may differ

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class SinkTopic:
    """The topic as the cluster describes it.

    Attributes:
        ends: by partition, the offset of the next record.
        max_message_bytes: the most bytes of a batch.
        keeps_timestamps: whether a record keeps the timestamp that its producer gives it.
        oldest_ms: how old such a timestamp may be; None for no limit.
        newest_ms: how far ahead it may be; None for no limit.
    """

    name: str
    ends: Mapping[int, int]
    max_message_bytes: int
    keeps_timestamps: bool
    oldest_ms: int | None = None
    newest_ms: int | None = None

    def window(self) -> tuple[float, float]:
        """The first and the last timestamp that brokers surely take now."""
        now_ms = time.time() * 1000
        oldest, newest = (math.inf if limit is None else limit for limit in (self.oldest_ms, self.newest_ms))
        return now_ms - oldest, now_ms + newest

    def refusal(self, timestamp_ms: int) -> str | None:
        """Why brokers will refuse a record with this timestamp; None if they take it, or their clocks may differ."""
        if timestamp_ms == _NO_TIMESTAMP:
            return None
        ahead_ms = timestamp_ms - int(time.time() * 1000)
        for limit, name, by_ms in ((self.newest_ms, NEWEST, ahead_ms), (self.oldest_ms, OLDEST, -ahead_ms)):
            if limit is not None and by_ms - _CLOCKS_MS > limit:
                return (
                    f"the timestamp is {timestamp_ms} ms, and {name} of topic {self.name} is {limit}; raise it "
                    f"while the backfill runs"
                )
        return None


def sink_topic(client: ClientSettings, name: str) -> SinkTopic:
    """The topic as it is now.

    Raises:
        ConfigurationError: the topic does not exist, or no broker answers.
        JobFailedError: the cluster does not describe it.
    """
    try:
        return asyncio.run(_sink_topic(client, name))
    except (kafka_errors.KafkaConnectionError, OSError, TimeoutError) as exc:
        raise ConfigurationError(
            "--bootstrap-servers", f"no broker answers at {client.bootstrap_servers}: {exc}"
        ) from exc
    except kafka_errors.KafkaError as exc:
        raise JobFailedError(f"topic {name} cannot be described: {describe(exc)}") from exc


async def _sink_topic(client: ClientSettings, name: str) -> SinkTopic:
    async with AsyncExitStack() as stack:
        consumer = topic_consumer(client, isolation_level="read_uncommitted")
        stack.push_async_callback(consumer.stop)
        await consumer.start()
        send = ConsumerControls(consumer).send
        found = await identities(send, [name])
        if name not in found:
            raise ConfigurationError("--sink", f"topic {name} is not described by the brokers; the user needs Describe")
        topic = found[name]
        if topic is None:
            raise ConfigurationError("--sink", f"topic {name} does not exist; create it first")
        (described,) = (await configs(send, [name], [MAX_MESSAGE_BYTES, *TIMESTAMPS])).values()
        if isinstance(described, kafka_errors.KafkaError):
            reason = type(described).__name__
            raise ConfigurationError("--sink", f"the configuration of topic {name} cannot be read: {reason}")
        places = [TopicPartition(name, number) for number in range(topic.partitions)]
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        return SinkTopic(
            name,
            {place.partition: ends[place] for place in places},
            int(described[MAX_MESSAGE_BYTES]),
            described["message.timestamp.type"] != "LogAppendTime",
            timestamp_bound_ms(described, OLDEST),
            timestamp_bound_ms(described, NEWEST),
        )


class SinkWriter:
    """Writes records in order and in one transaction, acknowledged by all replicas. Not thread-safe.

    The records of a partition are handed over by the megabyte, once those before them are acknowledged: a task holds
    two or three megabytes of each partition, or as many records that are larger.

    A new writer ends the older writer with the same id, wherever that runs: the brokers abort its open transaction, and
    take nothing more from it. Two tasks never write the same range side by side, not even when Spark has given up
    one of them and it still runs.

    Args:
        client: how to reach the cluster.
        topic: the topic.
        transactional_id: the id for this part of the topic; nobody else uses it. A group of this name has the receipt
            of the last transaction.
        timeout_ms: how long the transaction may be open before the brokers abort it.

    Raises:
        ConfigurationError: no broker answers, or the transactional id may not be used.
    """

    def __init__(self, client: ClientSettings, topic: SinkTopic, transactional_id: str, timeout_ms: int) -> None:
        self._client = client
        self._topic = topic
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._records: dict[int, list[RecordLike]] = defaultdict(list)
        self._bytes: dict[int, int] = defaultdict(int)
        # The loop has a separate thread: it must continue while the task waits for the store.
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="wideload-backfill", daemon=True)
        self._thread.start()
        self._writer: Writer | None = None
        try:
            self._writer = self._run(self._made())
            self._run(self._begun())
        except kafka_errors.TransactionalIdAuthorizationFailed as exc:
            self.close()
            raise ConfigurationError(
                "--kafka-option", f"these credentials may not write with the transactional id {transactional_id}"
            ) from exc
        except (kafka_errors.KafkaError, OSError, TimeoutError) as exc:
            self.close()
            raise ConfigurationError("--bootstrap-servers", f"no producer can start: {describe(exc)}") from exc

    @property
    def ends(self) -> dict[int, int]:
        """By partition that was written to, the offset behind the last acknowledged record."""
        return {} if self._writer is None else {place.partition: end for place, end in self._writer.ends.items()}

    def write(self, partition: int, record: RecordLike) -> None:
        """Takes a record; it is in the topic when `commit` has returned.

        Raises:
            JobFailedError: the topic did not take the records before it.
        """
        self._records[partition].append(record)
        self._bytes[partition] += len(record.key or b"") + len(record.value or b"") + _RECORD_BYTES
        if self._bytes[partition] >= _BATCH_BYTES:
            self._send(partition)

    def receipt(self, topic: str, partition: int) -> Receipt | None:
        """The receipt of the last committed transaction with this id, for a partition of the source.

        None if there is none, or the output topic is no longer the topic that it was given for. The writers before
        this one can commit nothing any more.

        Raises:
            ConfigurationError: the group may not be read.
            JobFailedError: the brokers do not answer.
        """
        try:
            return self._run(asyncio.wait_for(self._receipt(TopicPartition(topic, partition)), _ANSWER_S))
        except kafka_errors.GroupAuthorizationFailedError as exc:
            raise self._forbidden() from exc
        except (kafka_errors.KafkaError, OSError, TimeoutError) as exc:
            raise JobFailedError(f"the offset of group {self._id} cannot be read: {describe(exc)}") from exc

    def flush(self) -> None:
        """Waits until all records are acknowledged; `ends` is right then.

        Raises:
            JobFailedError: the topic did not take them.
        """
        for partition in list(self._records):
            self._send(partition)
        assert self._writer is not None
        self._answered(self._writer.deliver())

    def commit(self, topic: str, partition: int, receipt: Receipt) -> None:
        """Commits all records together with their receipt. Nothing may be written afterwards.

        Args:
            topic: the source.
            partition: of the source.
            receipt: what the records are.

        Raises:
            ConfigurationError: the group may not be used.
            JobFailedError: the topic did not take the records.
        """
        assert self._writer is not None
        self.flush()
        offsets = {TopicPartition(topic, partition): (receipt.next, receipt.text())}
        try:
            self._answered(asyncio.wait_for(self._writer.commit(offsets), _ANSWER_S))
        except kafka_errors.GroupAuthorizationFailedError as exc:
            raise self._forbidden() from exc

    def close(self) -> None:
        """Ends the connections. An open transaction is aborted, now or by the brokers."""
        if self._writer is not None:
            with suppress(kafka_errors.KafkaError):
                self._run(self._writer.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _send(self, partition: int) -> None:
        assert self._writer is not None
        self._bytes[partition] = 0
        records, limit = self._records.pop(partition), self._topic.max_message_bytes
        self._answered(self._writer.write(self._topic.name, partition, records, limit), f" partition {partition}")

    def _answered(self, work: Coroutine[Any, Any, None], where: str = "") -> None:
        try:
            self._run(work)
        except kafka_errors.GroupAuthorizationFailedError:
            raise
        except (kafka_errors.KafkaError, RecordRefusedError, RecordUnfitError, TimeoutError) as exc:
            raise self._refused(where, exc) from exc

    def _refused(self, where: str, error: Exception) -> JobFailedError:
        if isinstance(error, FENCED):
            reason = (
                "another run or task of the same backfill has fenced this one, or its transaction was open for "
                f"more than {self._timeout_ms // 1000:,} s"
            )
        elif isinstance(error, TimeoutError | kafka_errors.KafkaTimeoutError):
            reason = f"no answer in {_ANSWER_S:g} s"
        else:
            reason = describe(error)
        return JobFailedError(f"topic {self._topic.name}{where} did not accept records: {reason}")

    def _forbidden(self) -> ConfigurationError:
        return ConfigurationError(
            "--kafka-option",
            f"these credentials may not read and commit the offsets of group {self._id}; grant Read on the groups "
            f"that begin with wideload-backfill-",
        )

    async def _receipt(self, place: TopicPartition) -> Receipt | None:
        assert self._writer is not None
        found = await committed(self._writer.client, self._id, place)
        if found is None or found.end is None:
            return found
        if found.end[0] not in self._topic.ends:
            return None  # the output topic was created again
        sink = TopicPartition(self._topic.name, found.end[0])
        # Not to the first open transaction: by key, another task has one there, which may be older than the receipt.
        async with topic_consumer(self._client, isolation_level="read_uncommitted") as consumer:
            ends = await consumer.end_offsets([sink])
        return found if ends[sink] >= found.end[1] else None  # else the output topic was created again

    def _run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _made(self) -> Writer:
        producer = idempotent_producer(
            self._client,
            self._client.client_id,
            transactional_id=self._id,
            transaction_timeout_ms=self._timeout_ms,
        )
        settings = BatchSettings(batch_bytes=_BATCH_BYTES, delivery_timeout_s=_ANSWER_S)
        return Writer(producer, settings, transactional_id=self._id, group_id=self._id)

    async def _begun(self) -> None:
        assert self._writer is not None
        await self._writer.start()
        self._writer.begin()
