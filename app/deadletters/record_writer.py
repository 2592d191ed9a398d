"""The writers of replayed records: they write the records of letters, and commit the offsets of the letters.

The exactly-once writer does both in one transaction. Its `transactional.id` is that of the group and the partition of
the letters. It takes the id before the committed offsets are read: the brokers abort what an earlier replay has left
open, and take nothing more from a replay that still runs. So what is committed is what was written, and nobody else
writes it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    IllegalOperation,
    InvalidProducerEpoch,
    KafkaError,
    ProducerFenced,
    TransactionalIdAuthorizationFailed,
)

from app.cluster.coordinator import check_transactional_ids
from app.config.guarantee import TIMEOUT
from app.config.settings import ClientSettings
from app.deadletters.log import Commit, LetterLog, ReplayTakenOverError
from app.kafka.batches.raw import raw_batch
from app.kafka.clients import ClusterError, admin, describe, translated, writing_producer
from app.kafka.producer import ProducerControls
from app.kafka.sender import BATCH_BYTES
from app.kafka.shielded import heard
from app.kafka.topics import Topic
from app.kafka.transaction_requests import TransactionRequests
from transforms.batch_size import BATCH_OVERHEAD_BYTES, batch_of_one_bytes
from transforms.errors import ConfigurationError
from transforms.identifiers import transactional_id
from transforms.record import Record, RecordLike
from transforms.record_format import is_writable, serialize

__all__ = ["GUARANTEE", "OpenWriter", "RecordWriter", "check_exactly_once", "open_writer", "size_alone"]

GUARANTEE = "--processing-guarantee"
"""The option that chooses the writer."""

_ABORT_S = 3.0
_OTHERWISE = f"; or give {GUARANTEE} at_least_once, with which letters may be replayed twice"


class RecordWriter(Protocol):
    """Writes the records of the letters of one partition."""

    async def write(self, records: Sequence[tuple[Topic, int, RecordLike]], commit: Commit) -> None:
        """Writes all in order, waits until they are durable, and commits.

        Args:
            records: each with its topic and its partition.
            commit: the offsets of the letters that are replayed then.

        Raises:
            ClusterError: some may not be durable, and the offsets may not be committed.
            ReplayTakenOverError: another replay has begun; nothing was written.
        """


OpenWriter = Callable[[int], AbstractAsyncContextManager[RecordWriter]]
"""Opens the writer for the letters of a partition."""


class _AtLeastOnce:
    """Commits after the write: a replay that is killed between them writes the same again when it is run again."""

    def __init__(self, producer: AIOKafkaProducer, log: LetterLog) -> None:
        self._producer = producer
        self._log = log

    async def write(self, records: Sequence[tuple[Topic, int, RecordLike]], commit: Commit) -> None:
        try:
            await _send(self._producer, records, transactional=False)
        except KafkaError as exc:
            raise translated(exc, "writing") from exc
        await self._log.commit(commit)


class _ExactlyOnce:
    """Writes and commits in one transaction; for one partition of letters. After an error it is not used again."""

    def __init__(self, producer: AIOKafkaProducer, log: LetterLog, partition: int, timeout_ms: int) -> None:
        self._producer = producer
        self._controls = ProducerControls(producer)
        self._controls.hear_failures()  # one error is told; the event loop would log the others
        self._log = log
        self._partition = partition
        self._timeout_s = timeout_ms / 1000

    async def write(self, records: Sequence[tuple[Topic, int, RecordLike]], commit: Commit) -> None:
        topic = self._log.topic.name
        try:
            async with asyncio.timeout(self._timeout_s) as timeout:
                self._controls.begin_transaction()
                await _send(self._producer, records, transactional=True)
                await self._producer.send_offsets_to_transaction(commit, self._log.group)
                await self._producer.commit_transaction()
        except (ProducerFenced, InvalidProducerEpoch) as exc:
            raise ReplayTakenOverError(topic, self._partition, self._log.group) from exc
        except (KafkaError, IllegalOperation, OSError, TimeoutError) as exc:
            error: Exception = exc
            if isinstance(exc, TimeoutError) and timeout.expired():
                error = TimeoutError(
                    f"it has not ended in the {self._timeout_s:g} s of {TIMEOUT}; whether it is committed, the next "
                    "replay finds out"
                )
            raise translated(error, f"topic {topic}, partition {self._partition}: writing in a transaction") from exc

    async def stop(self) -> None:
        """Stops the producer at once, and aborts what it has left open, so that readers need not wait for it."""
        await self._controls.release_transaction(_ABORT_S, abort=True)
        await self._controls.abandon()


async def _send(
    producer: AIOKafkaProducer, records: Sequence[tuple[Topic, int, RecordLike]], *, transactional: bool
) -> None:
    futures: list[asyncio.Future[object]] = []
    try:
        for topic, partition, batch in _batches(records):
            raw = raw_batch(batch, transactional=transactional)
            futures.append(await producer.send_batch(raw, topic.name, partition=partition))
        if futures:
            await asyncio.wait(futures, return_when=asyncio.FIRST_EXCEPTION)
        for each in futures:
            if each.done():
                each.result()
    finally:
        for each in futures:  # one error is told; the event loop would log the others
            each.add_done_callback(heard)


def _batches(records: Sequence[tuple[Topic, int, RecordLike]]) -> Iterator[tuple[Topic, int, Sequence[RecordLike]]]:
    """The records in batches that their topics take; the records of a partition stay in order."""
    batches: dict[tuple[Topic, int], list[RecordLike]] = defaultdict(list)
    sizes: Counter[tuple[Topic, int]] = Counter()
    for topic, partition, record in records:
        key = topic, partition
        size = size_alone(record)
        if sizes[key] + size > min(BATCH_BYTES, topic.max_message_bytes) and batches[key]:
            yield *key, batches.pop(key)
            sizes[key] = 0
        batches[key].append(record)
        sizes[key] += size
    for key, batch in batches.items():
        yield *key, batch


def size_alone(record: RecordLike) -> int:
    """As the function of `transforms.batch_size`, also for a record that has a header whose name is not UTF-8."""
    if is_writable(record):
        return batch_of_one_bytes(record)
    return BATCH_OVERHEAD_BYTES + len(serialize(Record(record.key, record.value, record.headers, 0)))


async def check_exactly_once(client: ClientSettings, log: LetterLog, timeout_ms: int) -> None:
    """Refuses a cluster that does not let a replay have its transactions, before one begins.

    Raises:
        ConfigurationError: the user may not see the id, there is no coordinator, or the time-out is too long.
        ClusterError: the cluster did not answer.
    """
    async with admin(client) as connection:
        names = [transactional_id(log.group, log.topic.name, 0)]
        await check_transactional_ids(connection, names, timeout_ms, GUARANTEE, _OTHERWISE)


@asynccontextmanager
async def open_writer(
    client: ClientSettings, log: LetterLog, timeout_ms: int | None, partition: int
) -> AsyncIterator[RecordWriter]:
    """A writer for the letters of a partition; it is closed at the end of the block.

    Args:
        client: how to reach the cluster.
        log: of the letters, with a group.
        timeout_ms: of a transaction; None to write at least once, without transactions.
        partition: of the letters.

    Raises:
        ConfigurationError: the user may not have the transactions.
        ClusterError: the producer cannot start.
    """
    if timeout_ms is None:
        async with writing_producer(client) as producer:
            yield _AtLeastOnce(producer, log)
        return
    name = transactional_id(log.group, log.topic.name, partition)
    async with AsyncExitStack() as stack:
        try:
            producer = await stack.enter_async_context(
                writing_producer(client, transactional_id=name, transaction_timeout_ms=timeout_ms)
            )
        except ClusterError as exc:
            if not isinstance(exc.__cause__, TransactionalIdAuthorizationFailed):
                raise
            told = describe(TransactionalIdAuthorizationFailed())
            raise ConfigurationError(
                GUARANTEE, f'found "exactly_once", and the brokers refuse transactional.id {name}: {told}{_OTHERWISE}'
            ) from exc
        TransactionRequests(producer, log.group)
        writer = _ExactlyOnce(producer, log, partition, timeout_ms)
        stack.push_async_callback(writer.stop)
        yield writer
