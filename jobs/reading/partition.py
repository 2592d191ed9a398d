"""One partition of a topic as a task reads it, and what the cluster says of topics; with aiokafka, as in the worker.

For what cannot go by Spark's own Kafka source: a Python data source has no way to it. Calls block; a task has an event
loop of its own, which stands still while Spark takes what was read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any, TypeVar

import aiokafka.errors as kafka_errors
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from jobs.driver.failures import JobFailedError
from jobs.reading.client import Client, answered

__all__ = ["PartitionReader"]

_POLL_MS = 1_000
_POLL_RECORDS = 500
_SILENCE_S = 60.0

Answer = TypeVar("Answer")


class PartitionReader:
    """One partition, read in ranges of offsets; a range may be read while another is being read.

    Args:
        client: how to reach it.
        topic: its topic.
        partition: its number.

    Raises:
        ConfigurationError: no broker answers.
    """

    def __init__(self, client: Client, topic: str, partition: int) -> None:
        self._client = client
        self._place = TopicPartition(topic, partition)
        self._reader: object = None
        self._runner = asyncio.Runner()
        self._consumer: AIOKafkaConsumer | None = None
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
        """The offset of the first record that is there."""
        assert self._consumer is not None
        found = self._run(self._consumer.beginning_offsets([self._place]))
        return int(found[self._place])

    def records(self, start: int, end: int, *, fail_on_loss: bool = True) -> Iterator[ConsumerRecord[Any, Any]]:
        """What is in the log from `start` up to `end`, in order.

        Args:
            start: the first offset.
            end: the one behind the last.
            fail_on_loss: whether records that Kafka has deleted are a failure; else they are left out.

        Raises:
            JobFailedError: records are gone, none come, or one cannot be read.
        """
        assert self._consumer is not None
        reader, position, heard = object(), start, time.monotonic()
        while position < end:
            if self._reader is not reader:
                self._reader = reader
                self._consumer.seek(self._place, position)
            try:
                polled = self._run(self._poll())
            except kafka_errors.OffsetOutOfRangeError as exc:
                first = self.first()
                if fail_on_loss or first <= position:
                    raise self._lost(position, first) from exc
                position, self._reader = first, None
                continue
            except UnicodeDecodeError as exc:
                raise JobFailedError(
                    f"{self._name}: at offset {position} or soon behind it is a record with a header name that is not "
                    "UTF-8, as Kafka wants it; no client of Python reads it, but for the worker: take it out there, "
                    "by errors.tolerance = all, and read what comes of it"
                ) from exc
            for record in polled:
                if record.offset >= end:
                    return
                position, heard = record.offset + 1, time.monotonic()
                yield record
            if (
                self._reader is reader
            ):  # what is no record takes offsets, too: marks of transactions, what compaction left
                position = max(position, self._run(self._consumer.position(self._place)))
            if time.monotonic() - heard > _SILENCE_S:
                raise JobFailedError(f"{self._name} has no record at offset {position} for {_SILENCE_S:g} s")

    @property
    def _name(self) -> str:
        return f"topic {self._place.topic} partition {self._place.partition}"

    def _lost(self, position: int, first: int) -> JobFailedError:
        return JobFailedError(
            f"{self._name}: offset {position} is not there, the first one is {first}: records were deleted by Kafka, "
            "or the topic was made anew; failOnDataLoss=false goes on without them"
        )

    def _run(self, work: Awaitable[Answer]) -> Answer:
        return self._runner.run(answered(self._client, work))

    async def _start(self) -> None:
        self._consumer = self._client.open()  # takes the loop that runs
        self._consumer.assign([self._place])
        await self._consumer.start()

    async def _poll(self) -> Sequence[ConsumerRecord[Any, Any]]:
        assert self._consumer is not None
        polled = await self._consumer.getmany(self._place, timeout_ms=_POLL_MS, max_records=_POLL_RECORDS)
        found: Sequence[ConsumerRecord[Any, Any]] = polled.get(self._place, [])
        return found
