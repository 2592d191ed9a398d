"""The writers of replayed records: they write the records of dead letters, and commit the offsets of these.

The exactly-once writer does both in one transaction. Its `transactional.id` is that of the group and the partition of
the dead letters. It takes the id before the committed offsets are read: the brokers abort what an earlier replay has
left open, and accept nothing more from a replay that still runs. What is committed is therefore what was written, and
nobody else writes it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from aiokafka.errors import TransactionalIdAuthorizationFailed

from app.cluster.coordinator import check_transactional_ids
from app.config.guarantee import TIMEOUT
from app.config.settings import ClientSettings
from app.deadletters.log import Commit, LetterLog, ReplayTakenOverError
from app.kafka.batches.outbox import RecordRefusedError
from app.kafka.clients import admin, describe, idempotent_producer, translated
from app.kafka.errors import FENCED, IllegalOperation, KafkaError
from app.kafka.topics import Topic
from app.kafka.writer import Writer
from transforms.batch_size import BATCH_OVERHEAD_BYTES, batch_of_one_bytes
from transforms.errors import ConfigurationError, RecordUnfitError
from transforms.identifiers import transactional_id
from transforms.record import Record, RecordLike
from transforms.record_format import is_writable, serialize

GUARANTEE = "--processing-guarantee"
"""The option that chooses the writer."""

_OTHERWISE = f"; or use {GUARANTEE} at_least_once, with which records may be replayed twice"


class RecordWriter:
    """Writes the records of the dead letters of one partition. After an error it is not used again.

    Args:
        writer: with the `transactional.id` of the partition, or without one.
        log: of the dead letters.
        partition: of the dead letters.
        timeout_ms: of a transaction; None for none. Then the offsets are committed after the records: a replay that is
            killed between them writes the same again when it is run again.
    """

    def __init__(self, writer: Writer, log: LetterLog, partition: int, timeout_ms: int | None) -> None:
        self._writer = writer
        self._log = log
        self._doing = "writing"
        self._timeout_s = None if timeout_ms is None else timeout_ms / 1000
        if timeout_ms is not None:
            self._doing = f"topic {log.topic.name}, partition {partition}: writing in a transaction"
        self._partition = partition

    async def write(self, records: Sequence[tuple[Topic, int, RecordLike]], commit: Commit) -> None:
        """Writes all in order, waits until they are durable, and commits.

        Args:
            records: each with its topic and its partition.
            commit: the offsets of the dead letters that are replayed then.

        Raises:
            ClusterError: some may not be durable, and the offsets may not be committed.
            ReplayTakenOverError: another replay has begun; nothing was written.
        """
        try:
            async with asyncio.timeout(self._timeout_s) as timeout:
                await self._write(records, commit)
        except FENCED as exc:
            raise ReplayTakenOverError(self._log.topic.name, self._partition, self._log.group) from exc
        except (KafkaError, IllegalOperation, OSError, TimeoutError, RecordRefusedError, RecordUnfitError) as exc:
            error: Exception = exc
            if isinstance(exc, TimeoutError) and timeout.expired():
                error = TimeoutError(
                    f"it has not ended in the {self._timeout_s:g} s of {TIMEOUT}; whether it is committed, the next "
                    "replay finds out"
                )
            raise translated(error, self._doing) from exc
        if self._timeout_s is None:
            await self._log.commit(commit)

    async def _write(self, records: Sequence[tuple[Topic, int, RecordLike]], commit: Commit) -> None:
        if self._timeout_s is not None:
            self._writer.begin()
        by_place: dict[tuple[Topic, int], list[RecordLike]] = defaultdict(list)
        for topic, partition, record in records:
            by_place[topic, partition].append(record)
        for (topic, partition), found in by_place.items():
            await self._writer.write(topic.name, partition, found, topic.max_message_bytes)
        await self._writer.deliver()
        if self._timeout_s is not None:
            await self._writer.commit(commit)


OpenWriter = Callable[[int], AbstractAsyncContextManager[RecordWriter]]
"""Opens the writer for the dead letters of a partition."""


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
    """A writer for the dead letters of a partition; it is closed at the end of the block.

    Args:
        client: how to reach the cluster.
        log: of the dead letters, with a group.
        timeout_ms: of a transaction; None to write at least once, without transactions.
        partition: of the dead letters.

    Raises:
        ConfigurationError: the user may not have the transactions.
        ClusterError: the producer cannot start.
    """
    options: dict[str, Any] = {}
    if timeout_ms is not None:
        name = transactional_id(log.group, log.topic.name, partition)
        options = {"transactional_id": name, "transaction_timeout_ms": timeout_ms}
    producer = idempotent_producer(client, client.client_id, **options)
    writer = Writer(producer, transactional_id=options.get("transactional_id"), group_id=log.group)
    try:
        try:
            await writer.start()
        except TransactionalIdAuthorizationFailed as exc:
            reason = f"the brokers refuse transactional.id {name}: {describe(TransactionalIdAuthorizationFailed())}"
            raise ConfigurationError(GUARANTEE, f'found "exactly_once", and {reason}{_OTHERWISE}') from exc
        except (KafkaError, OSError) as exc:
            raise translated(exc, "the producer cannot start") from exc
        yield RecordWriter(writer, log, partition, timeout_ms)
    finally:
        await writer.stop()
