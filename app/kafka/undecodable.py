"""Batches that aiokafka cannot read because the name of a header is not UTF-8: they are fetched again and decoded here.

aiokafka raises in the middle of a poll, and what it has read by then is lost. So its records of a partition end before
such a record, as if the log ended there. The batch is then fetched again, and decoded here.
"""

from __future__ import annotations

import asyncio
import struct
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode
from aiokafka.errors import CorruptRecordException, for_code
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.structs import ConsumerRecord

from app.kafka.consumer_controls import ConsumerControls
from app.kafka.source_batch import is_undecodable, wrapped
from transforms import record_format
from transforms.errors import MalformedError

__all__ = ["UndecodableBatches"]

_RETRY_S = 0.1

# Kafka protocol, "Record Batch".
_LENGTH = struct.Struct(">8xi")
_MAGIC_AT = 16
_LEAST_MAGIC = 2  # older records have no headers
_COUNT = struct.Struct(">57xi")
_LOG_APPEND_TIME = 1
_DECODERS: Mapping[int, Callable[[bytes], bytes]] = {
    DefaultRecordBatch.CODEC_NONE: bytes,
    DefaultRecordBatch.CODEC_GZIP: gzip_decode,
    DefaultRecordBatch.CODEC_SNAPPY: snappy_decode,
    DefaultRecordBatch.CODEC_LZ4: lz4_decode,
    DefaultRecordBatch.CODEC_ZSTD: zstd_decode,
}


class UndecodableBatches:
    """Reads the batches of one consumer that aiokafka cannot read. Belongs to one event loop.

    Args:
        controls: of a consumer that has started and was not polled yet.
    """

    # State that changes: `_found`, while the consumer is polled and in `read`; one task calls both.

    def __init__(self, controls: ConsumerControls) -> None:
        self._controls = controls
        self._found: dict[TopicPartition, int] = {}
        controls.keep_fetched_in(_Fetched(self._found))

    async def read(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Sequence[ConsumerRecord]]:
        """The next batch of one partition, if aiokafka cannot read it; the consumer goes on behind that batch.

        Between the seek and the return there is no await.

        Args:
            partitions: of which something may be read; none for all that are assigned.

        Raises:
            KafkaError: the batch cannot be fetched.
        """
        for partition in [each for each in self._found if not partitions or each in partitions]:
            offset = self._found.pop(partition)
            assignment = self._controls.assignment
            if self._controls.position(partition) != offset:
                continue  # it was given away meanwhile
            found = await self._fetch(partition, offset)
            if self._controls.assignment is not assignment or self._controls.position(partition) != offset:
                continue
            if found is None:  # perhaps there is no leader; the next poll tries again
                self._found[partition] = offset
                await asyncio.sleep(_RETRY_S)
                continue
            records, end = found
            self._controls.consumer.seek(partition, end)
            return {partition: records}
        return {}

    async def _fetch(self, partition: TopicPartition, offset: int) -> tuple[list[ConsumerRecord], int] | None:
        client = self._controls.client
        leader = client.cluster.leader_for_partition(partition)
        if leader is None or leader == -1:
            return None
        response = await client.send(leader, self._controls.fetch_request(partition, offset))
        for _, answers in response.topics:
            for _, code, _, *rest in answers:
                error = for_code(code)
                if error.errno != 0:
                    client.force_metadata_update()
                    return None
                return _decoded(partition, offset, rest[-1])
        return None


class _Fetched(OrderedDict[Any, Any]):
    """What aiokafka has fetched of each partition; the records end before one that cannot be read.

    Args:
        found: gets the offsets of such records.
    """

    def __init__(self, found: dict[TopicPartition, int]) -> None:
        super().__init__()
        self._found = found

    def __setitem__(self, partition: TopicPartition, result: Any) -> None:
        records = getattr(result, "_partition_records", None)  # an error has none
        if records is not None:
            records._records_iterator = self._readable(partition, records, records._records_iterator)
        super().__setitem__(partition, result)

    def _readable(self, partition: TopicPartition, records: Any, iterator: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from iterator
        except (UnicodeDecodeError, CorruptRecordException) as exc:
            if not is_undecodable(exc):
                raise
            self._found[partition] = records.next_fetch_offset


def _decoded(partition: TopicPartition, offset: int, data: bytes) -> tuple[list[ConsumerRecord], int] | None:
    """The records from `offset` on of the batch that has it, and of those behind it; and where the next batch begins.

    Of batches of transactions it takes the first alone: only aiokafka knows whether the others were aborted.
    """
    records: list[ConsumerRecord] = []
    end: int | None = None
    for batch, data_of_batch in _batches(data):
        if batch.next_offset <= offset:
            continue
        single = batch.is_transactional or batch.is_control_batch
        if end is not None and (single or not batch.validate_crc()):
            break
        try:
            records += list(_records(partition, offset, batch, data_of_batch))  # all of a batch, or nothing
        except MalformedError as exc:
            if end is not None:
                break
            raise CorruptRecordException(f"{partition}, offset {batch.base_offset}: {exc}") from exc
        end = batch.next_offset
        if single:
            break
    return None if end is None else (records, end)


def _batches(data: bytes) -> Iterator[tuple[DefaultRecordBatch, bytes]]:
    """The whole batches: the last one of a response may be cut off.

    Raises:
        CorruptRecordException: a batch is shorter than its header; aiokafka's C reader would read beyond it.
    """
    at = 0
    while at + _LENGTH.size <= len(data):
        begin, at = at, at + _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
        if at > len(data):
            return
        size = at - begin
        if size <= _MAGIC_AT or (data[begin + _MAGIC_AT] >= _LEAST_MAGIC and size < _COUNT.size):
            raise CorruptRecordException(f"a batch of {size} bytes, which is less than its header")
        if data[begin + _MAGIC_AT] >= _LEAST_MAGIC:
            yield DefaultRecordBatch(data[begin:at]), data[begin:at]


def _records(
    partition: TopicPartition, offset: int, batch: DefaultRecordBatch, data: bytes
) -> Iterator[ConsumerRecord]:
    records, at = _DECODERS[batch.compression_type](data[_COUNT.size :]), 0
    for _ in range(_COUNT.unpack_from(data)[0]):
        record, delta, at = record_format.read(records, at)
        if batch.base_offset + delta < offset:
            continue
        appended = batch.timestamp_type == _LOG_APPEND_TIME
        yield ConsumerRecord(
            partition.topic,
            partition.partition,
            batch.base_offset + delta,
            batch.max_timestamp if appended else wrapped(batch.first_timestamp + record.timestamp),
            batch.timestamp_type,
            record.key,
            record.value,
            None,
            -1 if record.key is None else len(record.key),
            -1 if record.value is None else len(record.value),
            tuple(record.headers),
        )
