"""At-least-once delivery: one producer for all lanes; offsets are committed once their records are durable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from app.kafka.clients import translated
from app.kafka.consumer import GroupConsumer
from app.kafka.errors import GroupMovedOnError, KafkaError
from app.kafka.structs import OffsetAndMetadata, TopicPartition
from app.pipeline.budget import Share
from app.pipeline.committed_offsets import CommittedOffsets, NeededFor
from app.pipeline.lane import Lane
from app.pipeline.lanes import Lanes
from app.pipeline.output import Destination, Output
from transforms.logger_name import logger_name

__all__ = ["AtLeastOnce"]

log = logging.getLogger(logger_name(__name__))


class AtLeastOnce(Output):
    """An output that commits what is durable. A `Delivery`.

    Raises:
        ConfigurationError: a certificate or key cannot be used, or a package is missing.
    """

    def __init__(self, destination: Destination, share: Share, lanes: Lanes, source: GroupConsumer) -> None:
        super().__init__(destination, share, self.due)
        needed_for = NeededFor.ADMITTING if self._settings.chunks.assembles else NeededFor.LAG
        self.offsets = CommittedOffsets(lanes, self._settings, self._termination, needed_for, self._fetch)
        self._lanes = lanes
        self._source = source
        self._is_due = asyncio.Event()
        self._turn = asyncio.Lock()
        self._committing: asyncio.Task[None] | None = None

    async def _fetch(self, lanes: Sequence[Lane]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return await self._source.commits([lane.partition for lane in lanes])

    async def start(self) -> None:
        await super().start()
        self._committing = self._termination.begin(self._commit_regularly(), lasting=True)

    def due(self) -> None:
        self._is_due.set()

    async def _commit_regularly(self) -> None:
        while True:
            # As soon as something is durable, then at most once an interval: a worker that is killed soon after its
            # start has committed what it had done.
            await self._is_due.wait()
            self._is_due.clear()
            try:
                await self.commit()
            except KafkaError as exc:
                self._termination.fail(translated(exc, f"committing offsets of group {self._settings.group_id}"))
                return
            await asyncio.sleep(self._settings.flush_interval_ms / 1000)

    async def commit(self) -> None:
        # aiokafka tries a commit again: an older one could follow that of a revocation.
        async with self._turn:
            await self._commit()

    async def _commit(self) -> None:
        commits = {lane.partition: commit for lane in self._lanes if (commit := self._lanes.to_commit(lane))}
        if not commits:
            return
        try:
            await self._source.commit(commits)
        except GroupMovedOnError as exc:
            log.info("pipeline %s: offsets not committed, the group has moved on: %s", self._settings.name, exc)
            return
        self._stats.commits += 1
        for partition, commit in commits.items():
            lane = self._lanes.get(partition)
            if lane is not None:
                lane.mark_committed(*commit)

    async def finish(self) -> None:
        # A regular commit that is tried again could follow the last one with older offsets.
        self._end_commits()
        await self.commit()

    def _end_commits(self) -> None:
        if self._committing is not None:
            self._committing.cancel()

    def forget(self, partitions: Iterable[TopicPartition]) -> None:  # noqa: ARG002  # the lanes have let go of all
        self.offsets.forget()
        if not len(self._lanes):
            self.drop()  # the next owners write it, and may have written more by the time it went out from here

    async def stop(self) -> None:
        self._end_commits()
        await super().stop()
