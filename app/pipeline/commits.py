"""The commits of a flow: what the group is told is done, when, and what it was told before."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from app.kafka.clients import translated

if TYPE_CHECKING:
    from app.config.settings import PipelineSettings
    from app.kafka.consumer import GroupConsumer
    from app.pipeline.assembly import Assembly
    from app.pipeline.exactly_once import Transactions
    from app.pipeline.lane import Lane
    from app.pipeline.lanes import Lanes
    from app.pipeline.stats import PipelineStats
    from app.pipeline.termination import Termination

__all__ = ["Commits"]

log = logging.getLogger(__name__)


class Commits:
    """Commits what is durable of the lanes of a flow. Belongs to its event loop.

    Args:
        consumer: whose group is told.
        settings: the pipeline's.
        lanes: whose trackers say what is durable.
        assembly: what it holds keeps commits back, and it resumes from their metadata; None where none are assembled.
        stats: what is counted.
        termination: of the flow, where a commit fails.

    Attributes:
        closed: True once the flow has ended.
    """

    def __init__(
        self,
        consumer: GroupConsumer,
        settings: PipelineSettings,
        lanes: Lanes,
        assembly: Assembly | None,
        *,
        stats: PipelineStats,
        termination: Termination,
    ) -> None:
        self.closed = False
        self._consumer = consumer
        self._settings = settings
        self._lanes = lanes
        self._assembly = assembly
        self._stats = stats
        self._termination = termination
        self._durable = asyncio.Event()
        self._regular: asyncio.Task[None] | None = None
        self._looking_up: asyncio.Task[None] | None = None
        self._resumed = asyncio.Event()
        if assembly is None:
            self._resumed.set()
        self._transactions: Transactions | None = None

    def through(self, transactions: Transactions) -> None:
        """Commits through transactions from here on, of which each says itself when it is due."""
        self._transactions = transactions
        self._resumed.clear()

    # --- before ------------------------------------------------------------------------------------------------------

    @property
    def resumed(self) -> bool:
        """False while it is not known what was delivered before: a record admitted then could be delivered again."""
        return self._resumed.is_set()

    @property
    def may_read(self) -> bool:
        """False while it is not known from where on: another worker's transaction may not have ended."""
        return self._transactions is None or self._resumed.is_set()

    async def resumed_within(self, timeout_s: float) -> None:
        """Waits until `resumed`, at most so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._resumed.wait(), timeout_s)

    def forget(self) -> None:
        """Begins a rebalance: what was looked up no longer holds."""
        if self._looking_up is not None:
            self._looking_up.cancel()
        if self._assembly is not None or self._transactions is not None:
            self._resumed.clear()

    def look_up(self) -> None:
        """Begins to look up what is committed of the lanes; does not wait, as without a broker there is no answer."""
        self._looking_up = asyncio.get_running_loop().create_task(self._look_up(self._looking_up))

    async def _look_up(self, before: asyncio.Task[None] | None) -> None:
        """So that the lag of a partition is known before its first record, and what was delivered above that."""
        if self._assembly is not None or self._transactions is not None:
            if before is not None:
                await asyncio.wait([before])
            await self._resume()
            return
        for lane in self._lanes:
            with contextlib.suppress(KafkaError, IllegalStateError):
                lane.committed = await self._consumer.committed(lane.partition)

    async def _resume(self) -> None:
        lanes = list(self._lanes)
        partitions = [lane.partition for lane in lanes]
        doing = f"reading offsets of group {self._settings.group_id}"
        try:
            if self._transactions is None:
                commits = await self._consumer.commits(partitions)
            else:
                # In this order: before it has a producer of its own, another one's may commit.
                doing, reading = "starting a transactional producer", doing
                await self._transactions.assign(lanes)
                doing = reading
                commits = await self._consumer.commits(partitions, stable=True)
                # The client may have begun to read where the group was before.
                for partition, commit in commits.items():
                    self._consumer.seek(partition, commit.offset)
        except (KafkaError, IllegalStateError) as exc:
            self._termination.fail(translated(exc, doing))
            return
        except Exception as exc:  # noqa: BLE001  # or the flow would wait for ever
            self._termination.fail_by_defect(exc)
            return
        for lane in lanes:
            commit = commits.get(lane.partition)
            if commit is not None:
                lane.committed = commit.offset
                if self._assembly is not None:
                    self._assembly.resume(lane, commit.metadata, self._settings.name)
        self._resumed.set()

    # --- while the flow runs -----------------------------------------------------------------------------------------

    def due(self) -> None:
        """Says that there may be something to commit."""
        if self._transactions is None:
            self._durable.set()
        else:
            self._transactions.due()

    def begin(self) -> None:
        """Begins to commit regularly, until `end`."""
        self._regular = asyncio.get_running_loop().create_task(self._commit_regularly())

    def end(self) -> None:
        """Ends that, or a commit that is tried again could follow the last one with older offsets."""
        if self._regular is not None:
            self._regular.cancel()

    async def close(self) -> None:
        """Ends all that goes on by itself."""
        self.closed = True
        for task in (self._regular, self._looking_up):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _commit_regularly(self) -> None:
        while True:
            # As soon as something is durable, then at most once an interval: a worker that is killed soon after its
            # start has committed what it had done.
            await self._durable.wait()
            self._durable.clear()
            try:
                await self.commit()
            except KafkaError as exc:
                self._termination.fail(translated(exc, f"committing offsets of group {self._settings.group_id}"))
                return
            except Exception as exc:  # noqa: BLE001  # or the flow would go on, and commit nothing any more
                self._termination.fail_by_defect(exc)
                return
            await asyncio.sleep(self._settings.flush_interval_ms / 1000)

    async def commit(self) -> None:
        """Commits what is durable. A group that moves on meanwhile is no failure: the records are read again.

        Raises:
            KafkaError: the cluster did not take the offsets; a transaction that fails ends the flow instead.
        """
        if self._transactions is not None:
            await self._transactions.commit()
            return
        offsets = {lane.partition: commit for lane in self._lanes if (commit := self.of(lane)) is not None}
        if not offsets:
            return
        try:
            await self._consumer.commit(offsets)
        except (CommitFailedError, IllegalStateError) as exc:
            log.info("pipeline %s: offsets not committed, the group has moved on: %s", self._settings.name, exc)
            return
        self._stats.commits += 1
        for partition, commit in offsets.items():
            lane = self._lanes.get(partition)
            if lane is not None:
                self.made(lane, *commit)

    def of(self, lane: Lane) -> tuple[int, str] | None:
        """The offset and the metadata to commit of a lane; None where that is what is committed."""
        tracker = lane.tracker
        if tracker is None:
            return None
        commit = (tracker.safe(), "") if self._assembly is None else self._assembly.commit(lane)
        return commit if commit[0] > tracker.committed or commit[1] != lane.noted else None

    def made(self, lane: Lane, offset: int, metadata: str) -> None:
        """Takes in what has been committed of a lane."""
        if lane.tracker is not None:
            lane.tracker.committed = max(lane.tracker.committed, offset)
            lane.noted = metadata
