"""Lowered limits: how a flow goes on while its sink takes less than when it began.

What is read later is judged by the new limit. What is on its way already was made for the old one: batches that wait
are divided (`app.kafka.batches.producer`), and a record that the sink refuses alone is offloaded or split in its place,
`refit`. A record for which neither can be done ends the flow; the next one reads it again, and `errors.tolerance`
decides.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence

from app.cluster.preflight import Plan
from app.cluster.topic_checks import check_chunks, check_limits
from app.config.settings import PipelineSettings
from app.kafka.clients import ClusterError
from app.pipeline.budget import Share
from app.pipeline.chain import Chain
from app.pipeline.lane import PlacedRecord, held_bytes
from app.pipeline.lanes import Lanes
from app.pipeline.offset_tracker import OffsetTracker
from app.pipeline.retries import Retries
from app.pipeline.runtime import Threads
from app.pipeline.termination import Termination
from transforms.errors import ConfigurationError, PayloadStoreError, TransformError
from transforms.logger_name import logger_name
from transforms.record import RecordLike

__all__ = ["LoweredLimits", "NoChunkFitsError"]

log = logging.getLogger(logger_name(__name__))

# The broker that is asked may be a little behind the one that has refused.
_ASKED = 5
_BEHIND_S = 0.2
_AT_ONCE = 2  # records: each is in memory several times meanwhile


class NoChunkFitsError(ClusterError):
    """The sink takes less than the smallest chunk; what was written may be committed before another try."""

    def __init__(self, error: ConfigurationError) -> None:
        super().__init__("; ".join(f"{each.key}: {each.reason}" for each in error.each), retriable=True)


class LoweredLimits:
    """The limits that were lowered since a flow began. Belongs to its event loop.

    Args:
        settings: of the pipeline.
        plan: what the topics took when the flow began.
        make_chain: makes the chain for another limit of the sink.
        lanes: of the flow.
        share: counts the copies of records.
        retries: counts what the stages have made.
        threads: run what takes time.
        termination: ends the flow if it cannot go on.
        limit_of: asks the cluster what a topic takes now; None if it does not tell.
        followed: called with a new limit of the sink, and the chain for it.

    Attributes:
        limits: the `max.message.bytes` of topics that take less than `plan` says.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        plan: Plan,
        make_chain: Callable[[int], Chain],
        *,
        lanes: Lanes,
        share: Share,
        retries: Retries,
        threads: Threads,
        termination: Termination,
        limit_of: Callable[[str], Awaitable[int | None]],
        followed: Callable[[int, Chain], None],
    ) -> None:
        self.limits: dict[str, int] = {}
        self._settings = settings
        self._plan = plan
        self._make_chain = make_chain
        self._lanes = lanes
        self._share = share
        self._retries = retries
        self._threads = threads
        self._termination = termination
        self._limit_of = limit_of
        self._followed = followed
        self._chain: Chain | None = None  # for the new limit of the sink
        self._turns = asyncio.Semaphore(_AT_ONCE)

    def follow(self, topic: str, limit_bytes: int) -> None:
        """Goes on with a topic that takes less than before; ends the flow if no chunk fits any more."""
        if self.limits.get(topic) == limit_bytes:
            return
        name = self._settings.name
        log.warning(
            "pipeline %s: max.message.bytes of topic %s was lowered to %d, and is followed", name, topic, limit_bytes
        )
        self.limits[topic] = limit_bytes
        if topic != self._plan.sink.name:
            return
        sink = dataclasses.replace(self._plan.sink, max_message_bytes=limit_bytes)
        try:
            check_chunks(self._settings, self._plan.sources, sink)
        except ConfigurationError as exc:
            self._termination.fail(NoChunkFitsError(exc))
            return
        try:
            check_limits(self._settings, sink)
        except ConfigurationError as exc:
            log.warning("pipeline %s goes on, though it would not start any more: %s", name, exc)
        self._chain = self._make_chain(limit_bytes)
        self._followed(limit_bytes, self._chain)

    async def refit(
        self, tracker: OffsetTracker, offset: int, record: RecordLike, codec: int, size: int
    ) -> Sequence[RecordLike]:
        """What goes in the place of a record that the sink has refused for its size; nothing if the flow is to end.

        Args:
            tracker: of the source partition.
            offset: of the record that was read.
            record: as it was sent.
            codec: the number of its codec.
            size: its bytes as a batch of one, as it was sent.
        """
        partition = self._lanes.partition_of(tracker)
        if partition is None or not (self._settings.offloads or self._settings.chunks.splits):
            return ()
        place = PlacedRecord(
            partition.topic,
            partition.partition,
            offset,
            record.timestamp,
            record.key,
            record.value,
            record.headers,
        )
        copies = 2 * held_bytes(record)
        self._share.take(copies)
        try:
            async with self._turns:
                made = await self._made(place, codec, size)
            # The store may have taken its time: nothing old goes out behind what the next owner of the partition wrote.
            return made if self._lanes.partition_of(tracker) is not None else ()
        finally:
            self._share.give(copies)

    async def _made(self, record: PlacedRecord, codec: int, size: int) -> Sequence[RecordLike]:
        if not await self._explained(size):
            return ()
        chain = self._chain
        if chain is None:
            return ()
        told = f"pipeline {self._settings.name}: topic {record.topic}, partition {record.partition}, offset"
        told = f"{told} {record.offset}: it takes {size:,} bytes, more than {self._plan.sink.name} takes by now"
        try:
            # The store has its own way of waiting (`Retries`), which is for records that are read.
            async with asyncio.timeout(self._settings.store_timeout_ms / 1000):
                records, applied = await self._threads.call(chain.refit, record, codec)
        except (TransformError, PayloadStoreError, TimeoutError) as exc:
            log.info("%s, and cannot be mended in its place: %s", told, str(exc) or "the store does not answer")
            return ()
        if records:
            self._retries.count(applied, record, records)
            log.info("%s: %s", told, f"it goes as {len(records)} chunks" if len(records) > 1 else "it is offloaded")
        return records

    async def _explained(self, size: int) -> bool:
        """Whether the sink takes less than `size` by now, as far as the cluster tells; follows its limit."""
        sink = self._plan.sink
        for asked in range(_ASKED):
            if asked:
                await asyncio.sleep(_BEHIND_S)
            limit = await self._limit_of(sink.name)
            if limit is not None and limit < self.limits.get(sink.name, sink.max_message_bytes):
                self.follow(sink.name, limit)
            if size > self.limits.get(sink.name, sink.max_message_bytes):
                return True
        return False
