"""Reads ranges of offsets from any partitions with one client, in batches of aiokafka's fetcher, as the worker reads.

Its calls block. It has a private event loop, which does not run while the caller processes records.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from aiokafka import TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError, OffsetOutOfRangeError

from app.config.settings import ClientSettings
from app.kafka.clients import ClusterError, translated
from app.kafka.consumer_controls import ConsumerControls
from app.kafka.fetched import FetchedBatches
from app.kafka.source_batch import SourceBatch, UnreadBatch
from app.kafka.topic_reader import ALLOWED, MOST_BYTES, topic_consumer
from app.kafka.topics import Identity, identities
from transforms.errors import WideloadError
from transforms.record import SourceRecord

_POLL_MS = 1_000
_POLL_BATCHES = 500
_SILENCE_S = 60.0
_WAIT_MS = 10  # at the end of a log; the fetch of the next range has to wait for the one that was sent ahead

Answer = TypeVar("Answer")


class RecordsLostError(WideloadError):
    """Records of a range are not in the log.

    Attributes:
        topic, partition, offset: the first record that is missing.
        first: the offset of the first record of the partition.
    """

    def __init__(self, topic: str, partition: int, offset: int, first: int) -> None:
        super().__init__(
            f"topic {topic} partition {partition}: offset {offset} is not there, the first one is {first}: Kafka has "
            "deleted records, or the topic was deleted and created again"
        )
        self.topic, self.partition, self.offset, self.first = topic, partition, offset, first


class RangeReader:
    """Reads ranges of offsets; a second range may be read before the first is at its end. Belongs to a thread.

    Args:
        client: how to reach the brokers.
        arguments: of aiokafka's consumer, such as `isolation_level`, in place of those of `topic_consumer`.

    Raises:
        ClusterError: no broker answers, or the cluster fails. Each method may raise it.
    """

    # State that changes: `_range`, to which the consumer's position belongs, and `_topics`, which were found.

    def __init__(self, client: ClientSettings, **arguments: Any) -> None:
        self._range: object = None
        self._topics: set[str] = set()
        self._runner = asyncio.Runner()
        try:
            self._controls = self._run("reading", _started(client, arguments))
        except BaseException:
            self._runner.close()
            raise

    def close(self) -> None:
        """Ends the connections."""
        self._runner.run(self._controls.stop())
        self._runner.close()

    def first(self, place: TopicPartition) -> int:
        """The offset of the first record in the partition."""
        return int(self._run(_name(place), self._controls.consumer.beginning_offsets([place]))[place])

    def records(
        self, place: TopicPartition, start: int, end: int, *, fail_on_loss: bool = True
    ) -> Iterator[SourceRecord | UnreadBatch]:
        """The records from offset `start` up to `end`, in order, each exactly once.

        Records that cannot be read are returned as an `UnreadBatch`, which stands for all offsets up to its own; see
        `opened`.

        Args:
            place: the partition.
            start: the first offset.
            end: the offset after the last one.
            fail_on_loss: whether it is an error if Kafka has deleted records; otherwise they are skipped.

        Raises:
            RecordsLostError: records were deleted; if all were, regardless of `fail_on_loss`.
            ClusterError: no record arrives for a minute, or a batch has a wrong checksum.
        """
        for batch in self.batches(place, start, end, fail_on_loss=fail_on_loss):
            yield from opened(batch, end)

    def batches(
        self, place: TopicPartition, start: int, end: int, *, fail_on_loss: bool = True
    ) -> Iterator[SourceBatch]:
        """Like `records`, but as batches, the last of which may extend beyond `end`."""
        range_, position, moved_s = object(), start, time.monotonic()
        while position < end:
            before = position
            try:
                found, position = self._run(_name(place), self._poll(place, position, range_))
            except OffsetOutOfRangeError as exc:
                first = self.first(place)
                if fail_on_loss or first <= position:
                    raise RecordsLostError(place.topic, place.partition, position, first) from exc
                position, self._range = first, None
                continue
            for batch in found:
                if batch.offset >= end:
                    return
                yield batch
            # After the `yield`, as the time that the caller needs does not count.
            if position > before:
                moved_s = time.monotonic()
            elif time.monotonic() - moved_s > _SILENCE_S:
                raise ClusterError(
                    f"{_name(place)} has returned no record at offset {position} for {_SILENCE_S:g} s", retriable=True
                )

    def require_topic(self, topic: str, topic_id: str | None) -> None:
        """Makes sure that what was read is from the topic with this id; without an id, nothing is compared.

        Raises:
            ClusterError: the topic was deleted and created again; records of both may have been read.
        """
        found = self._run(f"topic {topic}", self._identity(topic)) if topic_id else None
        if found is not None and found.id not in (None, topic_id):
            raise ClusterError(f"topic {topic} was deleted and created again while it was read", retriable=True)

    def _run(self, doing: str, work: Coroutine[Any, Any, Answer]) -> Answer:
        try:
            return self._runner.run(work)
        except OffsetOutOfRangeError:
            raise
        except (KafkaError, IllegalStateError, OSError) as exc:
            raise translated(exc, doing) from exc

    async def _poll(self, place: TopicPartition, position: int, range_: object) -> tuple[Sequence[SourceBatch], int]:
        """Batches of a range from its position on, and the position after them.

        The position also advances without a batch: over transaction markers, and records that compaction has removed.
        """
        consumer = self._controls.consumer
        if self._range is not range_:
            if place.topic not in self._topics:
                if await self._identity(place.topic) is None:
                    raise ClusterError(
                        f"topic {place.topic} does not exist any more, or the user may not describe it", retriable=False
                    )
                self._topics.add(place.topic)
            if consumer.assignment() != {place}:
                consumer.assign([place])
            consumer.seek(place, position)
            self._range = range_
        polled = await consumer.getmany(place, timeout_ms=_POLL_MS, max_records=_POLL_BATCHES)
        if not polled:
            self._controls.check_fetcher()
        return polled.get(place, ()), max(position, self._controls.position(place) or 0)

    async def _identity(self, topic: str) -> Identity | None:
        return (await identities(self._controls.send, [topic])).get(topic)


def opened(batch: SourceBatch, end: int) -> Iterator[SourceRecord | UnreadBatch]:
    """The wanted records of a batch, up to the offset `end`.

    An `UnreadBatch` ends at `end`, too: the rest of it is a record of the next range.

    Raises:
        ClusterError: the batch has a wrong checksum.
    """
    try:
        for record in batch.opened(MOST_BYTES, ALLOWED):
            if isinstance(record, UnreadBatch):
                if record.first < end:
                    yield replace(record, offset=min(record.offset, end - 1))
            elif record.offset < end:
                yield record
            else:
                return
    except KafkaError as exc:
        raise translated(exc, _name(batch.partition)) from exc


async def _started(client: ClientSettings, arguments: dict[str, Any]) -> ConsumerControls:
    consumer = topic_consumer(client, **{"auto_offset_reset": "none", "fetch_max_wait_ms": _WAIT_MS, **arguments})
    controls = ConsumerControls(consumer)
    try:
        await consumer.start()
    except BaseException:
        await controls.stop()
        raise
    FetchedBatches(controls)
    return controls


def _name(place: TopicPartition) -> str:
    return f"topic {place.topic} partition {place.partition}"
