"""Batches that aiokafka cannot read, for the name of a header in them is not UTF-8: they are fetched and read apart.

aiokafka raises in the middle of a poll, and what it has read by then is lost. So whatever it reads of a partition ends
before such a record, as if there were no more; the batch is then asked for once more, and decoded here.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CorruptRecordException, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import _MemoryRecordsPy
from aiokafka.structs import ConsumerRecord

from transforms import record_format
from transforms.errors import MalformedError

__all__ = ["UndecodableBatches"]

_LEAST_MAGIC = 2  # older records have no headers
_MAX_WAIT_MS = 100
_RETRY_S = 0.1


class UndecodableBatches:
    """Watches a consumer that has started, and reads what it cannot. Belongs to one event loop.

    Args:
        consumer: assigned or subscribed, and not polled yet.
    """

    # State that changes: `_found`, while the consumer is polled and in `read`; there is one caller of both.

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self._found: dict[TopicPartition, int] = {}
        fetcher = consumer._fetcher  # noqa: SLF001  # there is no way in from outside
        watched = _Fetched(self._found)
        for partition, result in fetcher._records.items():  # noqa: SLF001
            watched[partition] = result
        fetcher._records = watched  # noqa: SLF001

    async def read(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Sequence[ConsumerRecord]]:
        """The batch behind what was polled of a partition, where that ended before one that cannot be read.

        The consumer goes on behind it. Between its end and the return there is no await.

        Args:
            partitions: of which something may be read; none for all that are assigned.

        Raises:
            KafkaError: the batch cannot be fetched.
        """
        for partition in [each for each in self._found if not partitions or each in partitions]:
            offset = self._found.pop(partition)
            assignment = self._consumer._subscription.subscription.assignment  # noqa: SLF001
            if assignment is None or not self._stands_at(assignment, partition, offset):
                continue  # it was given away meanwhile
            found = await self._fetch(partition, offset)
            if not self._stands_at(assignment, partition, offset):
                continue
            if found is None:  # no leader, perhaps; the next poll comes here again, or finds it out anew
                self._found[partition] = offset
                await asyncio.sleep(_RETRY_S)
                continue
            records, end = found
            self._consumer.seek(partition, end)
            return {partition: records}
        return {}

    @staticmethod
    def _stands_at(assignment: Any, partition: TopicPartition, offset: int) -> bool:
        if not assignment.active or partition not in assignment.tps:
            return False
        state = assignment.state_value(partition)
        return bool(state.has_valid_position and state.position == offset)

    async def _fetch(self, partition: TopicPartition, offset: int) -> tuple[list[ConsumerRecord], int] | None:
        client, fetcher = self._consumer._client, self._consumer._fetcher  # noqa: SLF001
        leader = client.cluster.leader_for_partition(partition)
        if leader is None or leader == -1:
            return None
        size, isolation = fetcher._max_partition_fetch_bytes, fetcher._isolation_level  # noqa: SLF001
        wanted = [(partition.topic, [(partition.partition, offset, size)])]
        response = await client.send(leader, FetchRequest(_MAX_WAIT_MS, 1, size, isolation, wanted))
        for _, answers in response.topics:
            for _, code, _, *rest in answers:
                error = for_code(code)
                if error.errno != 0:
                    client.force_metadata_update()
                    return None
                return _decoded(partition, offset, rest[-1])
        return None


class _Fetched(OrderedDict[Any, Any]):
    """What the fetcher keeps of each partition until it is polled; its records end before one that cannot be read."""

    def __init__(self, found: dict[TopicPartition, int]) -> None:
        super().__init__()
        self._found = found

    def __setitem__(self, partition: TopicPartition, result: Any) -> None:
        records = getattr(result, "_partition_records", None)
        if records is not None:
            records._records_iterator = self._readable(partition, records, records._records_iterator)  # noqa: SLF001
        super().__setitem__(partition, result)

    def _readable(self, partition: TopicPartition, records: Any, iterator: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from iterator
        except UnicodeDecodeError:
            self._found[partition] = records.next_fetch_offset
        except CorruptRecordException as exc:
            if not isinstance(exc.__cause__, UnicodeDecodeError):  # as aiokafka has it where it runs without C
                raise
            self._found[partition] = records.next_fetch_offset


def _decoded(partition: TopicPartition, offset: int, data: bytes) -> tuple[list[ConsumerRecord], int] | None:
    """The records from `offset` on of the batch that has it, and of those behind it; and where the next batch begins.

    Of batches of transactions it takes the first alone: whether the others count, the client knows.
    """
    records: list[ConsumerRecord] = []
    end: int | None = None
    for batch in _batches(data):
        if batch.next_offset <= offset:
            continue
        single = batch.is_transactional or batch.is_control_batch
        if end is not None and (single or not batch.validate_crc()):
            break
        try:
            batch._maybe_uncompress()  # noqa: SLF001
            records += list(_records(partition, offset, batch))  # all of a batch, or nothing
        except MalformedError as exc:
            if end is not None:
                break
            raise CorruptRecordException(f"{partition}, offset {batch.base_offset}: {exc}") from exc
        end = batch.next_offset
        if single:
            break
    return None if end is None else (records, end)


def _batches(data: bytes) -> Iterator[_DefaultRecordBatchPy]:
    batches = _MemoryRecordsPy(data)
    while (batch := batches._next_slice) is not None:  # noqa: SLF001  # what it would make of them cannot be read
        batches._cache_next()  # noqa: SLF001
        if batch[batches.MAGIC_OFFSET] >= _LEAST_MAGIC:
            yield _DefaultRecordBatchPy(batch)


def _records(partition: TopicPartition, offset: int, batch: _DefaultRecordBatchPy) -> Iterator[ConsumerRecord]:
    data, at = bytes(batch._buffer), batch._pos  # noqa: SLF001
    for _ in range(batch._num_records):  # noqa: SLF001
        record, delta, at = record_format.read(data, at)
        if batch.base_offset + delta < offset:
            continue
        appended = batch.timestamp_type == batch.LOG_APPEND_TIME
        yield ConsumerRecord(
            partition.topic,
            partition.partition,
            batch.base_offset + delta,
            batch.max_timestamp if appended else _wrapped(batch.first_timestamp + record.timestamp),
            batch.timestamp_type,
            record.key,
            record.value,
            None,
            -1 if record.key is None else len(record.key),
            -1 if record.value is None else len(record.value),
            tuple(record.headers),
        )


def _wrapped(number: int) -> int:
    """As an int64, which is what brokers make of a sum that is none; a batch may have any two numbers."""
    return (number + 2**63) % 2**64 - 2**63
